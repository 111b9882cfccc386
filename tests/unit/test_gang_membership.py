"""Who the members of a gang are, as every node can tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import key_of_peer
from formation_p2p.features.gangs.core.candidates import key_of_gang, members_of
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


def test_others_are_asked_where_one_of_them_refuses() -> None:
    gangs = Gangs(*NAMES[:4])
    named = members_of(GANG, known_by(gangs, "gate"), NEEDS)
    gangs.world.kill(gangs.of(named[0].peer_id))
    gangs.form(GangSpec((NEEDS,) * 3, fewer=True))
    gangs.world.elapse(8)
    formed = {member.peer_id for member in gangs.formed().members}
    assert len(formed) == 3
    assert {each.peer_id for each in named[1:]} < formed
