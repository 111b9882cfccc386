"""Equals take turns: a lease gives way to who is further below his share, after a slice.

alice has two cores; bob, carol and dave ask for them.
"""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId, short_id
from formation_p2p.core.refusals import GivingWay, Infeasible, PeerRefusal, Preempted, Unwanted
from formation_p2p.core.units import GIB
from formation_p2p.leases.core.held import HeldResources, shortfall
from formation_p2p.leases.core.lease import LeaseState
from formation_p2p.leases.core.lessee import Lessee, RoundClosed
from formation_p2p.leases.core.lessor import Lessor, LessorEffect
from formation_p2p.leases.core.messages import (
    MAX_MS,
    Commit,
    CommitRefused,
    Leased,
    LeaseEnded,
    Offer,
    PlacementRequest,
    Release,
    Renew,
    Renewed,
    RequestRefused,
    WorkMessage,
    waiting_id,
)
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS, LeaseParameters
from formation_p2p.leases.core.precedence import FairShare, Seniority
from formation_p2p.leases.core.preemption import to_displace
from formation_p2p.leases.core.session import Fence, Send
from formation_p2p.leases.core.waiting import Wait, Waiting
from formation_p2p.machine.core.capability import Capability, idle
from formation_p2p.machine.core.fits import Ledger, Reservation
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.records.core.codec import MAX_INT
from formation_p2p.trust.core.shares import Shares
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.hints import Hints
from tests.support import resources_world
from tests.support.resources_world import a100, h100, machine
from tests.support.stories import ALICE, BOB, CAROL, DAVE, NEEDS, Lenient, at, sent, unshared
from tests.unit.test_negotiation_lessor import ALL, Alice, Porter

SLICE_S = LEASE_DEFAULTS.slice_s


class Ceiling(Porter):
    """Whose grants allow priorities up to 100."""

    def ceiling(self, grant: bytes, priority: int) -> int:
        return 100


class Busy(Alice):
    """bob has all of her, in one lease or in two."""

    def __init__(self, needs: Requirements = ALL, priority: int = 0, wants: int = 16) -> None:
        super().__init__(admission=Ceiling(), parameters=LeaseParameters(max_wants=wants))
        count = 1 if needs == ALL else 2
        self.leases = [self.lease(needs=needs, priority=priority) for _ in range(count)]
        self.told: list[tuple[str, WorkMessage]] = []

    def asks(
        self, now_s: float, who: Contact = DAVE, needs: Requirements = NEEDS, name: str = ""
    ) -> Offer | PeerRefusal:
        """Also keeps what others are told meanwhile. All leases are renewed before."""
        request = PlacementRequest(1, needs, b"a grant", 0, (), name)
        (_, answer), *others = sent(self.lessor.requested(who, request, at(now_s)))
        self.told += [(str(peer_id), message) for peer_id, message in others]
        assert isinstance(answer, Offer | RequestRefused)
        return answer if isinstance(answer, Offer) else answer.refusal

    def renews(self, now_s: float, lease_id: str = "", who: Contact = BOB) -> WorkMessage:
        lease_id = lease_id or self.leases[0]
        fence = next(x.fence for x in self.lessor if x.lease_id == lease_id)
        message = Renew(lease_id, fence)
        return sent([self.lessor.renewed(who, message, at(now_s))[0]])[0][1]

    def upto(self, now_s: float, after_s: float = 0.0) -> None:
        """bob renews all that he has."""
        for second in range(int(after_s), int(now_s) + 1, 5):
            for each in self.leases:
                self.renews(second, each)

    def end(self, lease_id: str, now_s: float = 0.0) -> None:
        """Its owner gives it back, and nothing runs any more."""
        (lease,) = (x for x in self.lessor if x.lease_id == lease_id)
        self.lessor.released(lease.owner, Release(lease_id), at(now_s or lease.expires_s - 10))
        self.lessor.fenced(lease_id)
        self.leases = [each for each in self.leases if each != lease_id]

    def takes(self, now_s: float, who: Contact = DAVE, needs: Requirements = NEEDS) -> str:
        offer = self.asks(now_s, who, needs)
        assert isinstance(offer, Offer)
        ((_, answer),) = sent(self.lessor.committed(who, Commit(offer.lease_id), at(now_s)))
        assert isinstance(answer, Leased)
        return offer.lease_id


def yields(message: WorkMessage) -> int | None:
    assert isinstance(message, Renewed)
    return message.yields_ms


def test_one_who_waits_hears_after_whose_slice_and_when() -> None:
    alice = Busy()
    alice.upto(20)
    refusal = alice.asks(20)
    assert refusal == GivingWay("cpu", 800, (short_id(BOB.peer_id), 40_000))
    assert str(refusal) == f"cpu: taken; after {short_id(BOB.peer_id)}'s slice, in 40 s"
    assert alice.asks(24) == GivingWay("cpu", 4000, (short_id(BOB.peer_id), 36_000))
    assert yields(alice.renews(25)) is None


def test_after_the_slice_the_owner_is_told_and_the_lease_ends_after_what_runs() -> None:
    alice = Busy()
    alice.upto(60)
    asked = alice.asks(61, name="dave")
    assert asked == GivingWay("cpu", 800, (short_id(BOB.peer_id), 30_000))
    assert alice.told == [(BOB.peer_id, Renewed(alice.leases[0], 0, 512, 30_000))]
    alice.asks(62)
    assert len(alice.told) == 1, "told once"
    assert yields(alice.renews(65)) == 26_000
    alice.asks(66, name="dave")
    alice.idle.add(alice.leases[0])
    assert alice.renews(68) == LeaseEnded(alice.leases[0], Preempted(0, "dave"))


def test_what_runs_for_too_long_is_cut_off_and_its_owner_has_twice_as_long_then() -> None:
    alice = Busy()
    alice.upto(60)
    for second in range(61, 92):
        alice.asks(second)
        if second % 5 == 0:
            alice.renews(second)
    ended = alice.renews(92)
    assert ended == LeaseEnded(alice.leases[0], Preempted(0, short_id(DAVE.peer_id)))
    assert "further below its share" in str(Preempted(0, "dave"))
    alice.lessor.fenced(alice.leases[0])
    alice.takes(93)
    alice.leases = [alice.takes(93, BOB)]
    alice.upto(99, 95)
    assert alice.asks(100, CAROL, ALL) == GivingWay("cpu", 800, (short_id(BOB.peer_id), 113_000))


def test_a_lease_stays_where_the_other_gives_up() -> None:
    alice = Busy()
    alice.upto(60)
    alice.asks(61)
    assert yields(alice.renews(62)) == 29_000
    assert yields(alice.renews(71.5)) is None


def test_a_lease_stays_at_once_where_the_other_says_that_it_waits_no_more() -> None:
    alice = Busy()
    alice.upto(60)
    alice.asks(61)
    assert [wait.owner for wait in alice.lessor.waits(at(61))] == [DAVE.peer_id]
    withdrawn = Release(waiting_id(1))
    assert alice.lessor.released(CAROL, withdrawn, at(61.5)) == []
    assert alice.lessor.released(DAVE, Release(waiting_id(2)), at(61.5)) == []
    told = sent(alice.lessor.released(DAVE, withdrawn, at(62)))
    assert told == [(BOB.peer_id, Renewed(alice.leases[0], 0, 512, None))]
    assert alice.lessor.waits(at(62)) == []
    assert yields(alice.renews(62)) is None
    assert alice.lessor.released(DAVE, withdrawn, at(62)) == []
    alice.asks(63)
    assert [wait.since_s for wait in alice.lessor.waits(at(63))] == [63], "it waits anew"


def test_a_lease_goes_on_giving_way_where_another_waits_as_well() -> None:
    alice = Busy()
    alice.upto(60)
    alice.asks(61)
    alice.asks(61, CAROL)
    assert alice.lessor.released(DAVE, Release(waiting_id(1)), at(62)) == []
    assert yields(alice.renews(62)) == 29_000


def test_nothing_gives_way_to_an_owner_whose_connection_has_ended() -> None:
    alice = Busy()
    alice.upto(60)
    alice.asks(61)
    assert len(sent(alice.lessor.disconnected(DAVE.peer_id, at(62)))) == 1
    assert alice.lessor.disconnected(CAROL.peer_id, at(62)) == []
    assert alice.lessor.waits(at(62)) == []
    assert yields(alice.renews(62)) is None
    alice.asks(64)
    assert [wait.since_s for wait in alice.lessor.waits(at(64))] == [61], "it is here again"


def test_of_two_leases_one_gives_way_for_one_core_and_room_is_kept_for_that() -> None:
    alice = Busy(NEEDS)
    alice.upto(60)
    assert isinstance(alice.asks(61), GivingWay)
    first = [message for _, message in alice.told]
    assert len(first) == 1
    (gives_way,) = (x for x in alice.lessor if x.yields_s is not None)
    alice.end(gives_way.lease_id)
    assert alice.asks(62, BOB) == GivingWay("turn", 800), "it is dave's turn"
    assert isinstance(alice.asks(63), Offer)


def test_another_core_that_comes_free_is_not_withheld() -> None:
    """One lease gives way to dave; bob may have the other core."""
    alice = Busy(NEEDS)
    alice.upto(60)
    alice.asks(61)
    (stays,) = (x for x in alice.lessor if x.yields_s is None)
    alice.end(stays.lease_id)
    assert isinstance(alice.asks(62, BOB), Offer)


def test_equals_that_are_as_far_below_wait() -> None:
    """carol took the machine from bob, and bob is ahead of her: it is her turn for now."""
    alice = Busy()
    alice.upto(60)
    alice.end(alice.leases[0])
    carols = alice.takes(61, CAROL, ALL)
    for second in range(65, 100, 5):
        alice.renews(second, carols, CAROL)
        wait = alice.asks(second, BOB)
        assert isinstance(wait, GivingWay)
        name, left_ms = wait.turn or ("", 0)
        assert name == short_id(CAROL.peer_id)
    assert left_ms > 80_000, "when she will be ahead by as much as a slice"


def test_one_that_waited_for_a_slice_does_not_wait_for_a_lease_that_began_meanwhile() -> None:
    """bob's jobs follow each other closely."""
    alice = Busy()
    alice.upto(15)
    for second in range(20, 80, 5):
        alice.upto(second, second)
        alice.asks(second)
        if second == 50:
            alice.end(alice.leases[0])
            alice.leases = [alice.takes(50, BOB, ALL)]
    assert alice.asks(81) == GivingWay("cpu", 800, (short_id(BOB.peer_id), 30_000))


def test_a_gang_and_an_offer_and_ones_own_leases_do_not_give_way() -> None:
    alice = Alice()
    request = PlacementRequest(1, NEEDS, b"a grant", since_ms=1)
    ((_, offer),) = sent(alice.lessor.requested(BOB, request, at(0)))
    assert isinstance(offer, Offer)
    alice.lessor.committed(BOB, Commit(offer.lease_id), at(0))
    own = alice.lease()
    for second in (5, 10):
        for lease in list(alice.lessor):
            alice.lessor.renewed(BOB, Renew(lease.lease_id, lease.fence), at(second))
    assert alice.refusal(needs=ALL, now_s=12, to=DAVE) == Infeasible("cpu", 2000, 0)
    assert alice.refusal(needs=ALL, now_s=12, to=BOB) == Infeasible("cpu", 2000, 0)
    assert alice.state(own) is LeaseState.LEASED


def test_a_turn_that_is_not_kept_in_mind_has_no_lease_give_way() -> None:
    """The table of wants is full of what is as urgent."""
    alice = Busy(NEEDS, wants=1)
    alice.upto(60)
    assert isinstance(alice.asks(61, CAROL), GivingWay)
    assert isinstance(alice.asks(61, DAVE), GivingWay)
    assert len(alice.told) == 1


# -- ageing ------------------------------------------------------------------------------------


def refuse(waiting: Waiting, who: Contact, priority: int, now_s: float) -> None:
    since_s = waiting.since_s(who.peer_id, NEEDS, priority, at(now_s))
    answer = Infeasible("cpu", 1, 0)
    wait = Wait(who.peer_id, "", NEEDS, priority, priority, since_s, answer, "")
    waiting.refused(wait, at(now_s))


def test_priority_rises_with_waiting_up_to_a_ceiling() -> None:
    waiting = Waiting(LEASE_DEFAULTS)
    refuse(waiting, BOB, 1, 0)
    for second in range(0, 301, 30):
        refuse(waiting, BOB, 1, second)
    since_s = waiting.since_s(BOB.peer_id, NEEDS, 1, at(300))
    assert since_s == 0
    assert waiting.aged(since_s, 1, 100, at(300)) == 6
    assert waiting.aged(since_s, 1, 3, at(300)) == 3
    assert waiting.aged(since_s, 5, 3, at(300)) == 5, "never lower than it was asked with"
    assert waiting.since_s(BOB.peer_id, NEEDS, 1, at(346)) == 346, "it asked no more"
    waiting.served(BOB.peer_id, NEEDS, 1)
    assert waiting.since_s(BOB.peer_id, NEEDS, 1, at(301)) == 301
    assert len(waiting) == 0


def test_what_waits_is_remembered_within_bounds() -> None:
    waiting = Waiting(LeaseParameters(max_waits_per_owner=2, max_standings=2))
    for priority in range(3):
        refuse(waiting, BOB, priority, priority)
    assert waiting.since_s(BOB.peer_id, NEEDS, 0, at(5)) == 5
    assert waiting.since_s(BOB.peer_id, NEEDS, 1, at(5)) == 1
    for who in (CAROL, DAVE):
        refuse(waiting, who, 0, 5)
    assert waiting.since_s(BOB.peer_id, NEEDS, 1, at(6)) == 6
    waiting.served(CAROL.peer_id, NEEDS, 7)
    assert len(waiting) == 2


def test_what_waited_for_long_takes_its_turn_among_the_more_urgent_and_keeps_it_for_a_slice() -> (
    None
):
    alice = Busy(priority=3)
    for second in range(0, 180, 5):
        alice.upto(second, second)
        assert not yields(alice.renews(second))
        wait = alice.asks(second)
    assert wait == Infeasible("cpu", 1000, 0), "less urgent"
    alice.upto(180, 180)
    assert isinstance(alice.asks(180), GivingWay), "as urgent by now, and a slice is over"
    assert yields(alice.renews(181)) is not None
    alice.end(alice.leases[0])
    daves = alice.takes(182)
    (lease,) = (x for x in alice.lessor if x.lease_id == daves)
    assert (lease.priority_at(183), lease.priority_at(182 + SLICE_S)) == (3, 0)


# -- turns -------------------------------------------------------------------------------------


def test_an_owner_whose_tasks_are_cut_off_has_longer_slices_until_one_ends() -> None:
    fair = FairShare(Shares(), lambda needs: 1.0, LeaseParameters(max_doublings=2, max_standings=2))
    assert fair.slice_s(BOB.peer_id) == SLICE_S
    for _ in range(3):
        fair.cut(BOB.peer_id)
    assert fair.slice_s(BOB.peer_id) == 4 * SLICE_S
    fair.finished(BOB.peer_id)
    assert fair.slice_s(BOB.peer_id) == 2 * SLICE_S
    fair.finished(BOB.peer_id)
    fair.finished(BOB.peer_id)
    assert fair.slice_s(BOB.peer_id) == SLICE_S
    for who in (BOB, CAROL, DAVE):
        fair.cut(who.peer_id)
    assert fair.slice_s(BOB.peer_id) == SLICE_S, "forgotten"
    assert fair.slice_s(DAVE.peer_id) == 2 * SLICE_S


# What holds of leases whatever happens, in whatever order: both tables under random play.


MACHINE = machine(a100("G0"), h100("G1"), cpu_milli=4000)
owners = st.sampled_from([BOB, CAROL, DAVE])
wishes = st.builds(
    lambda cpu, gpus, share: Requirements(
        driver="process", cpu_milli=cpu, gpu_count=gpus, gpu_share_milli=share if gpus else 1000
    ),
    st.sampled_from([1000, 2000, 4000]),
    st.integers(0, 2),
    st.sampled_from([400, 1000]),
)


class Worker(RuleBasedStateMachine):
    """alice's lessor, and three schedulers who do as they please."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.lessor = Lessor(
            MACHINE,
            {},
            ("process",),
            Lenient(),
            random.Random(seed),
            unshared(MACHINE),
            lambda lease_id: int(lease_id, 16) % 2 == 0,
            price_micro=5,
        )
        self.now_s = 0.0
        self.offered: list[tuple[Contact, str, int]] = []
        self.fences: dict[str, int] = {}
        self.last_fence = 0
        self.ending: list[str] = []
        self.over: set[str] = set()

    def perform(self, effects: list[LessorEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Fence):
                assert effect.lease_id not in self.over, "it was fenced before"
                self.ending.append(effect.lease_id)
                self.over.add(effect.lease_id)

    @rule(owner=owners, needs=wishes, priority=st.sampled_from([0, 0, 3, 9]))
    def ask(self, owner: Contact, needs: Requirements, priority: int) -> None:
        request = PlacementRequest(1, needs, b"", priority)
        effects = self.lessor.requested(owner, request, at(self.now_s))
        ((_, answer),) = sent(effects[:1])
        self.perform(effects)
        if isinstance(answer, Offer):
            assert shortfall(answer.holds, needs) is None
            self.offered.append((owner, answer.lease_id, priority))

    @precondition(lambda self: self.offered)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        owner, lease_id, priority = data.draw(st.sampled_from(self.offered))
        ((_, answer),) = sent(self.lessor.committed(owner, Commit(lease_id), at(self.now_s)))
        if isinstance(answer, Leased):
            if lease_id in self.fences:  # said again
                assert answer.fence == self.fences[lease_id]
            else:
                assert answer.fence > self.last_fence
                self.last_fence = self.fences[lease_id] = answer.fence
            assert lease_id not in self.over
        else:
            assert isinstance(answer, CommitRefused)
            if isinstance(answer.refusal, Preempted):
                assert answer.refusal.priority > priority

    @precondition(lambda self: self.fences)
    @rule(data=st.data(), off_by=st.sampled_from([0, 0, 0, -1, 1]))
    def renew(self, data: st.DataObject, off_by: int) -> None:
        owner, lease_id, priority = data.draw(
            st.sampled_from([each for each in self.offered if each[1] in self.fences])
        )
        renew = Renew(lease_id, max(0, self.fences[lease_id] + off_by))
        effects = self.lessor.renewed(owner, renew, at(self.now_s))
        assert isinstance(effects[0], Send)
        answer = effects[0].message
        if isinstance(answer, Renewed):
            assert off_by == 0
            assert lease_id not in self.over
        else:
            assert isinstance(answer, LeaseEnded)
            if isinstance(answer.refusal, Preempted):
                assert answer.refusal.priority > priority
        self.perform(effects)

    @precondition(lambda self: self.offered)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        owner, lease_id, _ = data.draw(st.sampled_from(self.offered))
        self.perform(self.lessor.released(owner, Release(lease_id), at(self.now_s)))

    @precondition(lambda self: self.ending)
    @rule(data=st.data())
    def fenced(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(self.ending))
        self.ending.remove(lease_id)
        self.lessor.fenced(lease_id)

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, 5.0, 60.0]))
    def elapse(self, seconds: float) -> None:
        self.now_s += seconds
        self.perform(self.lessor.tick(at(self.now_s)))

    @invariant()
    def nothing_is_given_twice(self) -> None:
        leases = list(self.lessor)
        free = self.lessor.ledger.free
        kept = [lease for lease in leases if lease.kept]  # and other offers take nothing
        assert 0 <= free.cpu_milli == MACHINE.cpu_milli - sum(x.needs.cpu_milli for x in kept)
        assert free.memory_bytes >= 0
        shares: Counter[str] = Counter()
        for lease in leases:
            for claim in lease.reservation.gpus:
                shares[claim.device_id] += claim.share_milli * lease.kept
            assert len(set(lease.device_ids)) == lease.needs.gpu_count
        assert all(share <= 1000 for share in shares.values())

    @invariant()
    def only_the_fence_in_force_opens_a_lease(self) -> None:
        for owner, lease_id, _ in self.offered:
            lease = next((x for x in self.lessor if x.lease_id == lease_id), None)
            in_force = lease is not None and lease.state is LeaseState.LEASED
            for fence in range(self.last_fence + 2):
                opens = not hasattr(self.lessor.lease(owner, lease_id, fence), "why")
                assert opens == (in_force and fence == self.fences.get(lease_id))

    def teardown(self) -> None:
        """With nobody left, all that there was is free again."""
        if hasattr(self, "lessor"):
            self.perform(self.lessor.tick(at(self.now_s + LEASE_DEFAULTS.lease_s + 1)))
            for lease_id in self.ending:
                self.lessor.fenced(lease_id)
            assert self.lessor.ledger.free == idle(MACHINE)
            assert len(self.lessor) == 0


Worker.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestAWorker = Worker.TestCase


# -- what a scheduler commits to --------------------------------------------------------------

amounts = st.sampled_from([0, 1, 999, 1000, 1001, GIB - 1, GIB, 16 * GIB])
claimed = st.builds(
    HeldResources,
    amounts,
    amounts,
    amounts,
    amounts,
    st.lists(st.sampled_from(["G0", "G1", "G2"]), max_size=4).map(tuple),
    st.sampled_from([0, 333, 500, 1000]),
    amounts,
)
prices = st.sampled_from([0, 1, 100, 101, MAX_INT])
holds_ms = st.sampled_from([0, 1, 499, 500, 1500, 10_000, 10_001, MAX_MS])


@settings(max_examples=100)
@given(
    resources_world.needs,
    st.lists(st.tuples(claimed, prices, holds_ms), min_size=1, max_size=3),
    st.none() | st.sampled_from([0, 100]),
    st.integers(1, 3),
)
def test_a_scheduler_commits_to_nothing_less_and_nothing_dearer_than_it_asked_for(
    needs: Requirements,
    offers: list[tuple[HeldResources, int, int]],
    max_price_micro: int | None,
    wanted: int,
) -> None:
    lessee = Lessee(b"", random.Random(1))
    order = (ALICE, CAROL, DAVE)[: len(offers)]
    lessee.ask(order, SchedulingKey(needs, 0, max_price_micro), wanted=wanted, now=at(0), cause="")
    requests = sent(lessee.take()[0])
    said = {}
    for contact, (_, request), (holds, price, hold_ms) in zip(order, requests, offers, strict=True):
        assert isinstance(request, PlacementRequest)
        offer = Offer(request.request_id, f"of {contact.peer_id}", holds, price, hold_ms)
        said[contact.peer_id] = offer
        lessee.received(contact, offer, at(0.1))
    lessee.tick(at(3.0))
    effects, _ = lessee.take()
    committed = [to for to, message in sent(effects) if isinstance(message, Commit)]
    released = [to for to, message in sent(effects) if isinstance(message, Release)]
    assert sorted(committed + released) == sorted(said)  # each is answered, once
    assert len(committed) <= wanted
    for worker in committed:
        offer = said[worker]
        assert max_price_micro is None or offer.price_micro <= max_price_micro
        assert 500 <= offer.hold_ms <= 10_000
        holds = offer.holds
        assert holds.cpu_milli >= needs.cpu_milli
        assert holds.memory_bytes >= needs.memory_bytes
        assert holds.storage_bytes >= needs.storage_bytes
        assert holds.network_mbps >= needs.network_mbps
        assert len(holds.device_ids) == len(set(holds.device_ids)) == needs.gpu_count
        if needs.gpu_count:
            assert holds.gpu_share_milli >= needs.gpu_share_milli
            assert holds.gpu_memory_bytes >= needs.gpu_memory_bytes


# -- who gives way ----------------------------------------------------------------------------


@settings(max_examples=80)
@given(resources_world.capabilities, st.lists(resources_world.needs, max_size=6), st.data())
def test_those_who_give_way_are_enough_and_each_of_them_must(
    capability: Capability, holders: list[Requirements], data: st.DataObject
) -> None:
    ledger = Ledger(capability)
    held = [
        str(n)
        for n, needs in enumerate(holders)
        if isinstance(ledger.reserve(str(n), needs), Reservation)
    ]
    ending = [each for each in held if data.draw(st.booleans())]
    candidates = [each for each in held if each not in ending]
    needs = data.draw(resources_world.needs)

    def fits_without(gone: list[str]) -> bool:
        free = ledger.free
        for each in gone:
            free = ledger.with_back(free, each)
        return ledger.lacks(needs, free) is None

    displaced = to_displace(needs, ledger, ending, candidates)
    if displaced is None:
        assert not fits_without([*ending, *candidates])
        return
    assert set(displaced) <= set(candidates)
    assert fits_without([*ending, *displaced])
    for spared in displaced:
        assert not fits_without([*ending, *(x for x in displaced if x != spared)])


def test_the_machine_above_finds_a_fault_that_is_put_in() -> None:
    """A lessor that gives back what still runs is caught: the laws can fail."""
    worker = Worker()
    worker.begin(seed=1)
    worker.ask(BOB, Requirements(driver="process", cpu_milli=4000), 0)
    worker.lessor.ledger.release(worker.offered[0][1])
    worker.ask(CAROL, Requirements(driver="process", cpu_milli=4000), 0)
    with pytest.raises(AssertionError):
        worker.nothing_is_given_twice()


# Bob's tasks want to be near data, or near him: the offers say who is.

SMALL, LARGE = Blob(Cid(RAW, digest_of(b"s")), 100), Blob(Cid(RAW, digest_of(b"l")), 900)
NEAR = Hints(near=(SMALL, LARGE))
OFFERING = {ALICE.peer_id: "a1", CAROL.peer_id: "c1", DAVE.peer_id: "d1"}


class Bob:
    """He asks alice, carol and dave, who rank in this order, for one lease."""

    def __init__(self, hints: Hints, rtts_us: dict[PeerId, int] | None = None) -> None:
        known = rtts_us or {}

        def rtt_us(peer_id: PeerId, now: Moment) -> int | None:
            return known.get(peer_id)

        self.lessee = Lessee(b"a grant", random.Random(1), rtt_us)
        terms = SchedulingKey(NEEDS, hints=hints)
        self.lessee.ask((ALICE, CAROL, DAVE), terms, wanted=1, now=at(0), cause="")
        self.requests: dict[PeerId, PlacementRequest] = {}
        for to, message in sent(self.lessee.take()[0]):
            assert isinstance(message, PlacementRequest)
            self.requests[to] = message

    def hears(self, by: Contact, *there: int, now_s: float = 0.01) -> None:
        held = HeldResources(NEEDS.cpu_milli, NEEDS.memory_bytes, gpu_share_milli=1000)
        request_id = self.requests[by.peer_id].request_id
        offer = Offer(request_id, OFFERING[by.peer_id], held, 0, 1500, there)
        self.lessee.received(by, offer, at(now_s))

    def chose(self) -> str | None:
        """The lease that he committed to; None while he waits. All others are given back."""
        effects, events = self.lessee.take()
        if not events:
            assert effects == []
            return None
        messages = [message for _, message in sent(effects)]
        (commit,) = [each for each in messages if isinstance(each, Commit)]
        released = [each.lease_id for each in messages if isinstance(each, Release)]
        assert commit.lease_id not in released
        return commit.lease_id

    def closes(self) -> None:
        self.lessee.tick(at(0.01 + LEASE_DEFAULTS.deliberation_s))


def test_a_worker_is_told_what_data_is_wanted_only_where_some_is() -> None:
    assert {request.near for request in Bob(NEAR).requests.values()} == {(SMALL.cid, LARGE.cid)}
    assert {request.near for request in Bob(Hints()).requests.values()} == {()}


def test_who_has_more_of_the_data_is_taken_though_another_ranks_higher() -> None:
    bob = Bob(NEAR)
    bob.hears(ALICE, 0)
    bob.hears(CAROL, 1)
    assert bob.chose() is None  # dave may have all of it
    bob.hears(DAVE)
    assert bob.chose() == "c1"


def test_nobody_is_waited_for_who_cannot_have_more_or_takes_too_long() -> None:
    bob = Bob(NEAR)
    bob.hears(ALICE, 0, 1)
    assert bob.chose() == "a1"
    bob = Bob(NEAR)
    bob.hears(ALICE)
    bob.hears(CAROL, 0)
    bob.closes()
    assert bob.chose() == "c1"


def test_among_those_that_have_as_much_the_order_stands() -> None:
    bob = Bob(NEAR)
    bob.hears(DAVE, 1)
    bob.hears(CAROL, 1)
    bob.hears(ALICE)
    assert bob.chose() == "c1"


def test_whoever_is_to_be_avoided_is_taken_last_with_all_the_data() -> None:
    bob = Bob(replace(NEAR, avoid=(DAVE.peer_id,)))
    bob.hears(DAVE, 0, 1)
    bob.hears(CAROL)
    bob.hears(ALICE, 0)
    assert bob.chose() == "a1"


def test_a_worker_gains_nothing_by_places_that_there_are_not() -> None:
    bob = Bob(NEAR)
    bob.hears(DAVE, 0, 0, 0, 2, 15)
    bob.hears(CAROL, 1)
    bob.hears(ALICE, 0)
    assert bob.chose() == "c1"


def test_an_offer_without_the_data_that_is_required_is_turned_down() -> None:
    bob = Bob(replace(NEAR, required=frozenset({"near"})))
    bob.hears(ALICE, 1)
    bob.hears(CAROL)
    bob.hears(DAVE, 0, 1)
    effects, events = bob.lessee.take()
    assert [message for _, message in sent(effects)] == [Commit("d1"), Release("a1"), Release("c1")]
    (closed,) = events
    assert isinstance(closed, RoundClosed)
    assert closed.refusals == (
        (ALICE.peer_id, Unwanted("near", "it has 900B of 1000B")),
        (CAROL.peer_id, Unwanted("near", "it has 0B of 1000B")),
    )


def test_whoever_is_farther_than_is_required_is_turned_down() -> None:
    """Alice was measured, carol answers within the time that she may be away, and dave does not."""
    near = Hints(max_rtt_ms=50, required=frozenset({"rtt"}))
    bob = Bob(near, {ALICE.peer_id: 80_000})
    bob.hears(ALICE)
    bob.hears(CAROL, now_s=0.05)
    assert bob.chose() == "c1"
    bob = Bob(near, {ALICE.peer_id: 80_000, CAROL.peer_id: 20_000})
    bob.hears(DAVE, now_s=0.06)
    bob.hears(ALICE, now_s=0.07)
    bob.hears(CAROL, now_s=0.4)  # it was dialled first
    assert bob.chose() == "c1"


@given(st.permutations((ALICE, CAROL, DAVE)), st.lists(st.sets(st.integers(0, 1)), min_size=3))
def test_the_choice_does_not_depend_on_who_answers_first(
    answers: list[Contact], there: list[set[int]]
) -> None:
    has = dict(zip((ALICE, CAROL, DAVE), there, strict=False))
    bob, again = Bob(NEAR), Bob(NEAR)
    for one in answers:
        bob.hears(one, *has[one])
    for one in has:
        again.hears(one, *has[one])
    for each in (bob, again):
        each.closes()
    chosen = bob.chose()
    assert chosen == again.chose()
    most = max(NEAR.bytes_of(places) for places in has.values())
    best = next(one for one in has if NEAR.bytes_of(has[one]) == most)
    assert chosen == OFFERING[best.peer_id]


# What the ticket of a gang counts as at a worker.

BEGAN_S = 1_800_000_000.0
BEGAN_MS = round(BEGAN_S * 1000)
SLACK_MS = round(LEASE_DEFAULTS.ticket_slack_s * 1000)


def moment(seconds: float) -> Moment:
    return Moment(seconds, BEGAN_S + seconds)


def test_an_honest_ticket_counts_as_it_is() -> None:
    seniority = Seniority(LEASE_DEFAULTS)
    assert seniority.since_ms(ALICE.peer_id, BEGAN_MS - 900, moment(0)) == BEGAN_MS - 900
    assert seniority.since_ms(ALICE.peer_id, BEGAN_MS - 900, moment(20)) == BEGAN_MS - 900
    assert seniority.since_ms(ALICE.peer_id, 0, moment(0)) == 0
    assert len(seniority) == 1


def test_one_from_before_the_first_request_gains_a_moment_at_most() -> None:
    seniority = Seniority(LEASE_DEFAULTS)
    assert seniority.since_ms(ALICE.peer_id, 1, moment(0)) == BEGAN_MS - SLACK_MS
    assert seniority.since_ms(ALICE.peer_id, 1, moment(10)) == BEGAN_MS - SLACK_MS
    assert seniority.since_ms(ALICE.peer_id, 2, moment(10)) == BEGAN_MS + 10_000 - SLACK_MS


def test_one_from_the_future_counts_from_the_first_request() -> None:
    seniority = Seniority(LEASE_DEFAULTS)
    ahead = BEGAN_MS + 3_600_000
    assert seniority.since_ms(ALICE.peer_id, ahead, moment(0)) == BEGAN_MS
    assert seniority.since_ms(ALICE.peer_id, ahead, moment(9)) == BEGAN_MS


def test_to_ask_for_ever_gains_no_more_after_a_while() -> None:
    seniority = Seniority(LEASE_DEFAULTS)
    for second in range(0, 200, 5):
        since = seniority.since_ms(ALICE.peer_id, 1, moment(second))
    least_ms = round((195 - LEASE_DEFAULTS.max_seniority_s) * 1000)
    assert since == BEGAN_MS + least_ms


def test_one_that_was_not_shown_for_long_begins_anew() -> None:
    seniority = Seniority(LEASE_DEFAULTS)
    seniority.since_ms(ALICE.peer_id, 1, moment(0))
    assert seniority.since_ms(ALICE.peer_id, 1, moment(31)) == BEGAN_MS + 31_000 - SLACK_MS


def test_the_table_is_bounded_for_an_owner_and_for_all() -> None:
    seniority = Seniority(replace(LEASE_DEFAULTS, max_tickets_per_owner=2, max_standings=3))
    for ticket in (1, 2, 3):
        seniority.since_ms(ALICE.peer_id, ticket, moment(0))
    assert len(seniority) == 2
    seniority.since_ms(BOB.peer_id, 1, moment(0))
    seniority.since_ms(CAROL.peer_id, 1, moment(0))
    assert len(seniority) == 3
    # Of these, that of the first one was dropped, and the third one's is known.
    assert seniority.since_ms(ALICE.peer_id, 3, moment(9)) == BEGAN_MS - SLACK_MS
    assert seniority.since_ms(ALICE.peer_id, 2, moment(9)) == BEGAN_MS + 9_000 - SLACK_MS
