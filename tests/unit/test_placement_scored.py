"""A sum of reasons, each of which can be read; and the same draw for whoever repeats it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.tariffs import (
    offered_price_micro,
    price_behind_queue_micro,
    price_under_load_micro,
    starts_in_ms,
    unit_price_micro,
)
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.keyspace import key_of
from formation_p2p.core.refusals import Distrusted, TooDear
from formation_p2p.core.units import GIB
from formation_p2p.machine.core.capability import Capability, Capacity, idle
from formation_p2p.machine.core.fits import GpuClaim
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core import policies as module
from formation_p2p.placement.core.candidate import Candidate, TaskView
from formation_p2p.placement.core.names import parse_policy
from formation_p2p.placement.core.policies import ONE_UNIT, Cheapest, Trusted, weight, weight_of
from formation_p2p.placement.core.scored import PRESETS, Scored
from formation_p2p.records.core.profile import Profile
from formation_p2p.trust.core.reputation import Reputation
from formation_p2p.workload.core.hints import Hints
from formation_p2p.workload.core.scope import Scope
from tests.support.placement_world import SMALL, order, peer, placed, profile, task, worker
from tests.support.stories import NEEDS, at, identity


def terms(candidate: Candidate, policy: Scored, asked: TaskView | None = None) -> dict[str, float]:
    """What each term adds, rounded to what a person would read."""
    [score] = policy.scores(asked or task(), [candidate])
    return {term.name: round(term.value * term.weight, 9) for term in score.terms}


def alone(**weights: float) -> Scored:
    return Scored(**weights)


def test_each_term_says_what_it_adds() -> None:
    half_free = Capacity(4000, 16 * GIB, 100 * GIB)
    candidate = replace(
        worker(profile("alice", capacity=half_free), trust=0.8, queue=2, rtt_ms=100),
        local_bytes=3,
        data_bytes=4,
        scope=Scope.CELL,
    )
    added = terms(candidate, PRESETS["newest"])
    jitter = added.pop("jitter")
    assert added == {
        "trust": 0.16,
        "capacity": 0.075,
        "queue": 0.08,
        "rtt": 0.08,
        "data": 0.075,
        "scope": 0.12,
        "hints": 0.0,
    }
    assert 0 <= jitter < 0.1
    [score] = PRESETS["newest"].scores(task(), [candidate])
    assert score.value == pytest.approx(0.59 + jitter)


def test_what_is_not_known_adds_nothing_and_a_stranger_is_half_trusted() -> None:
    stranger = worker("alice")
    weights = alone(trust=0.4, rtt=0.3, data=0.3)
    assert terms(stranger, weights) == {"trust": 0.2, "rtt": 0.0, "data": 0.0}


def test_from_ten_attempts_and_from_half_a_second_on_it_makes_no_difference() -> None:
    weights = alone(queue=0.5, rtt=0.5)
    assert terms(worker("alice", queue=10, rtt_ms=500), weights) == {"queue": 0.0, "rtt": 0.0}
    assert terms(worker("alice", queue=99, rtt_ms=900), weights) == {"queue": 0.0, "rtt": 0.0}


def test_the_smaller_the_circle_the_better() -> None:
    added = [
        terms(replace(worker("alice"), scope=scope), alone(scope=0.15))["scope"] for scope in Scope
    ]
    assert added == [0.15, 0.12, 0.08, 0.04, 0.0]


def test_a_hint_that_is_met_adds_to_the_score() -> None:
    eu = worker(profile("alice", labels=(("region", "eu-west"), ("cell", "kitchen"))))

    def added(hints: Hints) -> float:
        return terms(eu, alone(hints=0.05), task(hints=hints))["hints"]

    assert added(Hints(region="eu-west")) == 0.03
    assert added(Hints(region="us-east")) == 0.0
    assert added(Hints(prefer=(peer("alice"),))) == 0.05
    assert added(Hints(prefer=(peer("alice"),), region="eu-west")) == 0.05
    assert added(Hints(labels=(("cell", "kitchen"),))) == 0.05
    assert added(Hints()) == 0.0


def test_who_is_trusted_less_than_three_tenths_is_left_out() -> None:
    decision = placed(
        task(), [worker("alice", trust=0.3), worker("bob", trust=0.299)], PRESETS["16a"]
    )
    assert [each.profile.peer_id for each in decision.ranked] == [peer("alice")]
    assert decision.rejected == ((peer("bob"), Distrusted(299, 300)),)


def test_the_draw_is_the_same_again_and_another_for_each_task_and_worker() -> None:
    names = ["alice", "bob", "carol", "dave"]
    candidates = [worker(name) for name in names]
    policy = alone(jitter=0.1)
    draws = [
        tuple(score.value for score in policy.scores(task(f"job/{n}"), candidates))
        for n in range(50)
    ]
    assert [policy.scores(task("job/7"), [each])[0].value for each in candidates] == list(draws[7])
    assert len({value for each in draws for value in each}) == 200
    assert all(0 <= value < 0.1 for each in draws for value in each)
    first = {order(task(f"job/{n}"), candidates, policy)[0] for n in range(50)}
    assert first == set(map(peer, names))


def test_a_score_is_cut_at_one() -> None:
    best = replace(worker("alice", trust=1, rtt_ms=0), local_bytes=9, data_bytes=1)
    hints = Hints(prefer=(peer("alice"),))
    [score] = PRESETS["16c"].scores(task(hints=hints), [best])
    assert score.value == 1.0


weights = st.fixed_dictionaries(
    {},
    optional={
        name: st.floats(0, 1)
        for name in ("trust", "capacity", "queue", "rtt", "data", "scope", "hints", "jitter")
    },
).filter(lambda each: any(each.values()))
candidates = st.builds(
    lambda known, here, there, scope: replace(
        known, local_bytes=here, data_bytes=there, scope=scope
    ),
    known=st.builds(
        worker,
        st.sampled_from(["alice", "bob"]),
        trust=st.none() | st.floats(0, 1),
        queue=st.integers(0, 1000),
        rtt_ms=st.none() | st.integers(0, 60_000),
    ),
    here=st.integers(0, 2**60),
    there=st.integers(0, 2**60),
    scope=st.sampled_from(Scope),
)


@given(weights, candidates)
def test_every_score_is_in_bounds(given_weights: dict[str, float], candidate: Candidate) -> None:
    [score] = Scored(**given_weights).scores(task(), [candidate])
    assert 0 <= score.value <= 1
    assert all(0 <= term.value <= 1 for term in score.terms)


@pytest.mark.parametrize(
    "weight", [-0.1, 1.1, float("nan"), float("inf"), 10**400, "0.5", None, 1j]
)
def test_a_weight_is_from_nought_to_one(weight: Any) -> None:
    with pytest.raises(InvalidInput, match="the weight of queue is"):
        Scored(queue=weight)


def test_something_has_to_count() -> None:
    with pytest.raises(InvalidInput, match="write one at least"):
        Scored()


@pytest.mark.parametrize("weight", [True, 1, Fraction(1, 3), np.float64(0.5)])
def test_a_weight_of_any_kind_of_number_is_a_float_and_comes_back_as_text(weight: Any) -> None:
    policy = Scored(trust=weight)
    assert type(policy.trust) is float
    assert parse_policy(str(policy)) == policy == Scored(trust=float(weight))


def test_the_draw_is_the_same_in_every_release() -> None:
    """Else nodes of two releases would rank the same workers differently."""
    candidates = [worker(name) for name in ("alice", "bob", "carol", "dave", "erin")]
    scores = alone(jitter=1.0).scores(task("job/0"), candidates)
    drawn = [3448411771, 1471263166, 4198215598, 3388353171, 2674502654]
    assert [score.value for score in scores] == [each / 2**32 for each in drawn]


# -- the gate of trust, as a policy ---------------------------------------------------------


TASK = TaskView(name="task", key=key_of(b"task"), needs=NEEDS)
MACHINE = Capability(1000, 2**30)


def candidate(trust_milli: int | None) -> Candidate:
    profile = Profile(
        peer_id=identity("alice").peer_id,
        sequence=1,
        issued_unix_s=1,
        expires_unix_s=2,
        capability=MACHINE,
        capacity=idle(MACHINE),
    )
    return Candidate(profile=profile, trust_milli=trust_milli)


def test_whoever_is_trusted_enough_is_admitted_and_others_are_refused_with_the_figures() -> None:
    gate = Trusted(300)
    assert gate.admit(TASK, candidate(300)) is None
    assert gate.admit(TASK, candidate(299)) == Distrusted(299, 300)


def test_where_nothing_is_known_a_worker_is_a_stranger() -> None:
    assert Trusted(500).admit(TASK, candidate(None)) is None
    assert Trusted(501).admit(TASK, candidate(None)) == Distrusted(500, 501)
    stranger = Reputation(identity("bob").peer_id).score_milli(identity("alice").peer_id, at(0))
    assert stranger == module.STRANGER_MILLI
    assert stranger > module.EXECUTE_MILLI


@pytest.mark.parametrize("text", ["trust>=0.3", "trust>=0", "trust>=1", "trust>=0.125"])
def test_its_text_comes_back(text: str) -> None:
    assert str(parse_policy(text)) == text


def test_people_may_leave_spaces() -> None:
    assert parse_policy(" trust >= 0.3 ") == Trusted(300) == Trusted()


def test_what_is_no_such_gate_is_refused() -> None:
    for text in ("trust>=1.1", "trust>=much", "trust>=-1", "trust>=0.0001"):
        with pytest.raises(InvalidInput, match="policy: trust"):
            parse_policy(text)
    with pytest.raises(InvalidInput, match="0 to 1"):
        Trusted(-1)


@pytest.mark.parametrize("least", [0.3, True, "0.3", None])
def test_trust_is_in_whole_thousandths(least: Any) -> None:
    with pytest.raises(InvalidInput, match=r"write Trusted\(300\), or trust>=0.3"):
        Trusted(least)


# -- what work weighs and costs, and who does it for the least ------------------------------


def with_gpu(memory_gib: int) -> Capability:
    card = Gpu("G0", "nvidia", "h100", memory_gib * GIB, 90)
    return Capability(8000, 16 * GIB, gpus=(card,))


def test_a_core_weighs_one_and_all_else_its_part_of_that() -> None:
    assert weight(cpu_milli=1000) == ONE_UNIT
    assert weight(gpu_bytes=GIB) == 25 * ONE_UNIT
    assert weight(memory_bytes=10 * GIB) == ONE_UNIT
    assert weight(storage_bytes=100 * GIB) == ONE_UNIT
    needs = Requirements(cpu_milli=500, memory_bytes=5 * GIB, storage_bytes=10 * GIB, gpu_count=1)
    claims = (GpuClaim("G0", 1000, 2 * GIB),)
    assert weight_of(needs, claims) == 51.1 * ONE_UNIT


def test_the_price_of_a_unit_is_rounded_up_and_of_nothing_there_is_none() -> None:
    assert unit_price_micro(100_000_000, weight(cpu_milli=8000)) == 12_500_000
    assert unit_price_micro(1, weight(cpu_milli=8000)) == 1
    with pytest.raises(InvalidInput, match="nothing is offered"):
        unit_price_micro(100, weight())


def test_the_lowest_price_comes_first_and_twice_of_it_scores_half() -> None:
    candidates = [
        worker(profile("dear", price_micro=399)),
        worker(profile("cheap", price_micro=99)),
        worker(profile("middling", price_micro=199)),
    ]
    ranked = placed(task(), candidates, Cheapest()).ranked
    assert [each.profile.price_micro for each in ranked] == [99, 199, 399]
    assert [each.score.value for each in ranked] == [1.0, 0.5, 0.25]


def test_beside_a_worker_that_is_free_the_cheaper_one_is_still_told_from_the_dearer() -> None:
    candidates = [
        worker(profile("dear", price_micro=2000)),
        worker(profile("free")),
        worker(profile("cheap", price_micro=1000)),
    ]
    assert order(task(), candidates, Cheapest()) == [peer("free"), peer("cheap"), peer("dear")]


def test_a_price_like_the_moon_changes_nothing_for_the_others() -> None:
    asked = task()
    two = [worker(profile("a", price_micro=100)), worker(profile("b", price_micro=101))]
    moon = worker(profile("moon", price_micro=2**63 - 1))
    both = placed(asked, two, Cheapest()).ranked
    assert placed(asked, [*two, moon], Cheapest()).ranked[:2] == both


def test_what_a_task_takes_of_a_worker_is_what_it_costs() -> None:
    """A whole card of 80 GiB, for a task that asks for 10."""
    needs = Requirements(cpu_milli=1000, memory_bytes=GIB, gpu_count=1, gpu_memory_bytes=10 * GIB)
    large = worker(profile("large", with_gpu(80), price_micro=100))
    small = worker(profile("small", with_gpu(10), price_micro=300))
    assert order(task(needs=needs), [large, small], Cheapest()) == [peer("small"), peer("large")]
    # Where it has no room it is asked last, and would cost what it costs when it has.
    taken = Capacity(8000, 16 * GIB)
    busy = worker(profile("small", with_gpu(10), taken, price_micro=300))
    [first, last] = placed(task(needs=needs), [large, busy], Cheapest()).ranked
    assert first.profile.peer_id == peer("large")
    assert last.score.value > first.score.value
    both_busy = [worker(profile("large", with_gpu(80), taken, price_micro=100)), busy]
    assert order(task(needs=needs), both_busy, Cheapest()) == [peer("small"), peer("large")]
    # Asked about one that could never run it, it reckons without the card.
    assert Cheapest().scores(task(needs=needs), [worker("none")])[0].value == 1.0


def test_what_is_above_the_private_maximum_is_left_out() -> None:
    candidates = [worker(profile(f"asks-{p}", price_micro=p)) for p in (150, 160, 161)]
    decision = placed(task(max_price_micro=160), candidates, Cheapest())
    assert [each.profile.price_micro for each in decision.ranked] == [150, 160]
    assert decision.rejected == ((peer("asks-161"), TooDear(161, 160)),)


@given(st.lists(st.integers(0, 2**28), min_size=1, max_size=8, unique=True))
def test_the_order_is_that_of_the_prices_and_every_score_is_in_bounds(prices: list[int]) -> None:
    candidates = [worker(profile(f"w{n}", price_micro=p)) for n, p in enumerate(prices)]
    ranked = placed(task(needs=SMALL), candidates, Cheapest()).ranked
    assert [each.profile.price_micro for each in ranked] == sorted(prices)
    assert all(0 < each.score.value <= 1 for each in ranked)


def test_of_nobody_there_is_no_price() -> None:
    assert Cheapest().scores(task(), []) == []


def test_an_idle_machine_is_cheaper_and_a_full_one_dearer() -> None:
    asked = [price_under_load_micro(1000, used) for used in (0, 299, 300, 699, 700, 899, 900, 1000)]
    assert asked == [800, 800, 1000, 1000, 1500, 1500, 2000, 2000]


def test_behind_a_long_queue_it_is_dearer_and_later() -> None:
    assert [price_behind_queue_micro(10, queue) for queue in (0, 5, 6)] == [10, 10, 15]
    assert starts_in_ms(5) == 50_000
    assert starts_in_ms(5, task_ms=100) == 500


def test_a_part_of_a_worker_goes_for_the_bid_and_all_of_it_for_its_price() -> None:
    def offered(bid_micro: int, *, whole: bool) -> int | None:
        return offered_price_micro(
            price_micro=150, floor_micro=100, bid_micro=bid_micro, whole=whole
        )

    assert offered(110, whole=False) == 110
    assert offered(110, whole=True) == 150
    assert offered(99, whole=False) is offered(99, whole=True) is None
