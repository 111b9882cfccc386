"""A worker is found as one that runs services also where it says so after its machine was lent."""

from __future__ import annotations

from formation_p2p.core.peer.events import Measured, Renewed
from formation_p2p.core.peer.peer import Peer
from formation_p2p.core.records.profile import open_profile
from formation_p2p.core.services.events import ServeServices, StopServing
from formation_p2p.core.services.replica import Replica
from formation_p2p.core.services.spec import WorkerType
from formation_p2p.core.trust.grants import Right, Rights, issue
from formation_p2p.core.trust.network import Network
from formation_p2p.sim.node import SimNode
from formation_p2p.sim.world import EPOCH_UNIX_S, World
from tests.support.services_world import CPU, Hamlet, wanting


def hamlet_and_lender() -> tuple[Hamlet, SimNode, Replica]:
    """A worker that runs echo, and a machine that is lent to tasks alone."""
    hamlet = Hamlet(1)
    lender = hamlet.world.add("lender", serve=hamlet.world.machine(cpu=8))
    hamlet.world.elapse(5)
    hamlet.publish(wanting(1))
    hamlet.world.elapse(60)
    [node] = hamlet.having("echo")
    assert isinstance(node.peer, Peer)
    replica = node.peer.services.holding.get("echo")
    assert replica is not None
    return hamlet, lender, replica


def guards(replica: Replica, node: SimNode) -> bool:
    return node.identity.peer_id in {contact.peer_id for contact in replica.guardians}


def grant_to(hamlet: Hamlet, node: SimNode, *may: Right) -> None:
    rights = Rights(int(EPOCH_UNIX_S) + 10**6, frozenset(may))
    grant = issue(hamlet.world.root, rights, node.identity.peer_id)
    hamlet.world.deliver(node, Renewed(Network(hamlet.world.root.public_key, (), grant)))


def test_a_lent_machine_that_begins_to_serve_is_found_as_a_guardian() -> None:
    hamlet, lender, replica = hamlet_and_lender()
    hamlet.world.elapse(400)
    assert not guards(replica, lender)
    hamlet.world.deliver(lender, ServeServices(CPU))
    hamlet.world.elapse(400)
    assert guards(replica, lender)


def test_a_worker_at_the_edge_says_how_far_the_gates_are() -> None:
    world = World(7)
    gate = world.add("gate")
    edge = world.add("edge", serve=world.machine(cpu=8))
    world.elapse(3)

    def announced_ms() -> int:
        assert isinstance(edge.peer, Peer)
        assert edge.peer.worker is not None
        raw = edge.peer.worker.announced
        assert raw is not None
        return open_profile(raw, EPOCH_UNIX_S + world.now_s).profile.gate_rtt_ms

    for rtt_us in (13_000, 14_000):
        world.deliver(edge, Measured(gate.identity.peer_id, rtt_us))
    world.elapse(300)
    assert announced_ms() == 0  # of others it is not asked
    world.deliver(edge, ServeServices(frozenset({WorkerType.EDGE})))
    world.deliver(edge, Measured(gate.identity.peer_id, 13_000))
    world.elapse(300)
    assert announced_ms() == 20
    world.elapse(1000)
    assert announced_ms() == 0  # that was long ago


def test_one_that_serves_others_or_nothing_any_more_is_found_as_that() -> None:
    hamlet = Hamlet(1)
    [node] = hamlet.workers
    hamlet.world.elapse(5)
    hamlet.publish(wanting(1))
    hamlet.world.elapse(60)

    def labels() -> list[str]:
        assert isinstance(node.peer, Peer)
        assert node.peer.worker is not None
        return [each for each in node.peer.worker.announcer.buckets if "serves" in each]

    assert labels() == ["label/serves-cpu/yes"]
    hamlet.world.deliver(node, ServeServices(CPU, 2))
    hamlet.world.elapse(10)
    assert hamlet.having("echo") == [node]
    hamlet.world.deliver(node, ServeServices(frozenset({WorkerType.EDGE})))
    hamlet.world.elapse(10)
    assert labels() == ["label/serves-edge/yes"]
    assert hamlet.having("echo") == []
    hamlet.world.deliver(node, StopServing())
    hamlet.world.elapse(10)
    assert labels() == []


def test_one_that_may_not_work_begins_to_be_found_once_it_may() -> None:
    hamlet, lender, replica = hamlet_and_lender()
    grant_to(hamlet, lender, Right.SUBMIT)
    hamlet.world.deliver(lender, ServeServices(CPU))
    hamlet.world.elapse(400)
    assert not guards(replica, lender)
    grant_to(hamlet, lender, Right.SUBMIT, Right.WORK)
    hamlet.world.elapse(400)
    assert guards(replica, lender)
