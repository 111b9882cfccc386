"""Peers are shown by name and by the end of their id, whatever they call themselves."""

from __future__ import annotations

from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.host.names import MAX_NAMES, learn_name, name_of, named
from formation_p2p.host.observe.status_json import learn_from, with_names

# Of these tests alone: names are kept for the whole process.
ALICE, CAROL, DAVE = (Identity.from_seed(bytes([200 + n]) * 32).peer_id for n in range(3))


def test_a_peer_is_shown_by_its_name_and_the_end_of_its_id() -> None:
    assert named(ALICE) == f"…{ALICE[-8:]}"
    learn_name(ALICE, "kitchen")
    assert named(ALICE) == f"kitchen …{ALICE[-8:]}"
    learn_name(ALICE, "")  # it did not say this time
    assert name_of(ALICE) == "kitchen"
    learn_name(ALICE, "cellar")
    assert named(ALICE) == f"cellar …{ALICE[-8:]}"


def test_those_of_the_same_name_can_be_told_apart() -> None:
    for peer_id in (ALICE, CAROL):
        learn_name(peer_id, "kitchen")
    assert named(ALICE) != named(CAROL)


def test_json_has_the_name_beside_the_id_where_it_is_known() -> None:
    learn_name(CAROL, "attic")
    document = {"worker": CAROL, "owner": DAVE, "why": "busy"}
    assert with_names(document) == {**document, "worker_name": "attic"}
    assert with_names({"worker": None}) == {"worker": None}


def test_a_name_is_learnt_from_json() -> None:
    learn_from({"worker": DAVE, "worker_name": "garage", "owner": CAROL})
    assert name_of(DAVE) == "garage"


def test_there_is_a_bound_for_names() -> None:
    learn_name(ALICE, "first")
    for n in range(MAX_NAMES):
        learn_name(PeerId(f"peer {n}"), "x")
    assert name_of(ALICE) is None
    assert name_of(f"peer {MAX_NAMES - 1}") == "x"
