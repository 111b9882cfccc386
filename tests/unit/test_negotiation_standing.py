"""Who lets offers lapse: alice keeps nothing for them any more, and serves the others meanwhile."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import Identity
from formation_p2p.core.refusals import Busy, Denied, GivingWay, Infeasible
from formation_p2p.core.units import GIB
from formation_p2p.jobs.core.job_events import TaskSucceeded
from formation_p2p.leases.core.lease import LeaseState
from formation_p2p.leases.core.messages import (
    Commit,
    CommitRefused,
    Leased,
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
from formation_p2p.peer.core.effects import PeerEffect
from formation_p2p.peer.core.events import PeerEvent
from formation_p2p.peer.core.peer import Peer
from formation_p2p.trust.core.admission import AdmissionController
from formation_p2p.trust.core.grants import Rights, bind, issue
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.network import Network
from formation_p2p.trust.core.quota import UNLIMITED, Quota
from formation_p2p.workload.core.outcome import Succeeded
from simulations.simulator.world import EPOCH_UNIX_S, World
from tests.support.stories import BOB, CAROL, DAVE, MALLORY, NEEDS, at, identity, job, only, sent
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
    ) -> None:
        super().__init__(
            capability, AdmissionController(Membership(ROOT.public_key), {}), parameters
        )
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


def test_a_first_offer_is_kept_and_others_are_told_when_it_ends(alice: Guarded) -> None:
    alice.offered(MALLORY, 0)
    assert alice.free_milli == 0
    assert alice.refused(CAROL, 0.5, of=CAROL) == GivingWay("cpu", 1000)
    alice.lessor.tick(at(HOLD_S))
    assert alice.commit(CAROL, alice.offered(CAROL, HOLD_S, of=CAROL), HOLD_S + 0.1)


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


def test_room_that_is_about_to_come_back_is_told_of() -> None:
    alice = Guarded()
    lease_id = leased_to_carol(alice)
    now_s = 1.0
    alice.lessor.released(CAROL, Release(lease_id), at(now_s))
    assert alice.refused(BOB, now_s) == GivingWay("cpu", 500)
    assert alice.free_milli == 0


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
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("priority", [0, 9])
@pytest.mark.parametrize("squatters", [1, 12])
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
    for number in range(12):
        town.restart(number)
        town.world.elapse(1.7)
        took_s.append(town.took_s(number, HALF))
    return took_s


@pytest.mark.at_length
def test_who_shares_their_invitation_waits_no_longer_than_without_them() -> None:
    quiet_s = took_beside_others_s(0)
    for squatters in (1, 12):
        took_s = took_beside_others_s(squatters)
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
