"""The scheduler's side of a lease: bob asks alice, carol and dave, and keeps what he gets."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import (
    Busy,
    Denied,
    GivingWay,
    Gone,
    Infeasible,
    Leaving,
    PeerRefusal,
    Silent,
    TooDear,
)
from formation_p2p.core.units import GIB
from formation_p2p.leases.core.held import HeldResources
from formation_p2p.leases.core.held_lease import TRANSITIONS, HeldLease, HeldState
from formation_p2p.leases.core.lessee import (
    LeaseHeld,
    LeaseLost,
    LeaseRecovered,
    LeaseYields,
    Lessee,
    LesseeEvent,
    OffersCollected,
    RoundClosed,
)
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
    WorkMessage,
    pack,
    waiting_id,
)
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS
from formation_p2p.leases.core.releases import MAX_RELEASES, REPEATS, Releases
from formation_p2p.leases.core.round import RoundId
from formation_p2p.leases.core.session import Undelivered
from formation_p2p.leases.core.unserved import MAX_UNANSWERED, Unserved
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.trust.core.grants import Rights, issue, read_grant
from simulations.simulator.world import EPOCH_UNIX_S
from tests.support.stories import ALICE, BOB, CAROL, DAVE, MALLORY, NEEDS, at, identity, sent

ANSWER_S = LEASE_DEFAULTS.answer_s
DELIBERATION_S = LEASE_DEFAULTS.deliberation_s
MIN_HOLD_MS = round(DELIBERATION_S * 1000)
MAX_HOLD_MS = round(LEASE_DEFAULTS.max_hold_s * 1000)

BUSY = Busy("the table of leases", 1)
LEASE_MS = 10_000
HELD = HeldResources(NEEDS.cpu_milli, NEEDS.memory_bytes, gpu_share_milli=1000)


class Bob:
    def __init__(self) -> None:
        self.lessee = Lessee(b"a grant", random.Random(1))
        self.request_ids: dict[PeerId, int] = {}

    def ask(
        self,
        *order: Contact,
        wanted: int = 1,
        now_s: float = 0,
        needs: Requirements = NEEDS,
        max_price_micro: int | None = None,
    ) -> RoundId:
        asked = self.lessee.ask(
            order, SchedulingKey(needs, 3, max_price_micro), wanted=wanted, now=at(now_s), cause=""
        )
        for to, message in self.sends():
            assert isinstance(message, PlacementRequest)
            self.request_ids[to] = message.request_id
        return asked

    def sends(self) -> list[tuple[PeerId, WorkMessage]]:
        effects, events = self.lessee.take()
        assert events == []
        return sent(effects)

    def hears(self) -> tuple[list[tuple[PeerId, WorkMessage]], list[LesseeEvent]]:
        effects, events = self.lessee.take()
        return sent(effects), events

    def offered(
        self,
        by: Contact,
        lease_id: str,
        now_s: float = 0,
        holds: HeldResources = HELD,
        price_micro: int = 0,
        hold_ms: int = 1500,
    ) -> None:
        request_id = self.request_ids[by.peer_id]
        offer = Offer(request_id, lease_id, holds, price_micro, hold_ms)
        self.lessee.received(by, offer, at(now_s))

    def refused(self, by: Contact, now_s: float = 0) -> None:
        self.lessee.received(by, RequestRefused(self.request_ids[by.peer_id], BUSY), at(now_s))

    def committed(self, by: Contact, now_s: float = 0) -> HeldLease:
        self.ask(by, now_s=now_s)
        self.offered(by, f"of {by.peer_id}", now_s)
        self.lessee.take()
        return self.lessee.held[by.peer_id, f"of {by.peer_id}"]

    def leased(self, by: Contact, now_s: float = 0) -> HeldLease:
        lease = self.committed(by, now_s)
        self.lessee.received(by, Leased(lease.lease_id, 5, LEASE_MS, 64), at(0))
        assert self.hears() == ([], [LeaseHeld(lease)])
        return lease


@pytest.fixture
def bob() -> Bob:
    return Bob()


# -- the table ------------------------------------------------------------------------------

GONE = Gone("the lease", "for the test")


HAPPEN: dict[str, Callable[[Bob, HeldLease], object]] = {
    "leased": lambda bob, x: bob.lessee.received(ALICE, Leased(x.lease_id, 5, LEASE_MS, 64), at(0)),
    "refused": lambda bob, x: bob.lessee.received(ALICE, CommitRefused(x.lease_id, GONE), at(0)),
    "renew": lambda bob, x: bob.lessee.tick(at(x.renew_s if x.renew_s < 1000 else 1)),
    "renewed": lambda bob, x: bob.lessee.received(ALICE, Renewed(x.lease_id, LEASE_MS, 64), at(0)),
    "ended": lambda bob, x: bob.lessee.received(ALICE, LeaseEnded(x.lease_id, GONE), at(0)),
    "expired": lambda bob, x: bob.lessee.tick(at(1000)),
    "released": lambda bob, x: bob.lessee.release(x, "for the test"),
    "disconnected": lambda bob, x: bob.lessee.disconnected(ALICE.peer_id, at(1)),
    "undelivered": lambda bob, x: bob.lessee.undelivered(Undelivered(ALICE.peer_id, "no"), at(1)),
}


def in_state(bob: Bob, state: HeldState) -> HeldLease:
    if state in (HeldState.COMMITTED, HeldState.RECOMMITTED):
        lease = bob.committed(ALICE)
        if state is HeldState.RECOMMITTED:
            bob.lessee.undelivered(Undelivered(ALICE.peer_id, "no"), at(0))
            assert bob.sends() == [(ALICE.peer_id, Commit(lease.lease_id))]
        return lease
    if state is HeldState.ADOPTED:
        lease = bob.lessee.adopt(ALICE, "a1", SchedulingKey(NEEDS, 3), 5, (), at(0))
    else:
        lease = bob.leased(ALICE)
    match state:
        case HeldState.RENEWING:
            bob.lessee.tick(at(lease.renew_s))
        case HeldState.SUSPECT:
            bob.lessee.disconnected(ALICE.peer_id, at(0))
        case HeldState.UNREACHED:
            for _ in range(2):
                bob.lessee.undelivered(Undelivered(ALICE.peer_id, "no"), at(0))
        case HeldState.ENDED:
            bob.lessee.release(lease, "for the test")
    bob.lessee.take()
    return lease


@pytest.mark.parametrize("event", HAPPEN)
@pytest.mark.parametrize("state", HeldState)
def test_a_lease_follows_the_table_and_nothing_else(bob: Bob, state: HeldState, event: str) -> None:
    lease = in_state(bob, state)
    assert lease.state is state
    HAPPEN[event](bob, lease)
    to = TRANSITIONS.get(state, {}).get(event)
    assert lease.state is (to or state)
    assert (lease.key in bob.lessee.held) == (lease.state is not HeldState.ENDED)
    sends, events = bob.hears()
    asks = event in ("renew", "disconnected", "undelivered")
    renewals = [message for _, message in sends if isinstance(message, Renew)]
    assert len(renewals) == (asks and to not in (None, HeldState.RECOMMITTED, HeldState.ENDED))
    lost = [x for x in events if isinstance(x, LeaseLost)]
    ended_by_them = to is HeldState.ENDED and event != "released"
    assert [x.state for x in lost] == [state] * ended_by_them
    in_doubt = (HeldState.SUSPECT, HeldState.UNREACHED, HeldState.ADOPTED)
    recovered = event == "renewed" and state in in_doubt
    assert len([x for x in events if isinstance(x, LeaseRecovered)]) == recovered


def test_every_event_of_the_table_is_tried_above() -> None:
    assert {event for ways in TRANSITIONS.values() for event in ways} == HAPPEN.keys()


# -- rounds ---------------------------------------------------------------------------------


def test_everyone_is_asked_with_the_needs_and_the_grant(bob: Bob) -> None:
    bob.lessee.ask((ALICE, CAROL), SchedulingKey(NEEDS, 3), wanted=1, now=at(0), cause="a job")
    (to_alice, first), (to_carol, second) = bob.sends()
    assert (to_alice, to_carol) == (ALICE.peer_id, CAROL.peer_id)
    assert isinstance(first, PlacementRequest)
    assert isinstance(second, PlacementRequest)
    assert (first.needs, first.grant, first.priority) == (NEEDS, b"a grant", 3)
    assert first.request_id != second.request_id


def test_the_round_closes_as_soon_as_the_best_has_offered(bob: Bob) -> None:
    asked = bob.ask(ALICE, CAROL)
    bob.offered(ALICE, "a1")
    # carol is outstanding, but she could only lose; that is no fault of hers.
    assert bob.hears() == (
        [(ALICE.peer_id, Commit("a1"))],
        [RoundClosed(asked, (ALICE.peer_id,), ())],
    )
    bob.offered(CAROL, "c1", now_s=0.1)
    assert bob.hears() == ([(CAROL.peer_id, Release("c1"))], [])


def test_a_lesser_offer_waits_half_a_second_for_a_better_one(bob: Bob) -> None:
    asked = bob.ask(ALICE, CAROL, DAVE)
    bob.offered(DAVE, "d1", now_s=1.0)  # they are all far away
    bob.offered(CAROL, "c1", now_s=1.1)
    assert bob.hears() == ([], [])
    assert bob.lessee.next_timeout() == 1.0 + DELIBERATION_S
    bob.lessee.tick(at(1.0 + DELIBERATION_S))
    gone = Silent("it did not answer within 1.5 s")
    assert bob.hears() == (
        [(CAROL.peer_id, Commit("c1")), (DAVE.peer_id, Release("d1"))],
        [RoundClosed(asked, (CAROL.peer_id,), ((ALICE.peer_id, gone),))],
    )


def test_of_two_offers_by_one_worker_for_one_request_the_first_counts(bob: Bob) -> None:
    """Also where the second is cheaper: to wait for another one would be to wait in every round."""
    asked = bob.ask(CAROL, ALICE)
    bob.offered(ALICE, "a1", price_micro=9)
    bob.offered(ALICE, "a2", price_micro=1)
    assert bob.hears() == ([(ALICE.peer_id, Release("a2"))], [])
    bob.refused(CAROL)
    assert bob.hears() == (
        [(ALICE.peer_id, Commit("a1"))],
        [RoundClosed(asked, (ALICE.peer_id,), ((CAROL.peer_id, BUSY),))],
    )


def test_as_many_are_taken_as_are_wanted(bob: Bob) -> None:
    asked = bob.ask(ALICE, CAROL, DAVE, wanted=2)
    bob.refused(ALICE)
    bob.offered(DAVE, "d1")
    assert bob.hears() == ([], [])
    bob.offered(CAROL, "c1")
    assert bob.hears() == (
        [(CAROL.peer_id, Commit("c1")), (DAVE.peer_id, Commit("d1"))],
        [RoundClosed(asked, (CAROL.peer_id, DAVE.peer_id), ((ALICE.peer_id, BUSY),))],
    )


def test_silence_ends_a_round_after_three_seconds(bob: Bob) -> None:
    asked = bob.ask(ALICE)
    assert bob.lessee.next_timeout() == ANSWER_S
    bob.lessee.tick(at(ANSWER_S - 0.1))
    assert bob.hears() == ([], [])
    bob.lessee.tick(at(ANSWER_S))
    gone = Silent("it did not answer within 3.0 s")
    assert bob.hears() == ([], [RoundClosed(asked, (), ((ALICE.peer_id, gone),))])


def test_a_worker_out_of_reach_is_as_good_as_a_refusal(bob: Bob) -> None:
    asked = bob.ask(ALICE, CAROL)
    bob.lessee.undelivered(Undelivered(DAVE.peer_id, "no business of this round"), at(0))
    bob.offered(CAROL, "c1")
    bob.lessee.undelivered(Undelivered(CAROL.peer_id, "it broke once the offer was there"), at(0))
    bob.lessee.undelivered(Undelivered(ALICE.peer_id, "no route"), at(0))
    gone = Silent("no route")
    assert bob.hears() == (
        [(CAROL.peer_id, Commit("c1"))],
        [RoundClosed(asked, (CAROL.peer_id,), ((ALICE.peer_id, gone),))],
    )


NEEDS_ALL = Requirements(
    cpu_milli=1000,
    memory_bytes=GIB,
    storage_bytes=GIB,
    network_mbps=100,
    gpu_count=2,
    gpu_memory_bytes=GIB,
    gpu_share_milli=500,
    driver="process",
)
HELD_ALL = HeldResources(1000, GIB, GIB, 100, ("GPU-0", "GPU-1"), 500, GIB)


@pytest.mark.parametrize(
    ("holds", "why"),
    [
        (replace(HELD_ALL, cpu_milli=999), Infeasible("cpu", 1000, 999)),
        (replace(HELD_ALL, memory_bytes=GIB - 1), Infeasible("memory", GIB, GIB - 1)),
        (replace(HELD_ALL, storage_bytes=0), Infeasible("storage", GIB, 0)),
        (replace(HELD_ALL, network_mbps=99), Infeasible("network", 100, 99)),
        (replace(HELD_ALL, device_ids=()), Infeasible("gpu", 2, 0)),
        (replace(HELD_ALL, device_ids=("GPU-0",)), Infeasible("gpu", 2, 1)),
        (replace(HELD_ALL, device_ids=("GPU-0", "GPU-0")), Infeasible("gpu", 2, 1)),
        (replace(HELD_ALL, device_ids=("a", "b", "b")), Infeasible("gpu", 2, 2)),
        (replace(HELD_ALL, device_ids=("a", "b", "c")), Infeasible("gpu", 2, 3)),
        (replace(HELD_ALL, gpu_share_milli=499), Infeasible("gpu.share", 500, 499)),
        (replace(HELD_ALL, gpu_memory_bytes=1), Infeasible("gpu.memory", GIB, 1)),
    ],
    ids=lambda value: value.resource if isinstance(value, Infeasible) else "",
)
def test_an_offer_that_holds_less_than_was_asked_for_is_given_back(
    bob: Bob, holds: HeldResources, why: Infeasible
) -> None:
    asked = bob.ask(ALICE, needs=NEEDS_ALL)
    bob.offered(ALICE, "a1", holds=holds)
    assert bob.hears() == (
        [(ALICE.peer_id, Release("a1"))],
        [RoundClosed(asked, (), ((ALICE.peer_id, why),))],
    )


def test_an_offer_that_holds_more_is_taken(bob: Bob) -> None:
    bob.ask(ALICE, needs=NEEDS_ALL)
    bob.offered(
        ALICE, "a1", holds=HeldResources(2000, 2 * GIB, 2 * GIB, 200, ("a", "b"), 1000, 2 * GIB)
    )
    assert bob.lessee.held[ALICE.peer_id, "a1"].device_ids == ("a", "b")


@pytest.mark.parametrize("hold_ms", [0, MIN_HOLD_MS - 1, MAX_HOLD_MS + 1])
def test_an_offer_is_held_for_as_long_as_deliberation_takes_and_no_absurd_time(
    bob: Bob, hold_ms: int
) -> None:
    asked = bob.ask(ALICE)
    bob.offered(ALICE, "a1", hold_ms=hold_ms)
    why = Infeasible("hold", f"{MIN_HOLD_MS} to {MAX_HOLD_MS} ms", hold_ms)
    assert bob.hears() == (
        [(ALICE.peer_id, Release("a1"))],
        [RoundClosed(asked, (), ((ALICE.peer_id, why),))],
    )


@pytest.mark.parametrize("slept_s", [1.5, 60.0])
def test_an_offer_that_ran_out_while_this_machine_slept_is_not_committed(
    bob: Bob, slept_s: float
) -> None:
    asked = bob.ask(ALICE, CAROL)
    bob.offered(CAROL, "c1", now_s=0, hold_ms=1500)
    bob.lessee.tick(at(slept_s))
    gone = Silent(f"it did not answer within {slept_s} s")
    assert bob.hears() == (
        [(CAROL.peer_id, Release("c1"))],
        [RoundClosed(asked, (), ((ALICE.peer_id, gone),))],
    )


# -- prices ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("price_micro", "is_taken"), [(0, True), (160, True), (161, False)])
def test_the_price_is_at_most_what_the_job_may_cost(
    bob: Bob, price_micro: int, is_taken: bool
) -> None:
    asked = bob.ask(ALICE, max_price_micro=160)
    bob.offered(ALICE, "a1", price_micro=price_micro)
    committed = (ALICE.peer_id,) if is_taken else ()
    refusals = () if is_taken else ((ALICE.peer_id, TooDear(161, 160)),)
    message = Commit("a1") if is_taken else Release("a1")
    assert bob.hears() == ([(ALICE.peer_id, message)], [RoundClosed(asked, committed, refusals)])


def test_no_worker_can_tell_a_price_too_high_from_a_place_too_low() -> None:
    """What dave and carol see, and when, is the same whether they were too dear or too far."""

    def seen_by_the_others(dear_micro: int) -> list[object]:
        bob = Bob()
        bob.ask(ALICE, CAROL, DAVE, max_price_micro=100)
        seen: list[object] = []
        for name, by in (("d1", DAVE), ("c1", CAROL)):
            bob.offered(by, name, price_micro=dear_micro)
            seen.append(bob.hears())
        bob.offered(ALICE, "a1", price_micro=50)
        messages, _ = bob.hears()
        return [*seen, sorted(m for m in map(str, messages) if "Commit" not in m)]

    assert seen_by_the_others(50) == seen_by_the_others(101)


def test_the_limit_is_never_sent(bob: Bob) -> None:
    bob.lessee.ask((ALICE,), SchedulingKey(NEEDS, 0, 424242), wanted=1, now=at(0), cause="")
    ((_, request),) = bob.sends()
    assert isinstance(request, PlacementRequest)
    assert "424242" not in str(request)
    assert (424242).to_bytes(3, "big") not in pack(request)


# -- answers that nobody asked for ------------------------------------------------------------


def test_an_answer_counts_only_from_whom_it_was_asked_and_once(bob: Bob) -> None:
    bob.ask(ALICE, CAROL)
    offer = Offer(bob.request_ids[ALICE.peer_id], "m1", HELD, 0, 1500)
    bob.lessee.received(MALLORY, offer, at(0))
    assert bob.hears() == ([(MALLORY.peer_id, Release("m1"))], [])
    bob.lessee.received(MALLORY, RequestRefused(bob.request_ids[ALICE.peer_id], BUSY), at(0))
    bob.refused(ALICE)
    bob.offered(ALICE, "a1")  # she has refused already
    assert bob.hears() == ([(ALICE.peer_id, Release("a1"))], [])


def test_a_lease_that_a_worker_offers_twice_counts_once(bob: Bob) -> None:
    """Else the second round would take the lease from under the first, which waits for ever."""
    lease = bob.leased(ALICE)
    asked = bob.ask(ALICE)
    bob.offered(ALICE, lease.lease_id)
    twice = Gone(f"lease {lease.lease_id}", "the worker offered it twice")
    assert bob.hears() == ([], [RoundClosed(asked, (), ((ALICE.peer_id, twice),))])
    assert bob.lessee.held == {lease.key: lease}


def test_an_offer_too_small_under_the_name_of_a_lease_held_does_not_end_that(bob: Bob) -> None:
    lease = bob.leased(ALICE)
    bob.ask(ALICE)
    bob.offered(ALICE, lease.lease_id, holds=replace(HELD, cpu_milli=1))
    assert bob.hears()[0] == []
    assert bob.lessee.held == {lease.key: lease}


def test_an_offer_that_comes_twice_counts_once_and_stands(bob: Bob) -> None:
    bob.ask(ALICE, CAROL)
    for _ in range(2):
        bob.offered(CAROL, "c1")
        bob.refused(CAROL)  # too late
    assert bob.hears() == ([], [])
    bob.refused(ALICE)
    assert bob.hears()[0] == [(CAROL.peer_id, Commit("c1"))]
    bob.offered(CAROL, "c1")
    assert bob.hears() == ([], [])


def test_an_offer_that_was_turned_down_and_comes_twice_is_given_back_once(bob: Bob) -> None:
    bob.ask(ALICE, CAROL)
    for _ in range(2):
        bob.offered(CAROL, "c1", holds=replace(HELD, cpu_milli=1))
    bob.refused(ALICE)
    assert bob.hears()[0] == [(CAROL.peer_id, Release("c1"))]


def test_two_workers_may_have_leases_of_the_same_name(bob: Bob) -> None:
    bob.ask(ALICE, CAROL, wanted=2)
    bob.offered(ALICE, "1")
    bob.offered(CAROL, "1")
    assert set(bob.lessee.held) == {(ALICE.peer_id, "1"), (CAROL.peer_id, "1")}


def test_a_later_life_of_a_node_uses_other_request_ids() -> None:
    first, second = (Lessee(b"", random.Random(seed)) for seed in (1, 2))
    for lessee in (first, second):
        lessee.ask((ALICE,), SchedulingKey(NEEDS), wanted=1, now=at(0), cause="")
    assert sent(first.take()[0]) != sent(second.take()[0])


# -- offers of workers that were not asked, and offers that are collected ---------------------


def test_offers_that_answer_a_call_are_taken_once_there_are_enough(bob: Bob) -> None:
    number = bob.lessee.call(SchedulingKey(NEEDS, 3), wanted=2, enough=2, until_s=60)
    call = bob.lessee.called(number, at(0))
    assert call is not None
    bob.request_ids = {who.peer_id: number for who in (ALICE, CAROL, DAVE)}
    first = bob.lessee.expected(call, [ALICE], 2, at(0), "a want")
    bob.offered(ALICE, "of alice")
    bob.offered(DAVE, "of dave")
    assert bob.hears() == ([(DAVE.peer_id, Release("of dave"))], [])
    assert bob.lessee.expected(call, [CAROL, ALICE], 2, at(0), "a want") == first
    bob.offered(CAROL, "of carol")
    commits = [(CAROL.peer_id, Commit("of carol")), (ALICE.peer_id, Commit("of alice"))]
    closed = RoundClosed(first, (CAROL.peer_id, ALICE.peer_id), ())
    assert bob.hears() == (commits, [closed])
    second = bob.lessee.expected(call, [DAVE], 1, at(0), "a want")
    assert second != first
    bob.offered(DAVE, "again of dave")
    bob.lessee.tick(at(DELIBERATION_S - 0.01))
    assert bob.hears() == ([], [])
    bob.lessee.tick(at(DELIBERATION_S))
    closed = RoundClosed(second, (DAVE.peer_id,), ())
    assert bob.hears() == ([(DAVE.peer_id, Commit("again of dave"))], [closed])


def test_no_call_has_the_number_of_a_request(bob: Bob) -> None:
    numbers = []
    for _ in range(2):
        bob.ask(ALICE, CAROL)
        call = bob.lessee.call(SchedulingKey(NEEDS, 3), wanted=1, enough=1, until_s=60)
        numbers += [*bob.request_ids.values(), call]
    assert len(set(numbers)) == len(numbers)


def test_offers_that_are_collected_are_committed_to_or_turned_down_once(bob: Bob) -> None:
    key = SchedulingKey(NEEDS, 3)
    order = [ALICE, CAROL, DAVE]
    asked = bob.lessee.ask(
        order, key, wanted=3, now=at(0), cause="a gang", collects=True, beside=(7,), since_ms=5
    )
    requests = dict(bob.sends())
    for who, request in requests.items():
        assert isinstance(request, PlacementRequest)
        assert (request.beside, request.since_ms) == ((7,), 5)
        bob.request_ids[who] = request.request_id
    bob.offered(DAVE, "of dave")
    bob.refused(CAROL)
    bob.offered(ALICE, "of alice")
    ([], [collected]) = bob.hears()
    assert isinstance(collected, OffersCollected)
    assert (collected.round, collected.refusals) == (asked, ((CAROL.peer_id, BUSY),))
    offers = collected.offers
    assert [each.key for each in offers] == [
        (ALICE.peer_id, "of alice"),
        (DAVE.peer_id, "of dave"),
    ]
    assert [each.until_s for each in offers] == [1.5, 1.5]
    lease = bob.lessee.commit(offers[0], key, at(0), "a gang")
    assert bob.sends() == [(ALICE.peer_id, Commit("of alice"))]
    assert (lease.state, lease.scheduling_key, lease.asked_s) == (HeldState.COMMITTED, key, 0)
    assert bob.lessee.held == {lease.key: lease}
    assert [*bob.lessee.offers] == [offers[1].key]
    for given_back in ([(DAVE.peer_id, Release("of dave"))], []):
        bob.lessee.turn_down(offers, "it takes one")
        assert bob.sends() == given_back


# -- leases ---------------------------------------------------------------------------------


def test_a_lease_is_renewed_at_two_thirds_and_then_every_second(bob: Bob) -> None:
    lease = bob.leased(ALICE)
    assert lease.expires_s == 10.0
    assert bob.lessee.next_timeout() == pytest.approx(20 / 3)
    renew = (ALICE.peer_id, Renew(lease.lease_id, 5))
    bob.lessee.tick(at(6.6))
    assert bob.hears() == ([], [])
    bob.lessee.tick(at(6.7))
    assert bob.hears() == ([renew], [])
    assert bob.lessee.next_timeout() == 6.7 + LEASE_DEFAULTS.renew_again_s
    bob.lessee.tick(at(7.7))
    assert bob.hears() == ([renew], [])
    bob.lessee.received(ALICE, Renewed(lease.lease_id, LEASE_MS, 64), at(0))
    assert bob.hears() == ([], [])
    assert lease.expires_s == 16.7  # from the first renewal that was not answered


def test_however_long_a_worker_grants_it_is_heard_from(bob: Bob) -> None:
    lease = bob.committed(ALICE)
    bob.lessee.received(ALICE, Leased(lease.lease_id, 5, 24 * 3600 * 1000, 64), at(0))
    assert lease.expires_s == LEASE_DEFAULTS.max_lease_s


def test_a_commit_that_is_not_answered_in_time_is_lost_and_the_late_lease_returned(
    bob: Bob,
) -> None:
    lease = bob.committed(ALICE)
    bob.lessee.tick(at(ANSWER_S))
    gone = Silent("it did not answer in time")
    assert bob.hears() == ([], [LeaseLost(lease, gone, HeldState.COMMITTED)])
    bob.lessee.received(ALICE, Leased(lease.lease_id, 5, LEASE_MS, 64), at(0))
    assert bob.hears() == ([(ALICE.peer_id, Release(lease.lease_id))], [])


def test_a_released_lease_is_given_back_once(bob: Bob) -> None:
    lease = bob.leased(ALICE)
    bob.lessee.release(lease, "idle")
    bob.lessee.release(lease, "idle")
    assert bob.hears() == ([(ALICE.peer_id, Release(lease.lease_id))], [])


def test_a_lease_that_is_given_up_is_lost_once(bob: Bob) -> None:
    lease, distrusted = bob.leased(ALICE), Silent("it is not believed")
    for _ in range(2):
        bob.lessee.give_up(lease, distrusted, "barred")
    lost = LeaseLost(lease, distrusted, HeldState.HELD)
    assert bob.hears() == ([(ALICE.peer_id, Release(lease.lease_id))], [lost])


def test_a_release_that_may_be_lost_is_sent_again_while_its_worker_may_hold_the_lease(
    bob: Bob,
) -> None:
    lease, other = bob.leased(ALICE), bob.leased(CAROL)
    bob.lessee.release(lease, "idle")
    bob.lessee.release(other, "idle")
    bob.hears()
    broke = Undelivered(ALICE.peer_id, "the stream was reset")
    for _ in range(REPEATS):
        bob.lessee.undelivered(broke, at(1))
        assert bob.hears() == ([(ALICE.peer_id, Release(lease.lease_id))], [])
    bob.lessee.undelivered(broke, at(1))
    assert bob.hears() == ([], [])
    late_s = LEASE_DEFAULTS.max_lease_s
    bob.lessee.undelivered(Undelivered(CAROL.peer_id, "the stream was reset"), at(late_s))
    assert bob.hears() == ([], [])


def test_the_releases_kept_in_mind_are_bounded() -> None:
    releases = Releases()
    for number in range(MAX_RELEASES + 1):
        releases.sent(ALICE, f"a{number}", 10.0)
    assert len(releases) == MAX_RELEASES
    assert (ALICE, "a0") not in releases.again(ALICE.peer_id, at(0))


def test_what_a_worker_says_of_leases_that_are_not_its_own_is_ignored(bob: Bob) -> None:
    lease = bob.leased(ALICE)
    before = lease.expires_s
    bob.lessee.received(MALLORY, Renewed(lease.lease_id, 1, 64), at(0))
    bob.lessee.received(MALLORY, LeaseEnded(lease.lease_id, Leaving()), at(0))
    bob.lessee.received(MALLORY, CommitRefused(lease.lease_id, Leaving()), at(0))
    assert bob.hears() == ([], [])
    assert (lease.state, lease.expires_s) == (HeldState.HELD, before)


def test_renewals_that_nobody_asked_for_prolong_nothing(bob: Bob) -> None:
    lease = bob.leased(ALICE)
    for _ in range(3):
        bob.lessee.received(ALICE, Renewed(lease.lease_id, LEASE_MS, 64), at(0))
    assert lease.expires_s == 10.0


def test_a_renewal_may_widen_or_narrow_the_window(bob: Bob) -> None:
    lease = bob.leased(ALICE)
    assert lease.window == 64
    bob.lessee.received(ALICE, Renewed(lease.lease_id, LEASE_MS, 3), at(0))
    assert lease.window == 3


# -- leases of an earlier incarnation -------------------------------------------------------


def test_that_a_lease_yields_is_told_once_and_that_it_does_no_longer_too(bob: Bob) -> None:
    lease, committed = bob.leased(ALICE), bob.committed(CAROL)
    for yields_ms, is_told in ((30_000, True), (20_000, False), (None, True), (None, False)):
        bob.lessee.received(ALICE, Renewed(lease.lease_id, 0, 64, yields_ms), at(1))
        assert bob.hears() == ([], [LeaseYields(lease)] if is_told else [])
    # The worker has not said that it is leased.
    bob.lessee.received(CAROL, Renewed(committed.lease_id, 0, 64, 30_000), at(1))
    assert bob.hears() == ([], [])


def adopted(bob: Bob) -> HeldLease:
    """Bob was started again, and knows from his disk of a lease of alice's."""
    lease = bob.lessee.adopt(ALICE, "a1", SchedulingKey(NEEDS, 3), 5, ("GPU-0",), at(100))
    assert bob.hears() == ([(ALICE.peer_id, Renew("a1", 5, b"a grant"))], [])
    assert (lease.state, lease.grant) == (HeldState.ADOPTED, b"")
    assert bob.lessee.held == {(ALICE.peer_id, "a1"): lease}
    return lease


def test_a_lease_of_an_earlier_incarnation_is_taken_up_once_its_worker_answers(bob: Bob) -> None:
    lease = adopted(bob)
    bob.lessee.received(ALICE, Renewed("a1", LEASE_MS, 64), at(0))
    assert bob.hears() == ([], [LeaseRecovered(lease)])
    assert (lease.state, lease.expires_s, lease.window) == (HeldState.HELD, 110.0, 64)


# -- broken streams -------------------------------------------------------------------------


def test_after_a_broken_stream_the_worker_is_asked_and_its_answer_recovers_the_lease(
    bob: Bob,
) -> None:
    lease, others = bob.leased(ALICE), bob.leased(CAROL)
    bob.lessee.undelivered(Undelivered(ALICE.peer_id, "broke"), at(2))
    assert bob.hears() == ([(ALICE.peer_id, Renew(lease.lease_id, 5))], [])
    assert (lease.state, others.state) == (HeldState.SUSPECT, HeldState.HELD)
    bob.lessee.received(ALICE, Renewed(lease.lease_id, LEASE_MS, 64), at(0))
    assert bob.hears() == ([], [LeaseRecovered(lease)])
    assert lease.expires_s == 12.0
    bob.lessee.received(ALICE, Renewed(lease.lease_id, LEASE_MS, 64), at(0))
    assert bob.hears() == ([], [])


def test_a_lease_that_was_asked_for_on_an_older_grant_is_renewed_on_the_new_one(bob: Bob) -> None:
    lease = bob.leased(ALICE)
    bob.lessee.grant = b"a new grant"
    bob.lessee.disconnected(ALICE.peer_id, at(2))
    assert bob.hears() == ([(ALICE.peer_id, Renew(lease.lease_id, 5, b"a new grant"))], [])


def test_a_closed_connection_is_a_reason_to_ask_once(bob: Bob) -> None:
    lease, _ = bob.leased(ALICE), bob.leased(DAVE)
    bob.committed(CAROL)
    bob.lessee.disconnected(ALICE.peer_id, at(2))
    bob.lessee.disconnected(ALICE.peer_id, at(2))
    bob.lessee.disconnected(CAROL.peer_id, at(2))  # her answer may still come
    assert bob.hears() == ([(ALICE.peer_id, Renew(lease.lease_id, 5))], [])
    assert lease.state is HeldState.SUSPECT


def test_who_leaves_gives_everything_back(bob: Bob) -> None:
    leased, committed = bob.leased(ALICE), bob.committed(CAROL)
    bob.ask(MALLORY, DAVE, BOB)
    bob.offered(DAVE, "d1")
    bob.offered(BOB, "b1", holds=replace(HELD, cpu_milli=1))
    bob.lessee.leave("leave", at(0))
    assert bob.hears() == (
        [
            (ALICE.peer_id, Release(leased.lease_id)),
            (CAROL.peer_id, Release(committed.lease_id)),
            (DAVE.peer_id, Release("d1")),
            (BOB.peer_id, Release("b1")),
        ],
        [],
    )
    bob.offered(MALLORY, "m1")  # too late
    assert bob.hears() == ([(MALLORY.peer_id, Release("m1"))], [])
    assert bob.lessee.next_timeout() == float("inf")


# -- what was refused ------------------------------------------------------------------------

KEY = SchedulingKey(NEEDS, 3)
NO_ROOM = Infeasible("cpu", 1, 0)


def refuse(bob: Bob, by: Contact, now_s: float = 0, why: PeerRefusal = NO_ROOM) -> None:
    bob.lessee.received(by, RequestRefused(bob.request_ids[by.peer_id], why), at(now_s))


def withdrawal(bob: Bob, of: Contact) -> tuple[PeerId, WorkMessage]:
    return of.peer_id, Release(waiting_id(bob.request_ids[of.peer_id]))


def test_workers_without_room_are_told_once_that_nothing_waits(bob: Bob) -> None:
    bob.ask(ALICE, CAROL, DAVE, MALLORY)
    refuse(bob, ALICE)
    refuse(bob, CAROL, why=GivingWay("cpu", 1000))
    refuse(bob, DAVE, why=BUSY)
    bob.offered(MALLORY, "m1")
    bob.lessee.take()
    bob.lessee.withdraw(SchedulingKey(NEEDS, 2), at(1), "")
    assert bob.sends() == []
    bob.lessee.withdraw(KEY, at(1), "")
    assert bob.sends() == [withdrawal(bob, ALICE), withdrawal(bob, CAROL)]
    bob.lessee.withdraw(KEY, at(1), "")
    assert bob.sends() == []


@pytest.mark.parametrize(("after_s", "told"), [(0.1, [CAROL]), (LEASE_DEFAULTS.waits_s + 0.1, [])])
def test_who_gave_a_lease_later_or_refused_long_ago_is_not_told(
    bob: Bob, after_s: float, told: list[Contact]
) -> None:
    bob.ask(ALICE, CAROL)
    refuse(bob, ALICE)
    refuse(bob, CAROL)
    bob.lessee.take()
    withdrawn = [withdrawal(bob, each) for each in told]
    bob.leased(ALICE)
    bob.lessee.withdraw(KEY, at(after_s), "")
    assert bob.sends() == withdrawn


def test_a_refusal_that_comes_too_late_is_answered(bob: Bob) -> None:
    bob.ask(ALICE, CAROL)
    bob.offered(ALICE, "a1")  # the best: the round is over
    bob.lessee.take()
    bob.lessee.withdraw(KEY, at(1), "")
    assert bob.sends() == []
    refuse(bob, CAROL, 2)
    assert bob.sends() == [withdrawal(bob, CAROL)]
    refuse(bob, CAROL, 2)
    assert bob.sends() == []


def test_who_leaves_withdraws_all_requests(bob: Bob) -> None:
    bob.ask(ALICE)
    refuse(bob, ALICE)
    bob.lessee.take()
    bob.ask(CAROL, needs=replace(NEEDS, cpu_milli=1))
    bob.lessee.leave("leave", at(1))
    assert bob.sends() == [withdrawal(bob, ALICE)]
    refuse(bob, CAROL, 2)
    assert bob.sends() == [withdrawal(bob, CAROL)]


def test_the_requests_of_a_gang_are_not_withdrawn(bob: Bob) -> None:
    bob.lessee.ask([ALICE], KEY, wanted=1, now=at(0), cause="", collects=True)
    ((_, request),) = bob.sends()
    assert isinstance(request, PlacementRequest)
    bob.lessee.received(ALICE, RequestRefused(request.request_id, NO_ROOM), at(0))
    bob.lessee.take()
    bob.lessee.leave("leave", at(1))
    assert bob.sends() == []


def test_requests_without_an_answer_are_bounded() -> None:
    unserved = Unserved(LEASE_DEFAULTS)
    for request_id in range(MAX_UNANSWERED + 9):
        unserved.asked(request_id, KEY)
    assert len(unserved) == MAX_UNANSWERED
    assert not unserved.answered(ALICE, RequestRefused(0, NO_ROOM), at(0))
    assert not unserved.answered(ALICE, RequestRefused(MAX_UNANSWERED, NO_ROOM), at(0))
    assert unserved.withdraw(KEY, at(0)) == [(ALICE, MAX_UNANSWERED)]


@pytest.mark.parametrize("state", [HeldState.COMMITTED, HeldState.RECOMMITTED])
def test_who_is_not_admitted_any_more_is_not_leased_though_it_was_committed_to(
    bob: Bob, state: HeldState
) -> None:
    lease, denied = in_state(bob, state), Denied("work", "the charter has it elsewhere")
    bob.lessee.forsake(lambda each: denied)
    assert bob.hears() == ([], [LeaseLost(lease, denied, state)])
    bob.lessee.received(ALICE, Leased(lease.lease_id, 5, LEASE_MS, 64), at(0))
    assert bob.hears() == ([(ALICE.peer_id, Release(lease.lease_id))], [])


def test_what_is_for_another_is_asked_for_by_what_both_may() -> None:
    root = identity("root")
    soon = int(EPOCH_UNIX_S) + 3600
    own = issue(root, Rights(soon), BOB.peer_id)
    theirs = issue(root, Rights(soon, max_priority=4), CAROL.peer_id)
    bob = Bob()
    bob.lessee.grant, bob.lessee.root_public_key = own, root.public_key
    for number, (on_behalf, most) in enumerate(((b"", 100), (theirs, 4))):
        key, lease_id = SchedulingKey(NEEDS, 3, on_behalf=on_behalf), f"lease{number}"
        bob.lessee.ask([ALICE], key, wanted=1, now=at(0), cause="")
        [(_, request)] = bob.sends()
        assert isinstance(request, PlacementRequest)
        assert read_grant(request.grant, root.public_key).rights.max_priority == most
        held = bob.lessee.adopt(ALICE, lease_id, key, 1, (), at(0))
        [(_, renewal)] = bob.sends()
        assert isinstance(renewal, Renew)
        assert renewal.grant == request.grant
        bob.lessee.release(held, "")
        bob.sends()
    bob.lessee.root_public_key = b""
    assert bob.lessee.shown(key) == b"", "of another network, or without one"
