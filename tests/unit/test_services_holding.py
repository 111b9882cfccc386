"""The replicas of one worker: what it is told at odd moments, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from formation_p2p.core.dht.messages import PutValue
from formation_p2p.core.peer.events import AddressesChanged, Renewed
from formation_p2p.core.peer.peer import Peer
from formation_p2p.core.services.claim import Claim, ClaimState, seal_claim, wins
from formation_p2p.core.services.events import (
    DrainReplica,
    ReplicaReported,
    ReplicaState,
    ServeServices,
    ServiceStep,
)
from formation_p2p.core.services.names import claims_name
from formation_p2p.core.services.spec import WorkerType
from formation_p2p.core.trust.grants import Right, Rights, issue
from formation_p2p.core.trust.network import Network
from formation_p2p.sim.node import SimNode
from formation_p2p.sim.world import EPOCH_UNIX_S
from tests.support.services_world import Hamlet, wanting

WITHDRAWN = wanting(1, version=2, withdrawn=True)


def peer_of(node: SimNode) -> Peer:
    assert isinstance(node.peer, Peer)
    return node.peer


def free_cpu_milli(hamlet: Hamlet, node: SimNode) -> int:
    status = peer_of(node).status(hamlet.world.moment(node))
    assert status.free is not None
    return status.free.cpu_milli


def hamlet_with_echo(workers: int = 3) -> tuple[Hamlet, SimNode]:
    """A hamlet, and the worker that has the one replica."""
    hamlet = Hamlet(workers)
    hamlet.world.elapse(5)
    hamlet.publish(wanting(1))
    hamlet.world.elapse(60)
    [node] = hamlet.having("echo")
    return hamlet, node


def claimed(hamlet: Hamlet) -> SimNode:
    """The worker that has claimed the slot, and has not started anything yet."""
    for _ in range(1000):
        hamlet.world.elapse(0.1)
        names = hamlet.steps(ServiceStep.CLAIMED)
        if names:
            assert hamlet.steps(ServiceStep.STARTED) == []
            return hamlet.world.nodes[names[0]]
    raise AssertionError("no worker claims the slot")


def own_claim(hamlet: Hamlet, node: SimNode) -> Claim:
    replica = peer_of(node).services.holding.get("echo")
    assert replica is not None
    assert replica.claim is not None
    return replica.claim.claim


# -- before it starts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "end",
    [
        lambda hamlet, node: hamlet.publish(WITHDRAWN, node),
        lambda hamlet, node: hamlet.world.deliver(node, DrainReplica("echo")),
        lambda hamlet, node: hamlet.world.deliver(node, ServeServices(frozenset({WorkerType.GPU}))),
    ],
)
def test_a_claimed_slot_is_given_back_where_its_service_is_not_to_run_here(
    end: Callable[[Hamlet, SimNode], object],
) -> None:
    hamlet = Hamlet(1)
    hamlet.world.elapse(5)
    hamlet.publish(wanting(1, needs=replace(wanting(1).needs, cpu_milli=6000)))
    node = claimed(hamlet)
    assert free_cpu_milli(hamlet, node) == 2000
    end(hamlet, node)
    hamlet.world.elapse(90)
    assert hamlet.steps(ServiceStep.STARTED) == []
    assert "echo" not in peer_of(node).services.holding
    assert free_cpu_milli(hamlet, node) == 8000


def test_a_worker_with_no_reservation_to_spare_leaves_the_slot_to_another() -> None:
    hamlet = Hamlet(2)
    hamlet.world.elapse(5)
    full, other = hamlet.workers
    worker = peer_of(full).worker
    assert worker is not None
    worker.lessor.ledger.max_reservations = 0
    hamlet.publish(wanting(2))
    hamlet.world.elapse(90)
    assert hamlet.having("echo") == [other]
    assert full.name in hamlet.steps(ServiceStep.GAP)


# -- while it runs -----------------------------------------------------------------------------


def test_what_is_told_again_or_of_what_is_not_here_changes_nothing() -> None:
    hamlet, node = hamlet_with_echo()
    epoch, slot = node.replicas.running["echo"]
    before = own_claim(hamlet, node)

    def tell(state: ReplicaState) -> None:
        hamlet.world.deliver(node, ReplicaReported("echo", slot, epoch, state, 0, "again"))

    tell(ReplicaState.READY)
    hamlet.world.deliver(node, DrainReplica("another"))
    assert own_claim(hamlet, node) == before
    tell(ReplicaState.UNREADY)
    tell(ReplicaState.UNREADY)
    assert hamlet.steps(ServiceStep.UNREADY) == [node.name]
    hamlet.world.deliver(node, DrainReplica("echo"))
    hamlet.world.deliver(node, DrainReplica("echo"))
    tell(ReplicaState.READY)
    assert hamlet.steps(ServiceStep.DRAINING) == [node.name]
    assert own_claim(hamlet, node).state is ClaimState.DRAINING


def test_a_replica_of_a_machine_that_is_reached_elsewhere_is_listed_there() -> None:
    hamlet, node = hamlet_with_echo()
    moved = "/ip4/10.9.9.9/tcp/4001"
    assert own_claim(hamlet, node).addresses != (moved,)
    hamlet.world.deliver(node, AddressesChanged((moved,), (moved,)))
    assert own_claim(hamlet, node).addresses == (moved,)
    peer_of(node).services.validate()


def test_what_a_replica_needed_is_given_back_also_once_its_worker_may_not_work() -> None:
    hamlet, node = hamlet_with_echo()
    assert free_cpu_milli(hamlet, node) < 8000
    rights = Rights(int(EPOCH_UNIX_S) + 10**6, frozenset({Right.SUBMIT}))
    grant = issue(hamlet.world.root, rights, node.identity.peer_id)
    hamlet.world.deliver(node, Renewed(Network(hamlet.world.root.public_key, (), grant)))
    hamlet.world.deliver(node, DrainReplica("echo"))
    hamlet.world.elapse(30)
    assert "echo" not in peer_of(node).services.holding
    assert free_cpu_milli(hamlet, node) == 8000


def test_guardians_are_sought_again_soon_where_too_much_is_being_sought() -> None:
    hamlet, node = hamlet_with_echo()
    replica = peer_of(node).services.holding.get("echo")
    assert replica is not None
    for _ in range(64):
        node.explain(wanting(1).needs)
    replica.guardians, replica.guardians_s = (), 0.0
    now = hamlet.world.moment(node)
    peer_of(node).services.holding.tick(now)
    assert replica.guardians_s == now.mono_s + 10.0
    hamlet.world.elapse(20)
    assert replica.guardians


# -- two in one slot ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "version", "runs_on"),
    [(ClaimState.DRAINING, 2, True), (ClaimState.READY, 1, True), (ClaimState.READY, 2, False)],
)
def test_a_replica_gives_way_to_a_rival_that_still_says_it_has_the_slot(
    state: ClaimState, version: int, runs_on: bool
) -> None:
    """The claim that was read counts more, for its version; then the rival itself is asked."""
    hamlet, node = hamlet_with_echo(6)
    ours = own_claim(hamlet, node)
    assert ours.state is ClaimState.READY

    def claim_by(other: SimNode, **fields: Any) -> Claim:
        common = {"peer_id": other.identity.peer_id, "grant": other.network().grant}
        return replace(ours, **{**common, "guardians": (), **fields})

    far = [each for each in hamlet.workers if each is not node and wins(ours, claim_by(each))]
    rival = far[0]
    read = claim_by(rival, version=2, addresses=rival.contact.addresses)
    now_of = replace(read, state=state, version=version, sequence=read.sequence + 1)
    for where, claim in ((node, read), (rival, now_of)):
        put = PutValue(
            claims_name(peer_of(node).network.network_id, "echo"),
            seal_claim(rival.identity, claim).raw,
        )
        assert peer_of(where).dht.records.keep(node.contact, put, hamlet.world.moment(where))
    hamlet.world.elapse(20)
    drained = [] if runs_on else [node.name]
    assert hamlet.steps(ServiceStep.DRAINING) == drained
