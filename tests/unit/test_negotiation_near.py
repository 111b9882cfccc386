"""Bob's tasks want to be near data, or near him: the offers say who is."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Unwanted
from formation_p2p.leases.core.held import HeldResources
from formation_p2p.leases.core.lessee import Lessee, RoundClosed
from formation_p2p.leases.core.messages import Commit, Offer, PlacementRequest, Release
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.hints import Hints
from tests.support.stories import ALICE, CAROL, DAVE, NEEDS, at, sent

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
