"""Scores against the outcome rates of a real network of volunteers.

Of the nodes of Golem with twenty subtasks or more (December 2018 to February 2019) one in twenty
brought fewer than 65.5 % of its results, one in four fewer than 88.5 %, and half fewer than 94.1 %.
"""

from __future__ import annotations

import random
from bisect import bisect

import pytest

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.placement.core.policies import EXECUTE_MILLI
from formation_p2p.trust.core.experience import Experience
from formation_p2p.trust.core.reputation import Reputation
from tests.support.stories import at

pytestmark = pytest.mark.at_length

P5, P25, P50 = 0.655, 0.885, 0.941
QUANTILES = ((0.0, 0.4), (0.05, P5), (0.25, P25), (0.5, P50), (1.0, 1.0))
# A task a minute from each.
EVERY_S = 60.0


def drawn(rng: random.Random) -> float:
    """A success rate of that population, in straight lines between the known quantiles."""
    share = rng.random()
    place = bisect([each for each, _ in QUANTILES], share)
    (low, rate), (high, next_rate) = QUANTILES[place - 1], QUANTILES[place]
    return rate + (next_rate - rate) * (share - low) / (high - low)


def outcome(rate: float, wrong: float, rng: random.Random) -> Experience:
    if rng.random() < wrong:
        return Experience.WRONG
    return Experience.SUCCESS if rng.random() < rate else Experience.ERROR


def tasks_until_shut_out(rate: float, rng: random.Random, *, wrong: float = 0.0) -> int:
    """How many of 200 it gets before its score falls below the gate."""
    worker, reputation = PeerId("worker"), Reputation(PeerId("bob"))
    for task in range(200):
        now = at(task * EVERY_S)
        if reputation.score_milli(worker, now) < EXECUTE_MILLI:
            return task
        reputation.note(worker, outcome(rate, wrong, rng), now)
    return 200


def ranks(values: list[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranked = [0.0] * len(values)
    for rank, place in enumerate(order):
        ranked[place] = rank
    return ranked


def correlation(xs: list[float], ys: list[float]) -> float:
    """Spearman's."""
    count = len(xs)
    apart = sum((x - y) ** 2 for x, y in zip(ranks(xs), ranks(ys), strict=True))
    return 1 - 6 * apart / (count * (count**2 - 1))


def test_real_machines_are_kept_the_weakest_twentieth_too() -> None:
    rng = random.Random(1)
    for rate, most in ((P5, 0.03), (P25, 0.001), (P50, 0.001)):
        shut_out = sum(tasks_until_shut_out(rate, rng) < 200 for _ in range(400))
        assert shut_out / 400 <= most, rate


def test_bad_machines_are_shut_out_after_a_few_tasks() -> None:
    rng = random.Random(2)
    for rate, median in ((0.0, 5), (0.1, 5), (0.2, 10), (0.25, 15)):
        tasks = sorted(tasks_until_shut_out(rate, rng) for _ in range(500))
        assert tasks[250] <= median, rate
        assert tasks[475] < 200, rate


def test_liars_are_shut_out_however_well_they_work_otherwise() -> None:
    rng = random.Random(3)
    for wrong, median in ((1.0, 1), (0.5, 2), (0.1, 10)):
        tasks = sorted(tasks_until_shut_out(0.99, rng, wrong=wrong) for _ in range(500))
        assert tasks[250] <= median, wrong
        assert tasks[-1] < 200, wrong


def test_who_is_trusted_more_is_better() -> None:
    """After a hundred tasks each. With no doubt left the correlation would be 1."""
    rng = random.Random(4)
    rates = [drawn(rng) for _ in range(300)]
    reputation = Reputation(PeerId("bob"))
    now = Moment(0, 0)
    for task in range(100):
        now = at(task * EVERY_S)
        for n, rate in enumerate(rates):
            reputation.note(PeerId(f"worker {n}"), outcome(rate, 0, rng), now)
    scores = [float(reputation.score_milli(PeerId(f"worker {n}"), now)) for n in range(300)]
    assert correlation(rates, scores) > 0.9
