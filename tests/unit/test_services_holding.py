"""The replicas of one worker: what it is told at odd moments, and what it gives back."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.assembly import Peer
from formation_p2p.core.effects import Effect
from formation_p2p.core.errors import InvalidInput
from formation_p2p.dht.core.messages import PutValue
from formation_p2p.discovery.core.finder import FindId, Found
from formation_p2p.discovery.core.trace import Trace
from formation_p2p.features.services.core.claim import (
    CLAIM_TTL_S,
    MEMBERS_SLOT,
    Claim,
    ClaimState,
    seal_claim,
    wins,
)
from formation_p2p.features.services.core.events import (
    DrainReplica,
    MembersServe,
    ReadServices,
    ReplicaReported,
    ReplicaState,
    ServeServices,
    ServicesRead,
    ServiceStep,
    StartReplica,
    StopServing,
)
from formation_p2p.features.services.core.replica import Replica
from formation_p2p.features.services.core.scaling import DOWN_S, UP_S, Load, Scaler, wanted
from formation_p2p.features.services.core.shelf import claims_name
from formation_p2p.features.services.core.spec import Replicas, ServiceSpec, WorkerType, labels_of
from formation_p2p.features.services.core.view import view_of
from formation_p2p.machine.core.requirements import parse_requirements
from formation_p2p.peer.core.edge_link import EVERY_S, EdgeLink, step_down
from formation_p2p.peer.core.events import AddressesChanged, Measured, RateMeasured, Renewed
from formation_p2p.placement.core.round_trips import RoundTrips
from formation_p2p.records.core.profile import NO_LINK, Link, open_profile
from formation_p2p.trust.core.grants import Right, Rights, issue
from formation_p2p.trust.core.network import Network
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from tests.support.resources_world import a100
from tests.support.services_world import CPU, ECHO, Hamlet, claim_of, person, wanting
from tests.support.stories import BOB, at

WITHDRAWN = wanting(1, version=2, withdrawn=True)
READY = ClaimState.READY


def peer_of(node: SimNode) -> Peer:
    assert isinstance(node.peer, Peer)
    return node.peer


def free_cpu_milli(hamlet: Hamlet, node: SimNode) -> int:
    status = peer_of(node).status(hamlet.world.moment(node))
    assert status.free is not None
    return status.free.cpu_milli


def hamlet_with_echo(workers: int = 3) -> tuple[Hamlet, SimNode]:
    """A hamlet, and the worker that has the one replica."""
    hamlet = Hamlet(workers).given(wanting(1), for_s=60)
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
    hamlet = Hamlet(1).given(wanting(1, needs=replace(wanting(1).needs, cpu_milli=6000)))
    node = claimed(hamlet)
    assert free_cpu_milli(hamlet, node) == 2000
    end(hamlet, node)
    hamlet.world.elapse(90)
    assert hamlet.steps(ServiceStep.STARTED) == []
    assert "echo" not in peer_of(node).services.holding
    assert free_cpu_milli(hamlet, node) == 8000


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


@pytest.mark.at_length
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


@pytest.mark.at_length
def test_a_replica_that_stopped_while_its_guardians_were_sought_has_none() -> None:
    hamlet, node = hamlet_with_echo()
    replica = peer_of(node).services.holding.get("echo")
    assert replica is not None
    epoch, slot = node.replicas.running["echo"]
    replica.guardians, replica.guardians_s = (), 0.0
    peer_of(node).services.holding.tick(hamlet.world.moment(node))
    stopped = ReplicaReported("echo", slot, epoch, ReplicaState.FAILED, 0, "it has ended")
    hamlet.world.deliver(node, stopped)
    hamlet.world.elapse(5)
    assert replica.guardians == ()


def test_workers_that_do_not_suit_are_no_guardians() -> None:
    hamlet, node = hamlet_with_echo()
    holding = peer_of(node).services.holding
    replica = holding.get("echo")
    assert replica is not None
    before, now = replica.guardians, hamlet.world.moment(node)
    holding._chosen(replica, Found(FindId(0), (), Trace(()), suited=False, complete=True), now)
    assert replica.guardians == before


@pytest.mark.at_length
def test_a_claim_says_what_its_replica_does_and_who_guards_it() -> None:
    hamlet, node = hamlet_with_echo()
    busy(hamlet, node, 7)
    hamlet.world.elapse(60)
    claim = own_claim(hamlet, node)
    assert (claim.service, claim.version, claim.slot, claim.state) == ("echo", 1, 0, READY)
    assert (claim.peer_id, claim.addresses) == (node.identity.peer_id, node.contact.addresses)
    assert (claim.outstanding, claim.capacity, claim.services_held) == (7, 16, 1)
    assert 30 < claim.busy_percent <= 100 * 7 // 16
    assert (claim.wanted, claim.next_version, claim.failed_version) == (0, 0, 0)
    others = {each.identity.peer_id for each in hamlet.workers if each is not node}
    assert set(claim.guardians) == others
    assert claim.expires_unix_s - claim.issued_unix_s == CLAIM_TTL_S


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


# How many replicas a service has: by its load, alike at every node, and never by a false gap.


ELASTIC = replace(ECHO, replicas=Replicas(1, 1, 3))
PAIR = replace(ECHO, replicas=Replicas(1, 2, 3))


def claims(*words: int, version: int = 1) -> list[Claim]:
    return [
        claim_of(person(f"worker{slot}"), slot=slot, wanted=word, version=version)
        for slot, word in enumerate(words)
    ]


# -- the number ------------------------------------------------------------------------------------


def test_what_the_most_of_the_live_claims_wants_is_wanted() -> None:
    assert wanted(PAIR, []) == 2
    assert wanted(PAIR, claims(0, 0)) == 2
    assert wanted(PAIR, claims(3, 1)) == 3
    assert wanted(PAIR, claims(1, 1)) == 1
    assert wanted(PAIR, claims(1, 0)) == 2  # one of them leaves it to the spec


def test_what_was_said_of_an_older_version_counts_where_it_is_more() -> None:
    newer = replace(PAIR, version=2)
    assert wanted(newer, claims(1, 1)) == 2
    assert wanted(newer, claims(3, 1)) == 3
    assert wanted(newer, claims(1, 1, version=2)) == 1


@given(st.lists(st.integers(0, 64), max_size=8), st.integers(1, 64), st.integers(1, 64))
def test_it_stays_within_what_the_spec_allows(words: list[int], one: int, other: int) -> None:
    least, most = sorted((one, other))
    spec = replace(ECHO, replicas=Replicas(least, least, most))
    assert least <= wanted(spec, claims(*words)) <= most
    assert wanted(spec, reversed(claims(*words))) == wanted(spec, claims(*words))


# -- one holder ------------------------------------------------------------------------------------


def test_a_load_is_what_there_was_of_late() -> None:
    load = Load()
    assert load.busy_percent(ECHO, 1000.0) == 0
    load.told(0.0, 16, 1000.0)
    assert load.busy_percent(ECHO, 1010.0) == 39
    assert load.busy_percent(ECHO, 1024.0) == 70
    load.told(16.0, 0, 1100.0)
    assert load.busy_percent(ECHO, 1100.0) == 99
    assert load.busy_percent(ECHO, 1200.0) == 1
    load.told(1000.0, 0, 1300.0)  # most of them waited
    assert load.busy_percent(ECHO, 1300.0) == 200


def test_a_holder_wants_more_at_once_and_then_waits() -> None:
    scaler = Scaler(ELASTIC)
    assert scaler.decide(1, 60.0, 0.0, is_whole=True) is None
    assert scaler.decide(1, 80.0, 1.0, is_whole=True) == 2
    scaler.changed(1.0)
    assert scaler.decide(2, 80.0, UP_S, is_whole=True) is None
    assert scaler.decide(2, 80.0, 1.0 + UP_S, is_whole=False) == 3
    assert scaler.decide(3, 200.0, 1000.0, is_whole=True) is None  # the most there may be


def test_a_holder_wants_fewer_only_where_fewer_were_enough_all_the_time() -> None:
    scaler = Scaler(ELASTIC)
    assert scaler.decide(3, 10.0, 0.0, is_whole=True) is None
    assert scaler.decide(3, 50.0, 300.0, is_whole=True) is None
    assert scaler.decide(3, 10.0, DOWN_S - 1, is_whole=True) is None
    assert scaler.decide(3, 10.0, DOWN_S, is_whole=True) == 2
    scaler.changed(DOWN_S)
    assert scaler.decide(2, 0.0, DOWN_S + 1, is_whole=True) is None
    assert scaler.decide(2, 0.0, 2 * DOWN_S, is_whole=True) is None
    assert scaler.decide(2, 0.0, 2 * DOWN_S + 1, is_whole=True) == 1


def test_where_one_is_missing_little_load_says_nothing() -> None:
    scaler = Scaler(ELASTIC)
    scaler.decide(3, 10.0, 0.0, is_whole=True)
    assert scaler.decide(3, 10.0, 500.0, is_whole=False) is None
    assert scaler.decide(3, 10.0, DOWN_S, is_whole=True) is None
    assert scaler.decide(3, 10.0, 2 * DOWN_S, is_whole=True) == 1


# -- all of them -----------------------------------------------------------------------------------


def serving(spec: ServiceSpec, workers: int = 4) -> Hamlet:
    hamlet = Hamlet(workers).given(spec, for_s=60)
    assert len(hamlet.having("echo")) == spec.replicas.target
    return hamlet


def busy(hamlet: Hamlet, node: SimNode, requests: int, before: int = 0) -> None:
    """The replica on a node has so many from now on, and had others since it was told last."""
    epoch, slot = node.replicas.running["echo"]
    state = ReplicaState.READY
    told = ReplicaReported("echo", slot, epoch, state, requests, busy=float(before))
    hamlet.world.deliver(node, told)


def wanted_at(hamlet: Hamlet, node: SimNode) -> int:
    node.services_read.clear()
    hamlet.world.deliver(node, ReadServices(1))
    hamlet.world.elapse(5)
    [told] = node.services_read
    assert isinstance(told, ServicesRead)
    return view_of(told).wanted("echo")


def test_a_service_grows_with_its_load_and_shrinks_slowly() -> None:
    hamlet = serving(ELASTIC)
    [first] = hamlet.having("echo")
    busy(hamlet, first, 16)
    hamlet.world.elapse(75)
    assert len(hamlet.having("echo")) == 2
    [second] = [node for node in hamlet.having("echo") if node is not first]
    busy(hamlet, second, 16)
    hamlet.world.elapse(90)
    assert len(hamlet.having("echo")) == 3
    for node in hamlet.having("echo"):
        busy(hamlet, node, 0, before=16)
    hamlet.world.elapse(560)
    assert len(hamlet.having("echo")) == 3
    hamlet.world.elapse(200)
    assert len(hamlet.having("echo")) == 2  # there was less and less, and 2 were enough for it
    hamlet.world.elapse(600)
    assert len(hamlet.having("echo")) == 1
    assert {wanted_at(hamlet, node) for node in hamlet.workers} == {1}


@pytest.mark.at_length
def test_a_moment_of_load_starts_nothing() -> None:
    hamlet = serving(ELASTIC)
    [first] = hamlet.having("echo")
    busy(hamlet, first, 16)
    hamlet.world.elapse(8)
    busy(hamlet, first, 0, before=16)
    hamlet.world.elapse(60)
    assert hamlet.steps(ServiceStep.SCALED) == []


def test_the_load_of_one_that_died_does_not_count_twice() -> None:
    hamlet = serving(PAIR)
    one, other = hamlet.having("echo")
    for node in (one, other):
        busy(hamlet, node, 10)
    hamlet.world.elapse(60)
    hamlet.world.vanish(one)
    busy(hamlet, other, 16)
    hamlet.world.elapse(50)
    assert hamlet.steps(ServiceStep.SCALED) == []
    assert len(hamlet.having("echo")) == 2


def test_a_service_that_cannot_be_read_keeps_its_size() -> None:
    hamlet = serving(PAIR)
    hamlet.world.elapse(400)
    hamlet.world.loss = 1.0
    hamlet.world.elapse(120)
    hamlet.world.loss = 0.0
    hamlet.world.elapse(300)
    assert hamlet.steps(ServiceStep.SCALED) == []
    assert len(hamlet.steps(ServiceStep.STARTED)) == 2


def test_a_replica_that_goes_while_the_others_are_asked_wants_nothing() -> None:
    hamlet = serving(PAIR)
    one, other = hamlet.having("echo")
    for node in (one, other):
        busy(hamlet, node, 10)
    hamlet.world.elapse(60)
    hamlet.world.vanish(one)
    busy(hamlet, other, 16)
    assert isinstance(other.peer, Peer)
    scaling = other.peer.services.autoscaling
    for _ in range(600):
        hamlet.world.elapse(0.1)
        if scaling.asking:
            break
    assert scaling.asking
    epoch, slot = other.replicas.running["echo"]
    unready = ReplicaReported("echo", slot, epoch, ReplicaState.UNREADY, 16)
    hamlet.world.deliver(other, unready)
    hamlet.world.elapse(10)
    assert hamlet.steps(ServiceStep.SCALED) == []


# A worker is found as one that runs services also where it says so after its machine was lent.


EDGE = frozenset({WorkerType.EDGE})


def hamlet_and_lender() -> tuple[Hamlet, SimNode, Replica]:
    """A worker that runs echo, and a machine that is lent to tasks alone."""
    hamlet = Hamlet(1)
    lender = hamlet.world.add("lender", serve=hamlet.world.machine(cpu=8))
    hamlet.given(wanting(1), for_s=60)
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


@pytest.mark.at_length
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
    hamlet = Hamlet(1).given(wanting(1), for_s=60)
    [node] = hamlet.workers

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


# A replica that needs GPUs has some to itself, by name, also beside an older one.


def with_gpus(count: int) -> tuple[Hamlet, dict[tuple[str, int], tuple[str, ...]]]:
    """A worker with so many GPUs, and which of them each replica gets, by service and version."""
    hamlet = Hamlet(0)
    given: dict[tuple[str, int], tuple[str, ...]] = {}

    def witness(node: SimNode, event: object, effects: Iterable[Effect]) -> None:
        for each in effects:
            if isinstance(each, StartReplica):
                given[each.signed.spec.name, each.signed.spec.version] = each.device_ids

    machine = hamlet.world.machine(cpu=8)
    gpus = tuple(a100(f"GPU-{number}") for number in range(count))
    serve = replace(machine, capability=replace(machine.capability, gpus=gpus))
    node = hamlet.world.add("gpus", serve=serve)
    hamlet.world.deliver(node, ServeServices(frozenset({WorkerType.GPU})))
    hamlet.workers.append(node)
    hamlet.world.elapse(5)
    hamlet.world.witness = witness
    return hamlet, given


def test_each_replica_has_its_own_gpus_and_the_newer_version_others() -> None:
    hamlet, given = with_gpus(3)
    needs = parse_requirements("gpu=1")
    for name in ("one", "two"):
        hamlet.publish(wanting(1, name=name, tier=1, needs=needs))
    hamlet.world.elapse(60)
    assert sorted((given["one", 1], given["two", 1])) == [("GPU-0",), ("GPU-1",)]
    hamlet.publish(wanting(1, name="one", version=2, tier=1, needs=needs))
    hamlet.world.elapse(60)
    assert given["one", 2] == ("GPU-2",)
    hamlet.publish(wanting(1, name="two", version=2, tier=1, needs=needs))
    hamlet.world.elapse(60)
    assert given["two", 2] == given["one", 1]  # which that has given back


def test_what_needs_more_gpus_than_are_left_is_not_started() -> None:
    hamlet, given = with_gpus(2)
    hamlet.publish(wanting(1, name="one", tier=1, needs=parse_requirements("gpu=1")))
    hamlet.world.elapse(60)
    hamlet.publish(wanting(1, name="two", tier=1, needs=parse_requirements("gpu=2")))
    hamlet.publish(wanting(1, name="none", tier=1))
    hamlet.world.elapse(90)
    assert given == {("one", 1): ("GPU-0",), ("none", 1): ()}


# Workers that speak HTTP only, as the network knows them: by the claims of their gateway.


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
