"""Who lets offers lapse: alice keeps nothing for them any more, and serves the others meanwhile."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from formation_p2p.assembly import Peer, PeerEffect, PeerEvent
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import Identity
from formation_p2p.core.refusals import Busy, Denied, GivingWay, Infeasible, Preempted, TooDear
from formation_p2p.core.units import GIB
from formation_p2p.dht.core.messages import Ping
from formation_p2p.dht.core.rpc import RequestReceived
from formation_p2p.jobs.core.job_events import TaskRetried, TaskSucceeded, TaskUnplaceable
from formation_p2p.leases.core.budget import Budget
from formation_p2p.leases.core.lease import LeaseState
from formation_p2p.leases.core.messages import (
    Commit,
    CommitRefused,
    Leased,
    LeaseEnded,
    Offer,
    PlacementRequest,
    Release,
    Renew,
    RequestRefused,
)
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS, LeaseParameters
from formation_p2p.leases.core.session import Fence, Received
from formation_p2p.machine.core.capability import Capability
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.trust.core.admission import AdmissionController
from formation_p2p.trust.core.grants import Rights, bind, issue
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.network import Network
from formation_p2p.trust.core.quota import UNLIMITED, Quota
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.scope import Scope, ScopeShares
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from tests.support.stories import (
    BOB,
    CAROL,
    DAVE,
    MALLORY,
    NEEDS,
    at,
    at_work,
    ends,
    free,
    identity,
    is_idle,
    job,
    name_of,
    only,
    passed,
    peer_of,
    sent,
    town,
    worker_of,
    workers_of,
)
from tests.unit.test_negotiation_lessor import MACHINE, Alice

HOLD_S = LEASE_DEFAULTS.hold_s
ALL = replace(NEEDS, cpu_milli=2000)
ROOT = identity("root")
CREW = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 60)]


class Guarded(Alice):
    """Everybody shows a grant of their own, of one of two invitations."""

    def __init__(
        self,
        parameters: LeaseParameters = LEASE_DEFAULTS,
        capability: Capability = MACHINE,
        quota: Quota = UNLIMITED,
        budget: Budget | None = None,
    ) -> None:
        admission = AdmissionController(Membership(ROOT.public_key), {})
        super().__init__(capability, admission, parameters, budget)
        first, second = (issue(ROOT, Rights(10**10 + n, quota=quota)) for n in range(2))
        self.invitations = {BOB: first, CAROL: second}

    def ask(
        self,
        who: Contact,
        now_s: float,
        *,
        of: Contact = BOB,
        needs: Requirements = ALL,
        priority: int = 0,
    ) -> Offer | RequestRefused:
        grant = bind(self.invitations[of], ROOT.public_key, who.peer_id)
        request = PlacementRequest(1, needs, grant, priority)
        ((_, answer),) = sent(self.lessor.requested(who, request, at(now_s)))
        assert isinstance(answer, Offer | RequestRefused)
        self.lessor.validate()
        return answer

    def offered(self, who: Contact, now_s: float, **asked: object) -> str:
        answer = self.ask(who, now_s, **asked)  # type: ignore[arg-type]
        assert isinstance(answer, Offer), answer
        return answer.lease_id

    def refused(self, who: Contact, now_s: float, **asked: object) -> object:
        answer = self.ask(who, now_s, **asked)  # type: ignore[arg-type]
        assert isinstance(answer, RequestRefused), answer
        return answer.refusal

    def commit(self, who: Contact, lease_id: str, now_s: float) -> Leased | CommitRefused:
        ((_, answer),) = sent(self.lessor.committed(who, Commit(lease_id), at(now_s)))
        assert isinstance(answer, Leased | CommitRefused)
        self.lessor.validate()
        return answer

    def lapse(self, who: Contact, now_s: float, **asked: object) -> float:
        """An offer that is not committed to. Returns when it is over."""
        self.offered(who, now_s, **asked)
        self.lessor.tick(at(now_s + HOLD_S))
        return now_s + HOLD_S


@pytest.fixture
def alice() -> Guarded:
    return Guarded()


# -- what is not kept ---------------------------------------------------------------------------


def test_who_let_one_lapse_is_offered_more_and_nothing_is_kept_for_it(alice: Guarded) -> None:
    now_s = alice.lapse(MALLORY, 0)
    first = alice.offered(MALLORY, now_s)
    assert alice.free_milli == 2000
    others = alice.offered(CAROL, now_s, of=CAROL)
    assert isinstance(alice.commit(CAROL, others, now_s), Leased)
    answer = alice.commit(MALLORY, first, now_s)
    assert isinstance(answer, CommitRefused)
    assert "others took it" in str(answer.refusal)
    assert alice.state(first) is LeaseState.ENDED


def test_what_was_not_kept_is_leased_where_it_is_still_free(alice: Guarded) -> None:
    now_s = alice.lapse(BOB, 0)
    lease_id = alice.offered(BOB, now_s)
    assert isinstance(alice.commit(BOB, lease_id, now_s), Leased)
    assert alice.free_milli == 0
    assert isinstance(alice.commit(BOB, lease_id, now_s), Leased)  # said again
    assert alice.lessor.released(BOB, Release(lease_id), at(now_s)) == [Fence(lease_id, cause="")]
    alice.lessor.fenced(lease_id)
    alice.lessor.validate()
    assert alice.free_milli == 2000


def test_an_offer_that_is_not_kept_gives_the_devices_that_it_named_or_none() -> None:
    gpus = tuple(Gpu(name, "nvidia", "a100", 40 * GIB, 80) for name in ("G0", "G1"))
    one = replace(NEEDS, gpu_count=1)
    for taken, kind in (("G0", CommitRefused), ("G1", Leased)):
        alice = Guarded(capability=replace(MACHINE, cpu_milli=9000, gpus=gpus))
        now_s = alice.lapse(MALLORY, 0, needs=replace(NEEDS, gpu_count=2))
        answer = alice.ask(MALLORY, now_s, needs=one)
        assert isinstance(answer, Offer)
        assert answer.holds.device_ids == ("G0",)
        first = alice.offered(CAROL, now_s, of=CAROL, needs=one)
        second = alice.offered(CAROL, now_s, of=CAROL, needs=one)
        by_device = dict(zip(("G0", "G1"), (first, second), strict=True))
        assert isinstance(alice.commit(CAROL, by_device.pop(taken), now_s), Leased)
        alice.lessor.released(CAROL, Release(*by_device.values()), at(now_s))
        assert isinstance(alice.commit(MALLORY, answer.lease_id, now_s), kind)


def test_what_is_not_kept_and_finds_the_ledger_full_is_gone(alice: Guarded) -> None:
    now_s = alice.lapse(BOB, 0)
    lease_id = alice.offered(BOB, now_s)
    alice.lessor.ledger.max_reservations = 0
    assert isinstance(alice.commit(BOB, lease_id, now_s), CommitRefused)


def test_what_is_not_kept_and_finds_the_share_of_its_scope_used_is_refused() -> None:
    half = Budget(ScopeShares.parse(["commons=0.5"]), 2000, lambda *who: Scope.COMMONS)
    alice = Guarded(budget=half)
    now_s = alice.lapse(BOB, 0)
    lease_id = alice.offered(BOB, now_s)
    half.opened("another", b"", CAROL.peer_id, 1000)
    ((_, answer),) = sent(alice.lessor.committed(BOB, Commit(lease_id), at(now_s)))
    assert answer == CommitRefused(lease_id, Infeasible("share.commons", 2000, 0))


def test_what_is_given_back_at_once_costs_little(alice: Guarded) -> None:
    """As every round does of which another worker's offer was the better one."""
    for number in range(20):
        lease_id = alice.offered(BOB, number * 0.05)
        alice.lessor.released(BOB, Release(lease_id), at(number * 0.05 + 0.05))
    alice.offered(BOB, 2)
    assert alice.free_milli == 0


def test_what_is_held_and_given_back_just_in_time_counts_as_long_as_it_was(alice: Guarded) -> None:
    now_s = 0.0
    for _ in range(2):
        lease_id = alice.offered(MALLORY, now_s)
        now_s += HOLD_S - 0.1
        alice.lessor.released(MALLORY, Release(lease_id), at(now_s))
    alice.offered(MALLORY, now_s)
    assert alice.free_milli == 2000


def test_a_small_part_of_a_machine_may_lapse_more_often(alice: Guarded) -> None:
    for number in range(8):
        alice.lapse(BOB, number * HOLD_S, needs=replace(NEEDS, cpu_milli=100, memory_bytes=1))
    alice.offered(BOB, 8 * HOLD_S)
    assert alice.free_milli == 0


def test_all_is_forgotten_in_time(alice: Guarded) -> None:
    now_s = alice.lapse(MALLORY, 0)
    alice.lapse(MALLORY, now_s)
    alice.offered(MALLORY, 60)
    assert alice.free_milli == 0


# -- who answers for whom -----------------------------------------------------------------------


def test_other_bearers_of_the_same_invitation_answer_for_each_other(alice: Guarded) -> None:
    now_s = alice.lapse(MALLORY, 0)
    alice.offered(DAVE, now_s)
    assert alice.free_milli == 2000
    alice.offered(CAROL, now_s, of=CAROL)  # and those of another do not
    assert alice.free_milli == 0


def test_who_committed_lately_answers_for_itself_alone(alice: Guarded) -> None:
    lease_id = alice.offered(DAVE, 0)
    alice.commit(DAVE, lease_id, 0)
    alice.lessor.released(DAVE, Release(lease_id), at(1))
    alice.lessor.fenced(lease_id)
    now_s = alice.lapse(MALLORY, 1)
    alice.offered(DAVE, now_s)
    assert alice.free_milli == 0
    alice.lessor.tick(at(now_s + HOLD_S))
    alice.offered(DAVE, now_s + HOLD_S)
    assert alice.free_milli == 2000


def test_an_invitation_has_so_many_offers_open_but_for_those_who_committed() -> None:
    alice = Guarded(
        LeaseParameters(max_offers_per_invitation=3),
        Capability(cpu_milli=100_000, memory_bytes=64 * GIB),
    )
    tiny = replace(NEEDS, cpu_milli=1, memory_bytes=1)
    alice.commit(DAVE, alice.offered(DAVE, 0, needs=tiny), 0)
    crew = [Contact(each.peer_id) for each in CREW[:4]]
    for member in crew[:3]:
        alice.offered(member, 0, needs=tiny)
    full = Busy("the table of your invitation's open offers", 3)
    assert alice.refused(crew[3], 0, needs=tiny) == full
    alice.offered(DAVE, 0, needs=tiny)
    alice.offered(CAROL, 0, of=CAROL, needs=tiny)


def test_who_goes_on_is_left_waiting_and_told_for_how_long(alice: Guarded) -> None:
    now_s = 0.0
    for _ in range(5):
        now_s = alice.lapse(MALLORY, now_s)
    refusal = alice.refused(MALLORY, now_s)
    assert isinstance(refusal, Denied)
    assert refusal.retry_ms is not None
    assert 1000 < refusal.retry_ms < 10_000
    alice.offered(MALLORY, now_s + refusal.retry_ms / 1000 + 0.001)


def test_what_is_remembered_is_bounded() -> None:
    alice = Guarded(LeaseParameters(max_standings=2))
    now_s = alice.lapse(MALLORY, 0)
    for member in crew(2):
        alice.lapse(member, now_s)
    assert len(alice.lessor.standing) == 2 + 1  # owners, and their invitation
    for member in crew(3):
        lease_id = alice.offered(member, 100, needs=replace(NEEDS, cpu_milli=1))
        alice.commit(member, lease_id, 100)
    assert len(alice.lessor.standing) == 2 + 1 + 2


# -- what else a lease is counted for -------------------------------------------------------------


def test_what_is_not_kept_takes_nothing_of_a_shared_quota() -> None:
    alice = Guarded(quota=Quota(leases=1))
    now_s = alice.lapse(MALLORY, 0)
    first = alice.offered(MALLORY, now_s)
    second = alice.offered(DAVE, now_s)
    assert isinstance(alice.commit(DAVE, second, now_s), Leased)
    answer = alice.commit(MALLORY, first, now_s)
    assert isinstance(answer, CommitRefused)
    assert isinstance(answer.refusal, Denied)


# -- wants ----------------------------------------------------------------------------------------


def leased_to_carol(alice: Guarded) -> str:
    lease_id = alice.offered(CAROL, 0, of=CAROL)
    alice.commit(CAROL, lease_id, 0)
    return lease_id


def renewed(alice: Guarded, lease_id: str, now: Moment) -> bool:
    return len(alice.lessor.renewed(CAROL, Renew(lease_id, 1), now)) == 1


def test_who_let_offers_lapse_has_no_work_give_way_to_it(alice: Guarded) -> None:
    alice.lapse(MALLORY, 0)
    lease_id = alice.offered(CAROL, HOLD_S, of=CAROL)
    alice.commit(CAROL, lease_id, HOLD_S)
    assert alice.refused(MALLORY, 2, priority=9) == Infeasible("cpu", 2000, 0)
    assert alice.refused(DAVE, 2, priority=9) == Infeasible("cpu", 2000, 0)
    assert renewed(alice, lease_id, at(8))


def test_a_want_that_its_owner_forgets_is_an_offer_that_lapsed(alice: Guarded) -> None:
    lease_id = leased_to_carol(alice)
    assert isinstance(alice.refused(MALLORY, 1, priority=9), GivingWay)
    assert alice.refused(MALLORY, 12, priority=0) == Infeasible("cpu", 2000, 0)
    assert alice.refused(MALLORY, 12, priority=9) == Infeasible("cpu", 2000, 0)
    assert renewed(alice, lease_id, at(12))


def crew(count: int) -> Sequence[Contact]:
    return [Contact(each.peer_id) for each in CREW[:count]]


def test_a_crew_of_one_invitation_keeps_nothing_from_those_of_another(alice: Guarded) -> None:
    """Ids without end: each asks for all there is, again and again, and commits to nothing."""
    now_s, waited_s = 0.0, 0.0
    for number, member in enumerate(crew(50)):
        alice.ask(member, now_s)
        answer = alice.ask(CAROL, now_s, of=CAROL)
        if isinstance(answer, RequestRefused):
            waited_s += 0.1
        else:
            assert isinstance(alice.commit(CAROL, answer.lease_id, now_s), Leased)
            alice.lessor.released(CAROL, Release(answer.lease_id), at(now_s))
            alice.lessor.fenced(answer.lease_id)
        now_s = 0.1 * (number + 1)
        alice.lessor.tick(at(now_s))
    assert waited_s <= HOLD_S + 0.1


# Members who ask for whole machines and commit to nothing, and how long honest jobs take then.


TASK_S = 0.1
# An honest job with a squatter in the network.
TARGET_S = 3.0
HALF = replace(NEEDS, cpu_milli=1000)
EVERY_S = 0.1


class Mute(Peer):
    """Says nothing of offers: neither does it take one, nor give it back."""

    def handle(self, event: PeerEvent, now: Moment) -> list[PeerEffect]:
        if isinstance(event, Received) and isinstance(event.message, Offer | RequestRefused):
            return []
        return super().handle(event, now)


class Town:
    """Two workers, bob, who is honest, and squatters with an invitation of their own, or with that
    of bob."""

    def __init__(self, squatters: int, priority: int = 0, *, shared: bool = False) -> None:
        self.world = World(7, lambda running: (TASK_S, Succeeded(b"")))
        self.invitation = issue(self.world.root, Rights(int(EPOCH_UNIX_S) + 10**7))
        self.world.add("gate")
        self.machine = self.world.machine(cpu=2)
        self.workers = [self.world.add(name, serve=self.machine) for name in ("alice", "carol")]
        self.dave = self.world.add("dave")
        if shared:
            self.world.peer = self.invited
        self.bob = self.world.add("bob")
        self.world.peer = Mute
        self.squatters = [self.world.add(f"mallory {n}") for n in range(squatters)]
        root = self.world.root.public_key
        self.grants = [
            bind(self.invitation, root, each.identity.peer_id) for each in self.squatters
        ]
        self.priority = priority
        self.asked = 0
        self.world.elapse(20)  # so that all know each other

    def invited(
        self, identity: Identity, network: Network, rng: random.Random, **options: Any
    ) -> Peer:
        root = network.root_public_key
        grant = bind(self.invitation, root, identity.peer_id)
        return Peer(identity, Network(root, (), grant), rng, **options)

    def squat(self) -> None:
        """One of them after the other asks every worker for all that it has."""
        number = self.asked // len(self.workers) % len(self.squatters)
        who, grant = self.squatters[number], self.grants[number]
        worker = self.workers[self.asked % len(self.workers)]
        self.asked += 1
        request = PlacementRequest(self.asked, ALL, grant, self.priority)
        self.world.deliver(worker, Received(who.contact, request))
        self.world.after(EVERY_S / len(self.workers), self.squat)

    def keep_busy(self, number: int = 0) -> None:
        """Dave, of another invitation, has all cores at work, and now and then none."""
        self.dave.submit(job(12, job_id=f"dave's {number}", needs=HALF))
        self.world.after(12 * TASK_S, self.keep_busy, number + 1)

    def restart(self, number: int) -> None:
        """A worker, which knows no more who committed to what."""
        worker = self.workers[number % len(self.workers)]
        self.world.kill(worker)
        self.world.restart(worker, self.machine)

    def took_s(self, number: int, needs: Requirements = ALL) -> float:
        """A job of bob's, of two tasks: as a rule of as many whole machines as there are."""
        began_s, done = self.world.now_s, len(only(self.bob.reported, TaskSucceeded))
        self.bob.submit(job(2, job_id=f"job {number}", needs=needs))
        while len(only(self.bob.reported, TaskSucceeded)) < done + 2:
            self.world.elapse(0.1)
            assert self.world.now_s < began_s + 60
        return self.world.now_s - began_s


@pytest.mark.at_length
@pytest.mark.parametrize(
    ("squatters", "priority", "shared"),
    [(1, 0, True), (1, 9, False), (12, 0, False), (12, 9, True)],
)
def test_an_honest_job_takes_three_seconds_at_most(
    squatters: int, priority: int, shared: bool
) -> None:
    town = Town(squatters, priority, shared=shared)
    town.squat()
    # The first one finds both machines taken a moment before it came.
    took_s = [town.took_s(0)]
    for number in range(1, 5):
        town.world.elapse(4.3)
        took_s.append(town.took_s(number))
    assert max(took_s) <= TARGET_S


def took_beside_others_s(squatters: int) -> list[float]:
    """Jobs of bob's, who shares the squatters' invitation, while the others are busy and one
    worker after the other has just restarted."""
    town = Town(max(squatters, 1), shared=True)
    if squatters:
        town.squat()
    town.keep_busy()
    took_s = []
    for number in range(6):
        town.restart(number)
        town.world.elapse(1.7)
        took_s.append(town.took_s(number, HALF))
    return took_s


@pytest.mark.at_length
def test_who_shares_their_invitation_waits_no_longer_than_without_them() -> None:
    quiet_s, took_s = took_beside_others_s(0), took_beside_others_s(12)
    assert max(took_s) <= max(quiet_s) + TARGET_S
    assert sum(took_s) / len(took_s) <= sum(quiet_s) / len(quiet_s) + 1.0


@pytest.mark.at_length
def test_whose_jobs_run_is_served_as_if_the_squatter_were_not_there() -> None:
    town = Town(1)
    quiet_s = town.took_s(0)
    town.world.elapse(5)
    town.squat()
    town.world.elapse(20)
    assert town.took_s(1) <= quiet_s + 0.1


# Leases between whole peers: prices, precedence, silence, and machines that sleep.


def lasting(seconds: float, **cores: int) -> World:
    return town(run=lambda running: (seconds, Succeeded(running.work.payload)), **cores)


def job_of(running: Running) -> str:
    return running.work.attempt_id.partition("/")[0]


def slow_and_quick(running: Running) -> tuple[float, Outcome]:
    """Tasks of the job `slow` take a minute, others a second."""
    return (60.0 if job_of(running) == "slow" else 1.0), Succeeded(running.work.payload)


# -- prices ---------------------------------------------------------------------------------


def shop(**prices: int) -> World:
    world = World(7)
    world.add("gate")
    for name, price in prices.items():
        world.add(name, serve=replace(world.machine(cpu=1), price_micro=price))
    world.add("bob")
    world.elapse(3)
    return world


@pytest.mark.at_length
def test_a_job_goes_to_nobody_who_is_dearer_than_it_may_be() -> None:
    world, bob = at_work(shop(alice=50, carol=100, dave=101), job(12, max_price_micro=100))
    world.elapse(30)
    assert len(only(bob.reported, TaskSucceeded)) == 12
    assert set(workers_of(bob)) == {"alice", "carol"}
    # Whose own profile says that it is too dear is not even asked.
    assert passed(world, "bob", "dave") == []


@pytest.mark.at_length
def test_where_all_are_too_dear_the_person_is_told_and_the_workers_are_not() -> None:
    world, bob = at_work(shop(alice=500), job(max_price_micro=424242 // 1000), for_s=30)
    (unplaceable,) = only(bob.reported, TaskUnplaceable)
    ((worker, why),) = unplaceable.reasons
    assert (name_of(world, worker), why) == ("alice", TooDear(500, 424))
    assert str(why) == "too dear: asks 0.0005 for a core-hour, of at most 0.000424"


@pytest.mark.at_length
def test_a_worker_that_asks_more_than_its_profile_says_is_refused() -> None:
    world = shop(alice=50)
    bob, alice = world.nodes["bob"], world.nodes["alice"]
    worker_of(alice).lessor.price_micro = 90
    bob.submit(job(max_price_micro=60))
    world.elapse(5)
    assert only(bob.reported, TaskSucceeded) == []
    offers = [x for x in passed(world, "alice", "bob") if isinstance(x, Offer)]
    assert offers
    assert not any(isinstance(x, Leased) for x in passed(world, "alice", "bob"))
    assert free(alice).cpu_milli == 1000


@pytest.mark.at_length
def test_jobs_of_different_limits_share_no_lease() -> None:
    """Else the cheaper one would run on what the dearer one took."""
    world, bob = at_work(shop(alice=50))
    bob.submit(job(3, job_id="rich", max_price_micro=60))
    bob.submit(job(1, job_id="poor", max_price_micro=40))
    world.elapse(30)
    ended = ends(bob)
    assert [type(ended[f"rich/{n}"]) for n in range(3)] == [TaskSucceeded] * 3
    assert isinstance(ended["poor/0"], TaskUnplaceable)


# -- precedence -----------------------------------------------------------------------------


def busy_with_bobs(priority: int = 0) -> tuple[World, SimNode, SimNode]:
    """alice's one core has begun with a minute's work of bob's, who is to meet carol."""
    world = town(run=slow_and_quick, alice=1)
    bob, carol = world.nodes["bob"], world.add("carol")
    world.elapse(2)
    bob.submit(job(job_id="slow", priority=priority))
    world.elapse(2)
    return world, bob, carol


@pytest.mark.at_length
def test_more_urgent_work_takes_the_place_of_less_urgent_at_the_next_renewal() -> None:
    world, bob, carol = busy_with_bobs()
    alice = world.nodes["alice"]
    carol.submit(job(job_id="quick", priority=5))
    world.elapse(0.5)
    (refused,) = [x for x in passed(world, "alice", "carol") if isinstance(x, RequestRefused)]
    assert isinstance(refused.refusal, GivingWay)
    assert alice.running  # bob's task goes on for now
    world.elapse(LEASE_DEFAULTS.lease_s)
    assert isinstance(ends(carol)["quick/0"], TaskSucceeded)
    reported = [x.refusal for x in passed(world, "alice", "bob") if isinstance(x, LeaseEnded)]
    assert reported == [Preempted(5)]
    asked = [x for x in passed(world, "carol", "alice") if isinstance(x, PlacementRequest)]
    assert len(asked) <= 4  # she came back when she was told to, and not all the time
    # bob's task is placed again, and having had to make room is not held against it.
    world.elapse(90)
    assert isinstance(ends(bob)["slow/0"], TaskSucceeded)
    (retried,) = only(bob.reported, TaskRetried)
    assert retried.attempt.why == "it gave way to work of priority 5"
    world.elapse(LEASE_DEFAULTS.lease_s + 1)
    assert is_idle(alice)


# -- silence and failure ----------------------------------------------------------------------


@pytest.mark.at_length
def test_any_message_from_a_worker_is_a_sign_of_life() -> None:
    world = lasting(1, alice=1)
    bob, alice = world.nodes["bob"], world.nodes["alice"]
    world.suspend(alice)
    bob.submit(job())
    world.elapse(12)
    (group,) = peer_of(bob).scheduler.groups.values()
    assert group.candidates.next_askable_s() == float("inf")
    asked = RequestReceived(10**6, alice.contact, Ping())
    peer_of(bob).handle(asked, at(world.now_s))
    assert group.wake_s == group.candidates.next_askable_s() < world.now_s + 10


@pytest.mark.at_length
def test_a_worker_that_fails_all_it_takes_does_not_draw_every_task() -> None:
    """It is soon done with each, and would be free for the next all the time."""

    def run(running: Running) -> tuple[float, Outcome]:
        bad = running.key in world.nodes["alice"].running
        if bad:
            return 0.001, Failed(FailureKind.DRIVER, "no space left on device")
        return 1.0, Succeeded(running.work.payload)

    world, bob = at_work(town(run=run, alice=1, carol=1), job(20))
    world.elapse(60)
    assert len(only(bob.reported, TaskSucceeded)) == 20
    placed = workers_of(bob)
    assert placed.count("alice") <= 8
    assert placed.count("carol") == 20


# -- machines that sleep ----------------------------------------------------------------------


@pytest.mark.at_length
def test_a_worker_that_slept_through_its_lease_ends_what_ran_before_it_hears_anything() -> None:
    world, bob = at_work(lasting(30, alice=1, carol=1), job(), for_s=1)
    (first,) = workers_of(bob)
    sleeper = world.nodes[first]
    world.suspend(sleeper)
    world.elapse(LEASE_DEFAULTS.lease_s + 20)  # elsewhere the task is under way again
    assert workers_of(bob) != [first]
    world.resume(sleeper)
    world.elapse(0.1)
    assert not sleeper.running
    world.elapse(60)
    assert isinstance(ends(bob)["job/0"], TaskSucceeded)  # once: `ends` sees to that
    assert is_idle(sleeper)
