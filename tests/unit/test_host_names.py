"""Peers are shown by name and by the end of their id, whatever they call themselves."""

import pytest

from formation_p2p.core.errors import AmbiguousPeer, InvalidInput
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.machine.names import MAX_NAMES, learn_name, name_of, named, peer_meant
from formation_p2p.observe.status_json import learn_from, with_names
from formation_p2p.placement.policies import options_of

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


@pytest.mark.parametrize(
    "text",
    [
        ALICE,
        ALICE[-8:],
        f"…{ALICE[-8:]}",
        f"...{ALICE[-8:]}",
        "conservatory",
        f"conservatory …{ALICE[-8:]}",
    ],
)
def test_a_peer_is_meant_by_its_id_its_end_or_its_name(text: str) -> None:
    learn_name(ALICE, "conservatory")
    learn_name(CAROL, "attic")
    assert peer_meant(text) == ALICE


def test_what_may_be_several_peers_is_an_error_that_lists_them() -> None:
    for peer_id in (ALICE, CAROL):
        learn_name(peer_id, "pantry")
    with pytest.raises(AmbiguousPeer, match="'pantry' may be any of 2 peers: ") as raised:
        peer_meant("pantry")
    assert raised.value.candidates == tuple(sorted((ALICE, CAROL)))
    assert all(each in str(raised.value) for each in (ALICE[-8:], CAROL[-8:], "write the end"))
    assert ALICE not in str(raised.value)
    twins = ("1" + ALICE[-8:], "2" + ALICE[-8:])  # an end that somebody has made the same
    assert all(each in str(AmbiguousPeer("peer", "x", twins)) for each in twins)
    assert peer_meant(f"pantry …{CAROL[-8:]}") == CAROL
    assert peer_meant("pantry", {ALICE, DAVE}) == ALICE
    many = AmbiguousPeer("peer", "x", [str(n) for n in range(9)])
    assert "7 and more; write" in str(many)


@pytest.mark.parametrize("text", ["", "…", "scullery", f"scullery …{ALICE[-8:]}", "…pantry"])
def test_a_peer_that_is_not_known_is_none(text: str) -> None:
    learn_name(ALICE, "pantry")
    assert peer_meant(text) is None


def test_hints_name_peers() -> None:
    learn_name(ALICE, "pantry")
    learn_name(CAROL, "attic")
    hints = options_of({"hints": ["require prefer=pantry", "avoid=attic"]}).hints
    assert (hints.prefer, hints.avoid, hints.required) == ((ALICE,), (CAROL,), {"prefer"})
    assert options_of({"hints": f"prefer={ALICE[-8:]}"}).hints.prefer == (ALICE[-8:],)
    with pytest.raises(InvalidInput, match="prefer: 'cave' is"):
        options_of({"hints": "prefer=cave"})
    learn_name(CAROL, "pantry")
    with pytest.raises(AmbiguousPeer, match="prefer: 'pantry' may be any of 2 peers"):
        options_of({"hints": "prefer=pantry"})


def test_there_is_a_bound_for_names() -> None:
    learn_name(ALICE, "first")
    for n in range(MAX_NAMES):
        learn_name(PeerId(f"peer {n}"), "x")
    assert name_of(ALICE) is None
    assert name_of(f"peer {MAX_NAMES - 1}") == "x"
