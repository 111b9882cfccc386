"""The worker's side of a lease: alice has two cores, and bob wants some."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import InvariantBroken
from formation_p2p.core.identity import PeerId, short_id
from formation_p2p.core.refusals import (
    Busy,
    Denied,
    GivingWay,
    Gone,
    Infeasible,
    Leaving,
    Preempted,
)
from formation_p2p.core.units import GIB, MIB
from formation_p2p.leases.core.budget import Budget
from formation_p2p.leases.core.held import HeldResources
from formation_p2p.leases.core.lease import TRANSITIONS, Lease, LeaseState
from formation_p2p.leases.core.lessor import Lessor
from formation_p2p.leases.core.messages import (
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
    waiting_id,
)
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS, LeaseParameters
from formation_p2p.leases.core.session import Fence, Send
from formation_p2p.machine.core.capability import Capability, idle
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.trust.core.admission import AdmissionController
from formation_p2p.trust.core.grants import Rights, issue
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.quota import NOTHING, UNLIMITED, Quota, Used, month_of
from formation_p2p.workload.core.outcome import Succeeded
from formation_p2p.workload.core.scope import WHOLE_MILLI, Scope, ScopeShares
from formation_p2p.workload.core.work import MIN_MEMORY_BYTES
from tests.support.stories import BOB, CAROL, MALLORY, NEEDS, Lenient, at, identity, sent, unshared

WINDOW = LEASE_DEFAULTS.window
HOLD_S = LEASE_DEFAULTS.hold_s
LEASE_S = LEASE_DEFAULTS.lease_s
WANT_S = LEASE_DEFAULTS.want_s
MAX_OFFERS = LEASE_DEFAULTS.max_offers_per_owner

MACHINE = Capability(cpu_milli=2000, memory_bytes=8 * GIB)
LEASE_MS = round(LEASE_S * 1000)
HOLD_MS = round(HOLD_S * 1000)
HELD = HeldResources(NEEDS.cpu_milli, NEEDS.memory_bytes)


class Porter(Lenient):
    """Lets in who shows `a grant`, until that expires at `expires_s`."""

    expires_s = float("inf")

    def denied(
        self,
        grant: bytes,
        peer_id: PeerId,
        needs: Requirements,
        priority: int,
        now: Moment,
        *,
        another: bool,
    ) -> Denied | None:
        if grant != b"a grant":
            return Denied("submit", "no grant was shown")
        if now.mono_s >= self.expires_s:
            return Denied("submit", "the grant expired")
        return None


class Alice:
    """Her lessor, and who is at its door."""

    def __init__(
        self,
        capability: Capability = MACHINE,
        admission: AdmissionController | None = None,
        parameters: LeaseParameters = LEASE_DEFAULTS,
        budget: Budget | None = None,
    ) -> None:
        self.porter = Porter()
        self.budget = budget or unshared(capability)
        self.idle: set[str] = set()
        self.lessor = Lessor(
            capability,
            {"region": "eu"},
            ("process", "python"),
            admission or self.porter,
            random.Random(1),
            self.budget,
            lambda lease_id: lease_id in self.idle,
            price_micro=250,
            parameters=parameters,
        )

    def offer(
        self, now_s: float = 0.0, to: Contact = BOB, needs: Requirements = NEEDS, priority: int = 0
    ) -> str:
        """The id of the lease that she offers."""
        request = asked(needs, priority=priority)
        ((receiver, message),) = sent(self.lessor.requested(to, request, at(now_s)))
        assert isinstance(message, Offer)
        assert receiver == to.peer_id
        return message.lease_id

    def lease(
        self, now_s: float = 0.0, to: Contact = BOB, needs: Requirements = NEEDS, priority: int = 0
    ) -> str:
        lease_id = self.offer(now_s, to, needs, priority)
        self.lessor.committed(to, Commit(lease_id), at(now_s))
        return lease_id

    def refusal(
        self,
        needs: Requirements = NEEDS,
        grant: bytes = b"a grant",
        now_s: float = 0.0,
        to: Contact = BOB,
        priority: int = 0,
    ) -> object:
        request = replace(asked(needs, priority=priority), grant=grant)
        ((_, message),) = sent(self.lessor.requested(to, request, at(now_s))[:1])
        assert isinstance(message, RequestRefused)
        return message.refusal

    def is_preempted(self, lease_id: str) -> None:
        """Carol wants all that there is, and then bob commits and renews."""
        request = asked(replace(NEEDS, cpu_milli=2000), priority=9)
        ((_, answer),) = sent(self.lessor.requested(CAROL, request, at(0)))
        if isinstance(answer, Offer):  # nothing stood in her way
            self.lessor.released(CAROL, Release(answer.lease_id), at(0))
        self.lessor.committed(BOB, Commit(lease_id), at(0))
        self.lessor.renewed(BOB, Renew(lease_id, 1), at(0))

    def state(self, lease_id: str) -> LeaseState:
        return next((x.state for x in self.lessor if x.lease_id == lease_id), LeaseState.ENDED)

    def fence(self, lease_id: str) -> int:
        (fence,) = [x.fence for x in self.lessor if x.lease_id == lease_id]
        return fence

    @property
    def free_milli(self) -> int:
        return self.lessor.ledger.free.cpu_milli


def asked(needs: Requirements = NEEDS, request_id: int = 1, priority: int = 0) -> PlacementRequest:
    return PlacementRequest(request_id, needs, b"a grant", priority)


def gone(lease_id: str) -> Gone:
    return Gone(f"lease {lease_id}", "it expired, was released, or never was yours")


@pytest.fixture
def alice() -> Alice:
    return Alice()


# -- the table ------------------------------------------------------------------------------

HAPPEN: dict[str, Callable[[Alice, str], object]] = {
    "commit": lambda alice, x: alice.lessor.committed(BOB, Commit(x), at(1)),
    "renew": lambda alice, x: alice.lessor.renewed(BOB, Renew(x, 1), at(1)),
    "release": lambda alice, x: alice.lessor.released(BOB, Release(x), at(0)),
    "expire": lambda alice, x: alice.lessor.tick(at(1000)),
    "preempt": lambda alice, x: alice.is_preempted(x),
    "leave": lambda alice, x: alice.lessor.leave(at(0)),
    "fenced": lambda alice, x: alice.lessor.fenced(x),
}


def in_state(alice: Alice, state: LeaseState) -> str:
    if state is LeaseState.OFFERED:
        return alice.offer()
    lease_id = alice.lease()
    if state is not LeaseState.LEASED:
        alice.lessor.released(BOB, Release(lease_id), at(0))
    if state is LeaseState.ENDED:
        alice.lessor.fenced(lease_id)
    return lease_id


@pytest.mark.parametrize("event", HAPPEN)
@pytest.mark.parametrize("state", LeaseState)
def test_a_lease_follows_the_table_and_nothing_else(
    alice: Alice, state: LeaseState, event: str
) -> None:
    lease_id = in_state(alice, state)
    HAPPEN[event](alice, lease_id)
    assert alice.state(lease_id) == TRANSITIONS.get(state, {}).get(event, state)
    # Capacity is held for as long as the lease has not ended, and no longer.
    held = alice.state(lease_id) is not LeaseState.ENDED
    assert alice.free_milli == (1000 if held else 2000)


def test_every_event_of_the_table_is_tried_above() -> None:
    assert {event for ways in TRANSITIONS.values() for event in ways} == HAPPEN.keys()


# -- offers ---------------------------------------------------------------------------------


def test_an_offer_holds_capacity_softly_and_for_less_than_two_seconds(alice: Alice) -> None:
    request = PlacementRequest(42, NEEDS, b"a grant", 0)
    ((to, offer),) = sent(alice.lessor.requested(BOB, request, at(10)))
    assert isinstance(offer, Offer)
    assert (to, offer) == (BOB.peer_id, Offer(42, offer.lease_id, HELD, 250, HOLD_MS))
    assert alice.free_milli == 1000
    assert alice.lessor.next_timeout() == 10 + HOLD_S < 12
    assert alice.lessor.tick(at(10 + HOLD_S - 0.01)) == []
    assert alice.free_milli == 1000
    assert alice.lessor.tick(at(10 + HOLD_S)) == []  # nothing ran: there is nothing to fence
    assert alice.free_milli == 2000
    assert alice.lessor.next_timeout() == float("inf")


def test_what_it_is_asked_for_is_remembered_where_the_grant_is_good() -> None:
    alice = Alice(replace(MACHINE, gpus=(Gpu("GPU-0", "nvidia", "h100", 80 * GIB, 90),)))
    needs, before = replace(NEEDS, gpu_count=1), alice.lessor.seen.mix
    alice.refusal(needs, grant=b"another")
    assert alice.lessor.seen.mix == before
    alice.offer(needs=needs)
    assert alice.lessor.seen.mix != before


def test_the_grant_is_judged_before_anything_else_is_told(alice: Alice) -> None:
    """A stranger does not learn that alice has no GPU, nor that she is leaving."""
    denied = Denied("submit", "no grant was shown")
    impossible = replace(NEEDS, gpu_count=1)
    assert alice.refusal(impossible, grant=b"") == denied
    alice.lessor.leave(at(0))
    assert alice.refusal(impossible, grant=b"") == denied
    assert alice.refusal(impossible) == Leaving()


def test_what_she_cannot_do_is_refused_with_the_reason(alice: Alice) -> None:
    assert alice.refusal(replace(NEEDS, cpu_milli=3000)) == Infeasible("cpu", 3000, 2000)
    assert alice.refusal(replace(NEEDS, driver="wasm")) == Infeasible(
        "driver", "wasm", "process,python"
    )
    mars = replace(NEEDS, labels=(("region", "mars"),))
    assert alice.refusal(mars) == Infeasible("label.region", "mars", "eu")
    assert alice.free_milli == 2000


def test_what_is_offered_to_others_is_refused_with_when_that_ends(alice: Alice) -> None:
    alice.offer(now_s=0.0)
    alice.offer(now_s=0.5, to=CAROL)
    assert alice.refusal(NEEDS, now_s=1) == GivingWay("cpu", 500)
    assert alice.refusal(replace(NEEDS, cpu_milli=2000), now_s=1) == GivingWay("cpu", 1000)


def test_two_schedulers_race_for_the_last_core_and_one_gets_it() -> None:
    alice = Alice(replace(MACHINE, cpu_milli=1000))
    lease_id = alice.offer(to=BOB)
    ((_, refused),) = sent(alice.lessor.requested(CAROL, asked(), at(0)))
    assert refused == RequestRefused(1, GivingWay("cpu", HOLD_MS))
    stolen = alice.lessor.committed(CAROL, Commit(lease_id), at(0))
    assert sent(stolen) == [(CAROL.peer_id, CommitRefused(lease_id, gone(lease_id)))]
    assert sent(alice.lessor.committed(BOB, Commit(lease_id), at(0))) == [
        (BOB.peer_id, Leased(lease_id, 1, LEASE_MS, WINDOW))
    ]


def test_an_offer_names_the_devices_and_a_released_one_gives_them_back() -> None:
    gpu = Gpu("GPU-7", "nvidia", "a100", 40 * GIB, 80)
    alice = Alice(replace(MACHINE, gpus=(gpu,)))
    wants_one = replace(NEEDS, gpu_count=1)
    ((_, offer),) = sent(alice.lessor.requested(BOB, asked(wants_one), at(0)))
    assert isinstance(offer, Offer)
    assert offer.holds.device_ids == ("GPU-7",)
    assert offer.holds.gpu_share_milli == 1000
    assert offer.holds.gpu_memory_bytes == 40 * GIB
    assert alice.refusal(wants_one) == GivingWay("gpu", HOLD_MS)
    assert alice.lessor.released(BOB, Release(offer.lease_id), at(0)) == []
    assert alice.lessor.ledger.free == idle(alice.lessor.capability)


def test_a_lease_takes_what_any_task_is_given_at_the_least() -> None:
    """Else a thousand leases over one byte each would be given 64 MiB each."""
    alice = Alice(Capability(cpu_milli=2000, memory_bytes=100 * MIB))
    tiny = replace(NEEDS, cpu_milli=1, memory_bytes=1)
    alice.lease(needs=tiny)
    assert alice.lessor.ledger.free.memory_bytes == 100 * MIB - MIN_MEMORY_BYTES
    assert alice.refusal(tiny) == Infeasible("memory", 64 * MIB, 36 * MIB)


def test_one_owner_can_hold_so_many_offers_open_and_no_more() -> None:
    alice = Alice(Capability(cpu_milli=100_000, memory_bytes=8 * GIB))
    tiny = replace(NEEDS, cpu_milli=1, memory_bytes=1)
    first = alice.offer(needs=tiny)
    for _ in range(MAX_OFFERS - 1):
        alice.offer(needs=tiny)
    assert alice.refusal(tiny) == Busy("the table of your open offers", MAX_OFFERS)
    alice.offer(to=CAROL, needs=tiny)  # others are not held up by it
    alice.lessor.committed(BOB, Commit(first), at(0))
    alice.offer(needs=tiny)  # a lease is no open offer


def test_the_table_of_leases_is_bounded() -> None:
    alice = Alice(parameters=LeaseParameters(max_leases=1))
    alice.lease()
    assert alice.refusal() == Busy("the table of leases", 1)
    assert len(alice.lessor) == 1


def test_where_the_ledger_is_full_first_its_reason_is_told(alice: Alice) -> None:
    alice.lessor.ledger.max_reservations = 0
    assert alice.refusal() == Busy("the ledger", 0)


def test_an_elder_gang_that_finds_room_takes_none_from_a_younger_one(alice: Alice) -> None:
    now_ms = round(at(0).unix_s * 1000)
    for owner, ago_ms in ((BOB, 100), (CAROL, 500)):
        request = replace(asked(), since_ms=now_ms - ago_ms)
        ((_, answer),) = sent(alice.lessor.requested(owner, request, at(0)))
        assert isinstance(answer, Offer)
    assert alice.free_milli == 0


def test_a_budget_that_counts_other_leases_is_noticed(alice: Alice) -> None:
    lease_id = alice.lease()
    alice.lessor.validate()
    alice.budget.closed(lease_id)
    with pytest.raises(InvariantBroken, match="the budget counts other leases"):
        alice.lessor.validate()


# -- leases ---------------------------------------------------------------------------------


def test_a_repeated_commit_has_the_same_fence_and_prolongs_nothing(alice: Alice) -> None:
    lease_id = alice.lease(now_s=0)
    again = alice.lessor.committed(BOB, Commit(lease_id), at(4))
    assert sent(again) == [(BOB.peer_id, Leased(lease_id, 1, LEASE_MS - 4000, WINDOW))]
    assert alice.lessor.next_timeout() == LEASE_S


def test_fences_grow_across_restarts() -> None:
    fences = []
    for began_s in (0.0, 1.0):
        anew = Alice()
        anew.lessor.begin(at(began_s))
        for _ in range(2):
            lease_id = anew.offer()
            ((_, leased),) = sent(anew.lessor.committed(BOB, Commit(lease_id), at(began_s)))
            assert isinstance(leased, Leased)
            fences.append(leased.fence)
    assert fences == sorted(set(fences))


def test_a_renewal_counts_from_when_it_came(alice: Alice) -> None:
    lease_id = alice.lease(now_s=0)
    answer = alice.lessor.renewed(BOB, Renew(lease_id, 1), at(7))
    assert sent(answer) == [(BOB.peer_id, Renewed(lease_id, LEASE_MS, WINDOW))]
    assert alice.lessor.next_timeout() == 17.0
    assert alice.lessor.tick(at(16.9)) == []
    assert alice.lessor.tick(at(17)) == [Fence(lease_id, cause="")]


@pytest.mark.parametrize(
    ("who", "fence"), [(MALLORY, 1), (BOB, 0), (BOB, 2)], ids=["stranger", "before", "after"]
)
def test_only_the_owner_renews_and_only_under_the_right_fence(
    alice: Alice, who: Contact, fence: int
) -> None:
    lease_id = alice.lease(now_s=0)
    answer = alice.lessor.renewed(who, Renew(lease_id, fence), at(5))
    assert sent(answer) == [(who.peer_id, LeaseEnded(lease_id, gone(lease_id)))]
    assert alice.lessor.next_timeout() == LEASE_S
    assert alice.lessor.lease(who, lease_id, fence) == gone(lease_id)


def test_a_stranger_cannot_tell_another_ones_lease_from_none(alice: Alice) -> None:
    lease_id = alice.lease()
    answers = [
        alice.lessor.committed(MALLORY, Commit(x), at(0)) for x in (lease_id, "0123456789abcdef")
    ]
    reported = [
        str(message).replace(lease_id, "0123456789abcdef") for ((_, message),) in map(sent, answers)
    ]
    assert reported[0] == reported[1]
    assert alice.lessor.released(MALLORY, Release(lease_id), at(0)) == []
    assert alice.state(lease_id) is LeaseState.LEASED


def test_an_expired_lease_frees_its_capacity_only_once_nothing_runs(alice: Alice) -> None:
    lease_id = alice.lease()
    assert alice.lessor.tick(at(LEASE_S)) == [Fence(lease_id, cause="")]
    assert alice.free_milli == 1000
    assert alice.lessor.tick(at(LEASE_S + 60)) == []  # one fence is enough
    assert alice.lessor.next_timeout() == float("inf")
    alice.lessor.fenced(lease_id)
    assert alice.free_milli == 2000
    assert len(alice.lessor) == 0
    alice.lessor.fenced(lease_id)
    assert alice.free_milli == 2000


def test_a_lease_whose_grant_expired_is_not_renewed(alice: Alice) -> None:
    """Expiry is how a right is taken back: no lease may outlive it by renewals."""
    lease_id = alice.lease()
    alice.porter.expires_s = 5.0
    denied = Denied("submit", "the grant expired")
    reported, fence = alice.lessor.renewed(BOB, Renew(lease_id, 1), at(6))
    assert sent([reported]) == [(BOB.peer_id, LeaseEnded(lease_id, denied))]
    assert fence == Fence(lease_id, cause="")


def test_an_offer_whose_grant_expired_is_not_committed(alice: Alice) -> None:
    lease_id = alice.offer()
    alice.porter.expires_s = 0.5
    ((_, answer),) = sent(alice.lessor.committed(BOB, Commit(lease_id), at(1)))
    assert answer == CommitRefused(lease_id, Denied("submit", "the grant expired"))
    assert (alice.free_milli, len(alice.lessor)) == (2000, 0)


def test_a_lease_that_is_committed_again_is_not_judged_again(alice: Alice) -> None:
    """The answer to the first was lost; it ends where it would be renewed."""
    lease_id = alice.lease()
    alice.porter.expires_s = 0.5
    ((_, answer),) = sent(alice.lessor.committed(BOB, Commit(lease_id), at(1)))
    assert isinstance(answer, Leased)


def test_who_leaves_tells_the_owners_of_leases_and_takes_no_more(alice: Alice) -> None:
    offered, leased = alice.offer(), alice.lease(to=CAROL)
    reported, fence = alice.lessor.leave(at(0))
    assert isinstance(reported, Send)
    assert sent([reported]) == [(CAROL.peer_id, LeaseEnded(leased, Leaving()))]
    assert fence == Fence(leased, cause="")
    assert alice.state(offered) is LeaseState.ENDED
    assert alice.refusal() == Leaving()


def test_an_owner_who_moved_is_answered_where_it_is_now(alice: Alice) -> None:
    """A scheduler that was started again has the same id, and perhaps another address."""
    lease_id = alice.lease()
    moved = replace(BOB, addresses=("/ip4/10.0.0.9/tcp/9",))
    (answer,) = alice.lessor.renewed(moved, Renew(lease_id, 1), at(1))
    assert isinstance(answer, Send)
    assert answer.to == moved
    lease = alice.lessor.lease(moved, lease_id, 1)
    assert isinstance(lease, Lease)
    assert lease.owner == moved


@pytest.mark.parametrize("jump_s", [-1e9, 1e9])
def test_a_calendar_that_jumps_neither_ends_a_lease_nor_prolongs_it(
    alice: Alice, jump_s: float
) -> None:
    lease_id = alice.lease(now_s=0)
    assert alice.lessor.tick(Moment(9.9, at(9.9).unix_s + jump_s)) == []
    assert alice.state(lease_id) is LeaseState.LEASED
    assert alice.lessor.tick(Moment(10.0, at(0).unix_s)) == [Fence(lease_id, cause="")]


# -- giving way -----------------------------------------------------------------------------

ALL = replace(NEEDS, cpu_milli=2000)


def test_a_lease_gives_way_to_higher_priority_when_it_is_to_be_renewed(alice: Alice) -> None:
    lease_id = alice.lease(now_s=0, needs=ALL)
    # bob renews at two thirds of ten seconds, and what runs takes a moment to end.
    later = GivingWay("cpu", 5167)
    assert alice.refusal(now_s=2, to=CAROL, priority=5) == later
    assert alice.state(lease_id) is LeaseState.LEASED  # nothing happens in between
    reported, fence = alice.lessor.renewed(BOB, Renew(lease_id, 1), at(6.7))
    assert sent([reported]) == [(BOB.peer_id, LeaseEnded(lease_id, Preempted(5)))]
    assert fence == Fence(lease_id, cause="")
    # Until nothing runs any more the capacity is nobody's.
    assert alice.refusal(now_s=6.8, to=CAROL, priority=5) == GivingWay("cpu", 500)
    alice.lessor.fenced(lease_id)
    alice.lease(now_s=7.3, to=CAROL, priority=5)


def test_an_offer_gives_way_before_a_lease_does(alice: Alice) -> None:
    leased = alice.lease()
    offered = alice.offer(to=MALLORY)
    assert alice.refusal(to=CAROL, priority=5) == GivingWay("cpu", HOLD_MS + 500)
    refused = CommitRefused(offered, Preempted(5))
    answer = alice.lessor.committed(MALLORY, Commit(offered), at(0))
    assert sent(answer) == [(MALLORY.peer_id, refused)]
    assert alice.free_milli == 1000
    alice.offer(to=CAROL, priority=5)
    ((_, renewed),) = sent(alice.lessor.renewed(BOB, Renew(leased, 1), at(1)))
    assert isinstance(renewed, Renewed)


def test_no_more_leases_give_way_than_must() -> None:
    """The one of lowest priority goes, and of those the one that is up for renewal first; one
    that holds nothing of what is short is left alone."""
    gpu = Gpu("GPU-7", "nvidia", "a100", 40 * GIB, 80)
    alice = Alice(replace(MACHINE, cpu_milli=9000, gpus=(gpu,)))
    plain = alice.lease(now_s=0)
    holds_gpu = alice.lease(now_s=1, needs=replace(NEEDS, gpu_count=1))
    assert alice.refusal(replace(NEEDS, gpu_count=1), now_s=1, to=CAROL, priority=5) == GivingWay(
        "gpu", 7167
    )
    for lease_id, fence, preempted in ((plain, 1, False), (holds_gpu, 2, True)):
        effects = alice.lessor.renewed(BOB, Renew(lease_id, fence), at(2))
        assert (Fence(lease_id, cause="") in effects) == preempted


def test_of_several_the_lowest_and_the_soonest_gives_way(alice: Alice) -> None:
    later = alice.lease(now_s=1)
    sooner = alice.lease(now_s=0)
    assert alice.refusal(now_s=2, to=CAROL, priority=5) == GivingWay("cpu", 5167)
    assert Fence(sooner, cause="") in alice.lessor.renewed(BOB, Renew(sooner, 2), at(6.7))
    assert alice.lessor.renewed(BOB, Renew(later, 1), at(7.6))[1:] == []


def test_what_could_not_be_freed_is_refused_and_nobody_gives_way(alice: Alice) -> None:
    alice.lease(priority=7)
    lower = alice.lease()
    assert alice.refusal(ALL, to=CAROL, priority=5) == Infeasible("cpu", 2000, 0)
    assert alice.lessor.renewed(BOB, Renew(lower, 2), at(6))[1:] == []


def test_what_is_kept_for_higher_priority_is_not_given_to_lower(alice: Alice) -> None:
    lease_id = alice.lease()
    wanted = GivingWay("cpu", 7167)
    assert alice.refusal(ALL, to=CAROL, priority=5) == wanted
    free_before = alice.free_milli
    assert alice.refusal(to=MALLORY) == Infeasible("priority", 5, 0)
    assert alice.free_milli == free_before == 1000
    alice.offer(to=MALLORY, priority=5)  # as urgent: first come, first served
    assert alice.state(lease_id) is LeaseState.LEASED


def test_what_leaves_enough_for_higher_priority_is_given_to_lower() -> None:
    alice = Alice(replace(MACHINE, cpu_milli=3000))
    alice.lease(needs=ALL)
    assert alice.refusal(ALL, to=CAROL, priority=5) == GivingWay("cpu", 7167)
    alice.offer(to=MALLORY)  # her core is not needed once bob's two are free


def test_who_stops_asking_is_forgotten(alice: Alice) -> None:
    lease_id = alice.lease(needs=ALL)
    alice.refusal(to=CAROL, priority=5)
    alice.lessor.renewed(BOB, Renew(lease_id, 1), at(0))
    alice.lessor.fenced(lease_id)
    assert alice.refusal(ALL, now_s=WANT_S - 0.1, to=BOB) == Infeasible("priority", 5, 0)
    alice.offer(now_s=WANT_S, to=BOB, needs=ALL)


def test_nobody_gives_way_to_one_who_was_served_elsewhere(alice: Alice) -> None:
    kept = [alice.lease(), alice.lease()]
    assert isinstance(alice.refusal(priority=3, now_s=1, to=CAROL), GivingWay)
    alice.lessor.released(CAROL, Release(waiting_id(1)), at(1.1))
    for each in kept:
        renew = Renew(each, alice.fence(each))
        ((_, answer),) = sent(alice.lessor.renewed(BOB, renew, at(6)))
        assert isinstance(answer, Renewed)


def test_what_was_kept_for_one_who_gives_up_counts_as_an_offer_that_lapsed(alice: Alice) -> None:
    """Else one could have others give way again and again, for nothing."""
    for _ in range(2):
        alice.lease()
    for second in range(1, 5):
        assert not alice.lessor.standing.is_doubtful(CAROL.peer_id, "a grant", at(second))
        alice.refusal(priority=3, now_s=second, to=CAROL, needs=ALL)
        alice.lessor.released(CAROL, Release(waiting_id(1)), at(second + 0.4))
    assert alice.lessor.standing.is_doubtful(CAROL.peer_id, "a grant", at(4.4))


def test_who_has_got_its_lease_wants_no_more(alice: Alice) -> None:
    first, second = alice.lease(), alice.lease()
    alice.refusal(to=CAROL, priority=5)
    alice.lessor.renewed(BOB, Renew(first, 1), at(1))
    alice.lessor.fenced(first)
    alice.lease(now_s=1, to=CAROL, priority=5)
    assert alice.lessor.renewed(BOB, Renew(second, 2), at(1))[1:] == []


def test_the_table_of_wants_keeps_the_most_urgent() -> None:
    alice = Alice(parameters=LeaseParameters(max_wants=1))
    lease_id = alice.lease(needs=ALL)
    later = GivingWay("cpu", 7167)
    assert alice.refusal(to=CAROL, priority=5) == later
    assert alice.refusal(to=MALLORY, priority=5) == Infeasible("cpu", 1000, 0)
    assert alice.refusal(to=CAROL, priority=5) == later  # again, in the place of her own
    assert alice.refusal(to=MALLORY, priority=6) == later
    reported = alice.lessor.renewed(BOB, Renew(lease_id, 1), at(1))[0]
    assert sent([reported]) == [(BOB.peer_id, LeaseEnded(lease_id, Preempted(6)))]


# -- idle leases ----------------------------------------------------------------------------

KEPT_S = LEASE_DEFAULTS.keep_idle_s


@pytest.mark.parametrize("priority", [0, 5])
def test_an_idle_lease_ends_at_once_for_others(alice: Alice, priority: int) -> None:
    lease_id = alice.lease(needs=ALL)
    alice.idle.add(lease_id)
    asks = asked(priority=priority)
    answer, ended, fence = alice.lessor.requested(CAROL, asks, at(KEPT_S))
    assert sent([answer, ended]) == [
        (CAROL.peer_id, RequestRefused(1, GivingWay("cpu", 500))),
        (BOB.peer_id, LeaseEnded(lease_id, Preempted(priority))),
    ]
    assert fence == Fence(lease_id, cause="")
    assert alice.state(lease_id) is LeaseState.ENDING
    # Until nothing runs any more the capacity is nobody's.
    assert alice.refusal(now_s=0.6, to=CAROL, priority=priority) == GivingWay("cpu", 500)
    alice.lessor.fenced(lease_id)
    alice.lease(now_s=1.1, to=CAROL, priority=priority)


def turn_of_bob(left_s: int, retry_ms: int = 800) -> GivingWay:
    return GivingWay("cpu", retry_ms, (short_id(BOB.peer_id), left_s * 1000))


def test_a_lease_has_a_moment_for_what_its_owner_sends_next(alice: Alice) -> None:
    lease_id = alice.lease(needs=ALL)
    alice.idle.add(lease_id)
    assert alice.refusal(now_s=0.2, to=CAROL) == GivingWay("cpu", 300)
    alice.lessor.ended(lease_id, Succeeded(b""), at(1))
    assert alice.refusal(now_s=1.1, to=CAROL) == GivingWay("cpu", 400)
    alice.idle.clear()
    assert alice.refusal(now_s=3, to=CAROL) == turn_of_bob(57, 2800)
    assert alice.state(lease_id) is LeaseState.LEASED


def test_an_idle_lease_keeps_its_place_against_less_urgent_requests(alice: Alice) -> None:
    lease_id = alice.lease(needs=ALL, priority=5)
    alice.idle.add(lease_id)
    assert alice.refusal(now_s=3, to=CAROL, priority=4) == Infeasible("cpu", 1000, 0)


def test_idle_leases_that_do_not_make_room_stay(alice: Alice) -> None:
    alice.idle.add(alice.lease())
    alice.lease()
    assert alice.refusal(needs=ALL, now_s=3, to=CAROL) == turn_of_bob(57)


def test_the_longest_idle_goes_and_no_more_than_must(alice: Alice) -> None:
    first, second = alice.lease(), alice.lease()
    alice.idle |= {first, second}
    alice.lessor.ended(first, Succeeded(b""), at(1))
    assert alice.refusal(now_s=1.2, to=CAROL) == GivingWay("cpu", 500)
    assert alice.state(first) is LeaseState.LEASED
    assert alice.state(second) is LeaseState.ENDING


def test_no_idle_lease_ends_for_one_whose_offers_lapse(alice: Alice) -> None:
    alice.offer(to=CAROL, needs=ALL)
    alice.lessor.tick(at(HOLD_S))
    lease_id = alice.lease(now_s=HOLD_S, needs=ALL)
    alice.idle.add(lease_id)
    assert alice.refusal(now_s=HOLD_S + 1, to=CAROL) == Infeasible("cpu", 1000, 0)
    assert alice.state(lease_id) is LeaseState.LEASED


def test_no_idle_lease_ends_for_a_want_that_is_not_kept() -> None:
    alice = Alice(parameters=LeaseParameters(max_wants=1))
    lease_id = alice.lease(needs=ALL)
    assert alice.refusal(now_s=0.1, to=CAROL, priority=5) == GivingWay("cpu", 7067)
    alice.idle.add(lease_id)
    assert alice.refusal(now_s=1, to=MALLORY) == turn_of_bob(59)
    assert alice.state(lease_id) is LeaseState.LEASED


# -- what leases cost --------------------------------------------------------------------------

ROOT = identity("root")
GPUS = Capability(2000, 8 * GIB, gpus=(Gpu("G0", "nvidia", "a100", 40 * GIB, 80),))


class Counting(Alice):
    """She counts what leases use. bob's grant sets a quota."""

    def __init__(self, quota: Quota = UNLIMITED) -> None:
        self.admission = AdmissionController(Membership(ROOT.public_key), {})
        super().__init__(GPUS, self.admission)
        self.grant = issue(ROOT, Rights(10**10, quota=quota), BOB.peer_id)

    def take(self, needs: Requirements = NEEDS, now_s: float = 0.0) -> str:
        request = PlacementRequest(1, needs, self.grant)
        ((_, answer),) = sent(self.lessor.requested(BOB, request, at(now_s)))
        assert isinstance(answer, Offer)
        self.lessor.committed(BOB, Commit(answer.lease_id), at(now_s))
        return answer.lease_id

    def used(self, now_s: float) -> Used:
        months = self.admission.used.months
        return months.get(month_of(at(now_s).unix_s), {}).get(BOB.peer_id, NOTHING)


def test_a_lease_is_charged_when_it_is_renewed_and_when_it_is_released() -> None:
    alice = Counting()
    needs = replace(NEEDS, cpu_milli=1500, gpu_count=1, gpu_share_milli=250)
    lease_id = alice.take(needs)
    alice.lessor.renewed(BOB, Renew(lease_id, 1), at(6))
    assert alice.used(6) == Used(9000, 1500)
    alice.lessor.released(BOB, Release(lease_id), at(8))
    assert alice.used(8) == Used(12_000, 2000)
    alice.lessor.fenced(lease_id)  # that took a while, and costs nothing
    assert alice.used(60) == Used(12_000, 2000)


def test_a_lease_that_ran_out_while_the_machine_slept_costs_until_it_ran_out() -> None:
    alice = Counting()
    alice.take()
    alice.lessor.tick(at(3600))
    assert alice.used(3600) == Used(1000 * round(LEASE_S), 0)


def test_a_worker_that_leaves_charges_for_what_it_ends() -> None:
    alice = Counting()
    alice.take()
    alice.lessor.leave(at(4))
    assert alice.used(4) == Used(4000, 0)


def test_a_lease_counts_until_nothing_runs_under_it() -> None:
    alice = Counting(Quota(leases=1))
    lease_id = alice.take()
    alice.lessor.released(BOB, Release(lease_id), at(1))
    full = Denied("submit", "Concurrent task limit reached: 1/1", 1000)
    assert alice.refusal(grant=alice.grant, now_s=1) == full
    alice.lessor.fenced(lease_id)
    alice.take(now_s=2)


@given(
    st.integers(0, 10),
    st.lists(st.floats(0.1, LEASE_S - 0.01), min_size=1, max_size=30),
    st.integers(1, 2),
)
def test_a_quota_is_overrun_by_what_is_reserved_until_the_next_renewal_at_most(
    milli_hours: int, waits_s: list[float], count: int
) -> None:
    alice = Counting(Quota(cpu_milli_hours=milli_hours + 1))
    leases = {alice.take(): n for n in range(1, count + 1)}
    now_s = 0.0
    for wait_s in waits_s:
        now_s += wait_s
        for lease_id, fence in list(leases.items()):
            answer, *_ = alice.lessor.renewed(BOB, Renew(lease_id, fence), at(now_s))
            assert isinstance(answer, Send)
            if isinstance(answer.message, LeaseEnded):
                del leases[lease_id]
    limit, over = (milli_hours + 1) * 3600, round(1000 * LEASE_S) * count
    assert alice.used(now_s).cpu_milli_s <= limit + over
    assert not leases or alice.used(now_s).cpu_milli_s < limit + over


# What alice gives to each circle: a quarter of her eight cores to the commons.

CORES_MILLI = 8000
QUARTER = ScopeShares.parse(["commons=0.25", "federation=0"])


def scope_of(grant: bytes, peer_id: PeerId) -> Scope:
    """The grants of these tests are the names of scopes."""
    return Scope[grant.decode()]


def budget(shares: ScopeShares = QUARTER) -> Budget:
    return Budget(shares, CORES_MILLI, scope_of)


def refusal(alices: Budget, grant: bytes, needed_milli: int) -> Denied | Infeasible | None:
    return alices.refusal(grant, BOB.peer_id, needed_milli)


def test_a_scope_that_is_closed_is_denied_for_good() -> None:
    denied = refusal(budget(), b"FEDERATION", 1)
    assert denied == Denied("submit", "this machine takes no tasks of scope federation")


def test_each_scope_is_counted_by_itself_and_over_all_who_are_of_it() -> None:
    alices = budget()
    alices.opened("1", b"COMMONS", BOB.peer_id, 1500)
    assert refusal(alices, b"COMMONS", 500) is None
    over = alices.refusal(b"COMMONS", CAROL.peer_id, 501)
    assert over == Infeasible("share.commons", 501, 500)
    assert str(over) == "share.commons: needs 0.501, has 0.5"
    alices.opened("2", b"CELL", BOB.peer_id, 6000)
    assert refusal(alices, b"COMMONS", 500) is None
    assert refusal(alices, b"CELL", 2000) is None
    alices.closed("1")
    assert refusal(alices, b"COMMONS", 8000) is None  # the first one may be of any size


@pytest.mark.parametrize(
    ("share", "scope", "queued", "accepted"),
    [
        ("cell=0.25", b"CELL", 10, True),
        ("cell=0.25", b"CELL", 25, False),
        ("commons=0.1", b"COMMONS", 5, True),
        ("commons=0.01", b"COMMONS", 5, False),
    ],
)
def test_tasks_of_a_tenth_of_a_core_fill_a_share(
    share: str, scope: bytes, queued: int, accepted: bool
) -> None:
    alices = budget(ScopeShares.parse([share]))
    for number in range(queued):
        alices.opened(str(number), scope, BOB.peer_id, 100)
    assert (refusal(alices, scope, 100) is None) is accepted


@given(
    st.lists(st.integers(0, WHOLE_MILLI), min_size=5, max_size=5),
    st.lists(st.tuples(st.sampled_from(Scope), st.integers(1, 4000), st.booleans()), max_size=60),
)
def test_whatever_comes_and_goes_each_scope_keeps_to_its_share(
    milli: list[int], asked: list[tuple[Scope, int, bool]]
) -> None:
    alices = budget(ScopeShares(tuple(milli)))
    held: dict[str, tuple[Scope, int]] = {}
    for number, (scope, needed_milli, ends) in enumerate(asked):
        if ends and held:
            first = next(iter(held))
            alices.closed(first)
            del held[first]
        if refusal(alices, scope.name.encode(), needed_milli) is None:
            alices.opened(str(number), scope.name.encode(), BOB.peer_id, needed_milli)
            held[str(number)] = (scope, needed_milli)
        of_scope = [used for of, used in held.values() if of is scope]
        within = sum(of_scope) * WHOLE_MILLI <= CORES_MILLI * milli[scope]
        assert within or len(of_scope) == 1 or milli[scope] == WHOLE_MILLI
        assert milli[scope] or not of_scope
