"""Workers that speak HTTP only, as the network knows them: by the claims of their gateway."""

from __future__ import annotations

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.features.services.core.claim import MEMBERS_SLOT, Claim
from formation_p2p.features.services.core.events import (
    MembersServe,
    ReadServices,
    ServicesRead,
    ServiceStep,
)
from formation_p2p.features.services.core.view import view_of
from simulations.simulator.node import SimNode
from tests.support.services_world import Hamlet, wanting


def read(hamlet: Hamlet, node: SimNode) -> ServicesRead:
    node.services_read.clear()
    hamlet.world.deliver(node, ReadServices(1))
    hamlet.world.elapse(5)
    [told] = (each for each in node.services_read if isinstance(each, ServicesRead))
    return told


def behind(told: ServicesRead) -> list[Claim]:
    return [each.claim for each in told.claims if each.claim.members]


def with_members(workers: int, members: int) -> tuple[Hamlet, SimNode]:
    """A hamlet with the echo service, and the gateway that has members of it."""
    hamlet = Hamlet(workers).given(wanting(1), for_s=60)
    hamlet.world.deliver(hamlet.gate, MembersServe("echo", members, 3))
    hamlet.world.elapse(5)
    return hamlet, hamlet.gate


def test_others_see_the_members_of_a_gateway_beside_the_replicas() -> None:
    hamlet, gate = with_members(3, 2)
    told = read(hamlet, hamlet.workers[0])
    [claim] = behind(told)
    assert (claim.peer_id, claim.slot, claim.members) == (gate.identity.peer_id, MEMBERS_SLOT, 2)
    assert (claim.outstanding, claim.capacity) == (3, 2 * 16)
    [gap] = view_of(told).gaps
    assert gap.current_workers == 3
    hamlet.world.deliver(gate, MembersServe("echo", 2, 5))
    hamlet.world.elapse(200)
    assert [each.outstanding for each in behind(read(hamlet, hamlet.workers[0]))] == [5]
    # They fill no slot, and none is freed for them.
    assert len(hamlet.having("echo")) == 1
    assert len(hamlet.steps(ServiceStep.STARTED)) == 1


def test_when_they_are_gone_so_is_the_claim() -> None:
    hamlet, gate = with_members(2, 2)
    hamlet.world.deliver(gate, MembersServe("echo", 1))
    hamlet.world.elapse(3)
    assert [claim.members for claim in behind(read(hamlet, hamlet.workers[0]))] == [1]
    hamlet.world.deliver(gate, MembersServe("echo", 0))
    hamlet.world.elapse(3)
    assert behind(read(hamlet, hamlet.workers[0])) == []
    hamlet.world.deliver(gate, MembersServe("echo", 0))
    hamlet.world.elapse(60)
    assert behind(read(hamlet, hamlet.workers[0])) == []


def test_when_the_gateway_is_gone_so_is_the_claim() -> None:
    hamlet, gate = with_members(2, 1)
    assert behind(read(hamlet, hamlet.workers[0]))
    hamlet.world.kill(gate)
    hamlet.world.elapse(65)
    assert behind(read(hamlet, hamlet.workers[0])) == []


def test_a_node_with_a_replica_of_its_own_claims_that_alone() -> None:
    hamlet, _ = with_members(2, 1)
    [node] = hamlet.having("echo")
    hamlet.world.deliver(node, MembersServe("echo", 4))
    hamlet.world.elapse(40)
    claims = behind(read(hamlet, hamlet.workers[0]))
    assert [claim.peer_id for claim in claims] == [hamlet.gate.identity.peer_id]


def test_members_of_what_is_no_service_are_not_claimed() -> None:
    hamlet, gate = with_members(1, 1)
    for number in range(300):
        hamlet.world.deliver(gate, MembersServe(f"none-{number}", 1))
    hamlet.world.elapse(5)
    assert [claim.service for claim in behind(read(hamlet, hamlet.workers[0]))] == ["echo"]
    with pytest.raises(InvalidInput):
        MembersServe("echo", -1)
