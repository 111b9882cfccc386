"""The same measurement for every side: a warm-up, many no-ops at once, then one at a time.

This file imports the standard library alone: the environment of Ray and Dask has nothing of ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, Protocol

# Everybody's processes have started, imported and met their first tasks after these.
WARM_TASKS: Final = 1000
WARM_CALLS: Final = 50
# A side that is slower is given fewer tasks, as many as it ends in this time; the count is told.
ROUND_S: Final = 90.0
# Rounds are repeated for as long as this, and the median counts.
ROUNDS_S: Final = 60.0

Line = dict[str, Any]


class Engine(Protocol):
    """One side. Both raise where a result is not the argument."""

    async def many(self, count: int) -> None:
        """So many no-ops, submitted together; returns with all of their results."""

    async def one(self, number: int) -> None:
        """One no-op, from its submission to its result."""


async def measure(engine: Engine, arguments: argparse.Namespace) -> Line:
    """`tasks` is how many were in each of `rounds`; times are of `calls` calls."""
    await engine.many(WARM_TASKS)
    trial = max(1, arguments.tasks // 10)
    began_s = time.perf_counter()
    await engine.many(trial)
    tasks = affordable(trial / (time.perf_counter() - began_s), arguments.tasks)
    rates: list[float] = []
    until_s = time.monotonic() + ROUNDS_S
    while len(rates) < arguments.rounds and (not rates or time.monotonic() < until_s):
        began_s = time.perf_counter()
        await engine.many(tasks)
        rates.append(tasks / (time.perf_counter() - began_s))
    for number in range(WARM_CALLS):
        await engine.one(number)
    times_ms: list[float] = []
    for number in range(arguments.calls):
        began_s = time.perf_counter()
        await engine.one(number)
        times_ms.append((time.perf_counter() - began_s) * 1000)
    return {
        "throughput_per_s": round(statistics.median(rates)),
        "single_p50_ms": round(percentile(times_ms, 50), 3),
        "single_p95_ms": round(percentile(times_ms, 95), 3),
        "rounds_per_s": [round(rate) for rate in rates],
        "tasks": tasks,
        "calls": len(times_ms),
    }


def affordable(rate_per_s: float, tasks: int) -> int:
    """How many of `tasks` a side ends in ROUND_S, at the rate that it showed."""
    return max(1, min(tasks, int(rate_per_s * ROUND_S)))


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent of them do not exceed."""
    if not values:
        raise ValueError("there is nothing to take a percentile of")
    rank = -(-len(values) * percent // 100)
    return sorted(values)[max(rank, 1) - 1]


def same(results: Sequence[int], count: int) -> None:
    if list(results) != list(range(count)):
        raise RuntimeError(f"{count} no-ops did not give their arguments back, in their order")


def arguments_of(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=1000)
    return parser.parse_args()


def put(line: Line) -> None:
    """What a side found out, for the process that started it."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
