"""What hints make of workers: who is out of the question, and who comes first."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.refusals import Unwanted
from formation_p2p.placement.core.candidate import Candidate
from formation_p2p.placement.core.hinted import LAST_RESORT, may_hold, unmet, unwanted, welcome
from formation_p2p.placement.core.policy import Policy
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.hints import Hints, Kind
from formation_p2p.workload.core.scope import Scope
from tests.support.placement_world import order, profile, task
from tests.support.stories import ALICE, BOB, CAROL, DAVE

NEAR = (Blob(Cid(RAW, digest_of(b"a")), 300), Blob(Cid(RAW, digest_of(b"b")), 100))


def worker(of: Contact, labels: tuple[tuple[str, str], ...] = (), **facts: Any) -> Candidate:
    return Candidate(profile=profile(of, labels=labels), **facts)


def test_data_may_be_held_by_those_inside_the_scope_and_the_region() -> None:
    inside = Hints(region="eu", required={Kind.REGION})
    assert may_hold(Scope.COMMONS, Hints(), worker(ALICE))
    assert not may_hold(Scope.ORG, Hints(), worker(ALICE))
    assert may_hold(Scope.ORG, inside, worker(ALICE, scope=Scope.ORG, region="eu"))
    assert not may_hold(Scope.COMMONS, inside, worker(ALICE, EU, region=""))
    assert may_hold(Scope.COMMONS, Hints(region="eu"), worker(ALICE, region="us"))


def met(hints: Hints, candidate: Candidate) -> float:
    """How far the one hint that there is is met."""
    (term,) = welcome(task(hints=hints), candidate)
    assert term.name in hints.kinds
    return term.value * term.weight


def required(hints: Hints) -> Hints:
    return replace(hints, required=frozenset(hints.kinds))


EU = (("region", "eu"),)


@pytest.mark.parametrize(
    ("hints", "candidate", "value", "why"),
    [
        (Hints(prefer=(ALICE.peer_id,)), worker(ALICE), 1, None),
        (Hints(prefer=(BOB.peer_id, ALICE.peer_id[-8:])), worker(ALICE), 1, None),
        (Hints(prefer=(BOB.peer_id,)), worker(ALICE), 0, "it is none of those named"),
        (Hints(avoid=(BOB.peer_id,)), worker(ALICE), 0, None),
        (Hints(avoid=(ALICE.peer_id,)), worker(ALICE), -8, "it is one of those named"),
        (Hints(region="eu"), worker(ALICE, EU), 1, None),
        (Hints(region="us"), worker(ALICE, EU), 0, "it is in eu, not us"),
        (Hints(region="us"), worker(ALICE), 0, "it does not say where it is"),
        # Where the charter has regions, what a worker says of itself is a wish.
        (Hints(region="eu"), worker(ALICE, region="eu"), 1, None),
        (Hints(region="eu"), worker(ALICE, EU, region="us"), 0.5, "it is in us, not eu"),
        (Hints(region="eu"), worker(ALICE, EU, region=""), 0.5, "the charter has it in no region"),
        (Hints(region="eu"), worker(ALICE, region=""), 0, "the charter has it in no region"),
        (Hints(labels=EU), worker(ALICE, EU), 1, None),
        (
            Hints(labels=(*EU, ("disk", "ssd"))),
            worker(ALICE, EU),
            0.5,
            "it is not labelled disk=ssd",
        ),
        (Hints(with_tasks=("a",)), worker(ALICE, tasks=frozenset("ab")), 1, None),
        (
            Hints(with_tasks=("a", "b", "c", "d")),
            worker(ALICE, tasks=frozenset("a")),
            0.25,
            "b, c, d does not run there",
        ),
        (Hints(away_from=("a",)), worker(ALICE, tasks=frozenset("b")), 1, None),
        (Hints(away_from=("a", "b")), worker(ALICE, tasks=frozenset("a")), 0.5, "a runs there"),
        (Hints(max_rtt_ms=50), worker(ALICE, rtt_us=50_000), 1, None),
        (
            Hints(max_rtt_ms=50),
            worker(ALICE, rtt_us=125_000),
            0.75,
            "it is 125.0 ms away, of 50 at most",
        ),
        (Hints(max_rtt_ms=50), worker(ALICE, rtt_us=900_000), 0, "it is 900.0 ms away, of 50 at"),
        # It will be measured by being asked, and says with its offer what it has.
        (Hints(max_rtt_ms=50), worker(ALICE), 0, None),
        (Hints(near=NEAR), worker(ALICE, local_bytes=100, data_bytes=400), 0.25, None),
        (Hints(near=NEAR), worker(ALICE), 0, None),
    ],
)
def test_a_hint_is_met_in_part_and_where_required_in_full(
    hints: Hints, candidate: Candidate, value: float, why: str | None
) -> None:
    assert met(hints, candidate) == value
    assert unwanted(task(hints=hints), candidate) is None
    refusal = unwanted(task(hints=required(hints)), candidate)
    if why is None:
        assert refusal is None
    else:
        assert refusal is not None
        assert refusal.hint in hints.kinds
        assert refusal.why.startswith(why)


def test_a_worker_cannot_have_more_data_than_there_is() -> None:
    assert met(Hints(near=NEAR), worker(ALICE, local_bytes=10**18, data_bytes=10**18)) == 1


def test_hints_go_before_the_policy_and_who_is_avoided_comes_last() -> None:
    plain, in_eu = worker(ALICE), worker(BOB, EU)
    there = worker(CAROL, EU, local_bytes=400, data_bytes=400)
    hints = Hints(region="eu", near=NEAR)
    assert order(task(hints=hints), (plain, in_eu, there), Policy()) == [
        CAROL.peer_id,
        BOB.peer_id,
        ALICE.peer_id,
    ]
    hints = replace(hints, avoid=(CAROL.peer_id,))
    assert order(task(hints=hints), (plain, in_eu, there), Policy()) == [
        BOB.peer_id,
        ALICE.peer_id,
        CAROL.peer_id,
    ]


def test_the_first_required_hint_that_is_not_met_is_the_reason() -> None:
    hints = required(Hints(region="us", labels=(("disk", "ssd"),)))
    assert unwanted(task(hints=hints), worker(ALICE, EU)) == Unwanted(
        "region", "it is in eu, not us"
    )


def test_what_an_offer_alone_can_tell_is_judged_by_the_offer() -> None:
    hints = required(Hints(near=NEAR, max_rtt_ms=50))
    assert unmet(hints, (0, 1), 50_000) is None
    assert unmet(hints, (0,), 50_000) == Unwanted("near", "it has 300B of 400B")
    assert unmet(hints, (0, 1), 50_001) == Unwanted("rtt", "it is 50.0 ms away, of 50 at most")
    assert unmet(replace(hints, required=frozenset()), (), 900_000) is None


somewhere = st.sampled_from(((), EU, (("region", "us"),), (("disk", "ssd"),)))
workers = st.builds(
    worker,
    st.sampled_from((ALICE, BOB, CAROL, DAVE)),
    somewhere,
    tasks=st.frozensets(st.sampled_from("ab")),
    rtt_us=st.none() | st.integers(1, 900_000),
    local_bytes=st.integers(0, 400),
)
ALL = Hints(
    prefer=(ALICE.peer_id,),
    avoid=(DAVE.peer_id,),
    region="eu",
    labels=(("disk", "ssd"),),
    near=NEAR,
    with_tasks=("a",),
    away_from=("b",),
    max_rtt_ms=100,
)


@given(workers)
def test_every_term_is_from_0_to_1_but_for_the_last_resort(candidate: Candidate) -> None:
    terms = welcome(task(hints=ALL), candidate)
    assert [term.name for term in terms] == list(Kind)
    for term in terms:
        if term.name == Kind.AVOID:
            assert (term.value, term.weight) in ((0.0, LAST_RESORT), (-1.0, LAST_RESORT))
        else:
            assert 0 <= term.value <= 1
            assert term.weight == 1


@given(workers, workers)
def test_whoever_is_avoided_comes_after_whoever_is_not(one: Candidate, other: Candidate) -> None:
    def total(candidate: Candidate) -> float:
        return sum(term.value * term.weight for term in welcome(task(hints=ALL), candidate))

    if one.peer_id == DAVE.peer_id and other.peer_id != DAVE.peer_id:
        assert total(one) < total(other)


@given(workers)
def test_only_a_hint_that_is_not_met_in_full_refuses_a_worker(candidate: Candidate) -> None:
    full = {Kind.AVOID: 0.0}
    terms = welcome(task(hints=ALL), candidate)
    short = {term.name for term in terms if term.value != full.get(Kind(term.name), 1.0)}
    refusal = unwanted(task(hints=required(ALL)), candidate)
    if refusal is None:
        assert short <= {Kind.NEAR, Kind.RTT}
    else:
        assert refusal.hint in short
