"""A worker is found as one that runs services also where it says so after its machine was lent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.peer.edge_link import EVERY_S, EdgeLink, step_down
from formation_p2p.core.peer.events import Measured, RateMeasured, Renewed
from formation_p2p.core.peer.peer import Peer
from formation_p2p.core.placement.round_trips import RoundTrips
from formation_p2p.core.records.profile import NO_LINK, Link, open_profile
from formation_p2p.core.services.events import ServeServices, StopServing
from formation_p2p.core.services.replica import Replica
from formation_p2p.core.services.serving import labels_of
from formation_p2p.core.services.spec import WorkerType
from formation_p2p.core.trust.grants import Right, Rights, issue
from formation_p2p.core.trust.network import Network
from formation_p2p.sim.node import SimNode
from formation_p2p.sim.world import EPOCH_UNIX_S, World
from tests.support.services_world import CPU, Hamlet, wanting
from tests.support.stories import BOB, at

EDGE = frozenset({WorkerType.EDGE})


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


class Edge:
    """A worker that becomes one at the edge, beside a gate."""

    def __init__(self) -> None:
        self.world = World(7)
        self.gate = self.world.add("gate")
        self.node = self.world.add("edge", serve=self.world.machine(cpu=8))
        self.world.elapse(3)

    def measured(self, *rtts_us: int) -> None:
        for rtt_us in rtts_us:
            self.world.deliver(self.node, Measured(self.gate.identity.peer_id, rtt_us))

    def came(self, bytes_per_s: int) -> None:
        told = RateMeasured(self.gate.identity.peer_id, bytes_per_s)
        self.world.deliver(self.node, told)

    def announced(self) -> Link:
        assert isinstance(self.node.peer, Peer)
        assert self.node.peer.worker is not None
        raw = self.node.peer.worker.announced
        assert raw is not None
        return open_profile(raw, EPOCH_UNIX_S + self.world.now_s).profile.link


def test_a_rate_is_of_no_use_to_a_node_that_serves_nothing() -> None:
    edge = Edge()
    told = RateMeasured(edge.node.identity.peer_id, 10**6)
    assert isinstance(edge.gate.peer, Peer)
    assert edge.gate.peer.handle(told, edge.world.moment(edge.gate)) == []
    assert edge.announced() == NO_LINK


def test_a_worker_at_the_edge_says_how_well_it_is_connected_with_the_gates() -> None:
    edge = Edge()
    edge.measured(13_000, 14_000)
    edge.came(10**6)
    edge.world.elapse(300)
    assert edge.announced() == NO_LINK  # of others it is not asked
    edge.world.deliver(edge.node, ServeServices(EDGE))
    edge.measured(13_000)
    edge.world.elapse(300)
    assert edge.announced() == Link(20, 100)
    edge.world.elapse(1000)
    assert edge.announced() == Link(0, 100)  # that was long ago
    edge.came(30_000_000)
    edge.world.elapse(300)
    assert edge.announced() == Link(0, 200)
    edge.came(0)
    edge.world.elapse(300)
    assert edge.announced() == Link(0, 200)  # it failed
    edge.world.deliver(edge.node, ServeServices(CPU))
    edge.world.elapse(300)
    assert edge.announced() == NO_LINK


def test_a_rate_is_measured_again_and_less_and_less_often_where_no_gate_lives() -> None:
    edge = Edge()
    world, peer = edge.world, edge.node.peer
    assert isinstance(peer, Peer)
    link = EdgeLink(BOB.peer_id, peer.dht, RoundTrips(BOB.peer_id))
    link.serves(labels_of(EDGE), at(0))
    link.serves(labels_of(EDGE | CPU), at(0))
    asked = [each for s in range(0, 1000, 5) for each in link.tick(at(s))]
    assert 3 <= len(asked) <= 6
    assert {each.to.peer_id for each in asked} == {edge.gate.identity.peer_id}
    assert link.measured(1, at(1000))  # a megabit at least
    assert link.tick(at(1000 + EVERY_S / 2)) == []
    assert len(link.tick(at(1000 + 2 * EVERY_S))) == 1
    world.kill(edge.gate)
    world.elapse(600)
    assert link.tick(at(10 * EVERY_S)) == []
    assert link.next_timeout() > 10 * EVERY_S


@given(st.integers(1, 10**9))
def test_a_step_down_is_one_two_or_five_and_not_far(number: int) -> None:
    step = step_down(number)
    assert step <= number < 2.5 * step
    assert str(step).rstrip("0") in {"1", "2", "5"}


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
