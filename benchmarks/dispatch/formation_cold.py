"""Ours, cold: a scheduler that has joined and done nothing yet, until its first result.

Each time it is a new node of a new identity, with a function that no worker has seen: it has to
discover the workers, negotiate and be given a lease before the call can run. Joining is not
counted. The one before has left by then, and its leases with it.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import time
from collections.abc import Callable
from typing import Final

from benchmarks.dispatch.nodes import NEEDS, Workers
from benchmarks.dispatch.timing import percentile, put
from formation_p2p import Node, TaskPlaced, python_calls, value_of

# The first ones after the workers' start, which are not counted: whoever joins a network in
# earnest joins one that is running.
WARM_TIMES: Final = 2
# A worker has its capacity back, and what it does after a lease is done.
SETTLE_S: Final = 0.5
CALL_S: Final = 30.0


def fresh(added: int) -> Callable[[int], int]:
    """A function that travels with its calls, and differs from every other."""
    return lambda number: number + added


async def first_result(node: Node, number: int) -> tuple[float, float]:
    """In ms, from the submission: when the task was dispatched, and when its result was here."""
    began_s = time.perf_counter()
    job = await node.submit(python_calls(fresh(number), [1]), needs=NEEDS)
    placed_s = 0.0
    async for event in job.events():
        if isinstance(event, TaskPlaced):
            placed_s = time.perf_counter()
    (result,) = await job
    ended_s = time.perf_counter()
    assert value_of(result) == number + 1
    return (placed_s - began_s) * 1000, (ended_s - began_s) * 1000


async def main(times: int) -> None:
    importlib.import_module("formation_p2p.reach.stack")  # which the node imports late
    placed_ms, ended_ms = [], []
    async with Workers(2) as workers:
        for number in range(WARM_TIMES + times):
            async with workers.newcomer() as node, asyncio.timeout(CALL_S):
                placed, ended = await first_result(node, number)
            if number >= WARM_TIMES:
                placed_ms.append(placed)
                ended_ms.append(ended)
            await asyncio.sleep(SETTLE_S)
    put(
        {
            "cold_first_result_p50_ms": round(percentile(ended_ms, 50), 1),
            "cold_first_result_p95_ms": round(percentile(ended_ms, 95), 1),
            "cold_dispatched_p50_ms": round(percentile(placed_ms, 50), 1),
            "times": times,
        }
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    asyncio.run(main(parser.parse_args().times))
