"""Who the members of a gang are, as every node can tell."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity, key_of_peer
from formation_p2p.features.gangs.core.candidates import key_of_gang, members_of
from formation_p2p.features.gangs.core.roster import (
    GANG_ID_CHARS,
    HALF_BYTES,
    gang_id_of,
    is_gang_of,
)
from formation_p2p.features.gangs.core.spec import GangSpec
from formation_p2p.leases.core.messages import PlacementRequest
from formation_p2p.machine.core.capability import Capacity
from formation_p2p.records.core.profile import Profile
from tests.unit.test_gang_world import GANG, NEEDS, Gangs

NAMES = ("alice", "carol", "dave", "erin", "frank", "grace")


def known_by(gangs: Gangs, name: str) -> tuple[Profile, ...]:
    """The workers as a node finds them by itself."""
    node = gangs.world.nodes[name]
    node.explain(None)
    gangs.world.elapse(5)
    decision = node.explained[-1].decision
    return tuple(each.profile for each in decision.ranked)


@pytest.mark.at_length
def test_every_node_names_those_that_the_owner_has() -> None:
    gangs = Gangs(*NAMES)
    known = {name: known_by(gangs, name) for name in ("gate", "dave")}
    gangs.form(GangSpec((NEEDS,) * 3, fewer=True))
    gangs.world.elapse(5)
    formed = {member.peer_id for member in gangs.formed().members}
    for workers in known.values():
        assert len(workers) == len(NAMES)
        assert {each.peer_id for each in members_of(GANG, workers, NEEDS)} == formed
    # The owner has asked no others.
    assert len(gangs.sent(PlacementRequest)) == 3


def test_they_are_the_nearest_and_those_with_room_come_first() -> None:
    gangs = Gangs(*NAMES)
    workers = known_by(gangs, "gate")
    near = sorted(workers, key=lambda each: key_of_peer(each.peer_id) ^ key_of_gang(GANG))
    assert members_of(GANG, workers, NEEDS) == tuple(near[:3])
    assert members_of(GANG, workers, NEEDS, 99) == tuple(near)
    assert members_of(GANG, workers[:2], NEEDS) == tuple(x for x in near if x in workers[:2])
    full = replace(near[0], capacity=Capacity(0, 0))
    assert members_of(GANG, [full, *near[1:]], NEEDS) == tuple(near[1:4])
    assert members_of(GANG, [full, near[1]], NEEDS) == (near[1], full)
    assert members_of(GANG, workers, replace(NEEDS, cpu_milli=2000)) == ()
    with pytest.raises(InvalidInput, match="size of a cluster"):
        members_of(GANG, workers, NEEDS, 0)


# -- the name of a gang is its owner's -----------------------------------------------------------


ALICE, MALLORY = (Identity.from_seed(bytes((number,)) * 32).peer_id for number in (1, 2))


@given(st.binary(min_size=HALF_BYTES, max_size=HALF_BYTES))
def test_a_gang_is_of_the_one_who_named_it_and_of_no_other(drawn: bytes) -> None:
    gang_id = gang_id_of(ALICE, drawn)
    assert len(gang_id) == GANG_ID_CHARS
    assert is_gang_of(gang_id, ALICE)
    assert not is_gang_of(gang_id, MALLORY)


@pytest.mark.parametrize("foreign", ["", "x" * GANG_ID_CHARS, "ab" * (GANG_ID_CHARS // 2)])
def test_a_name_of_another_form_is_of_no_owner(foreign: str) -> None:
    assert not is_gang_of(foreign, ALICE)
