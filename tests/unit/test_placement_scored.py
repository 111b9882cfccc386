"""A sum of reasons, each of which can be read; and the same draw for whoever repeats it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.placement.candidate import Candidate, TaskView
from formation_p2p.core.placement.names import parse_policy
from formation_p2p.core.placement.scored import PRESETS, Scored
from formation_p2p.core.refusals import Distrusted
from formation_p2p.core.resources.capability import Capacity
from formation_p2p.core.units import GIB
from formation_p2p.core.workload.hints import Hints
from formation_p2p.core.workload.scope import Scope
from tests.support.placement_world import order, peer, placed, profile, task, worker


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
