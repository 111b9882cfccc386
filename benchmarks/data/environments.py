"""An environment with scikit-learn: the first call in one that has to be built, of wheels that
the worker has in its cache, and calls in it beside calls without one.

The wheels come with an environment that is not counted. Each that follows has the same wheels and
another name, since it asks for one more of those that scikit-learn brings anyway. The first call
imports scikit-learn. Where the package index is comes from pip's configuration.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.cpu import spent
from benchmarks.dispatch.nodes import LINGER_S, NEEDS, Workers
from benchmarks.dispatch.tasks import noop
from benchmarks.dispatch.timing import percentile, put
from formation_p2p import Env, Node

PACKAGE: Final = "scikit-learn"
MODULE: Final = "sklearn"
# What it brings, one of which each further environment names too.
BROUGHT: Final = ("joblib", "threadpoolctl", "scipy", "numpy")


def version(module: str) -> str:
    return str(importlib.import_module(module).__version__)


async def cold(node: Node, *requirements: str) -> tuple[float, float]:
    """Seconds until the first result, and of processor time."""
    env = Env(requirements=requirements)
    with spent() as took:
        (found,) = await node.map(version, [MODULE], env=env, needs=NEEDS)
    assert found
    return took.wall_s, took.cpu_s


async def warm_calls(nodes: Sequence[Node], calls: int) -> dict[str, list[float]]:
    """In ms: with an environment by one node, without by the other. They take turns, so that both
    meet the same machine. Half-way they change places: the first node was 7 % slower where neither
    asked for an environment. A quarter of each half is not counted."""
    kinds: dict[str, Any] = {"env": {"env": Env(requirements=(PACKAGE,))}, "none": {}}
    times_ms: dict[str, list[float]] = {kind: [] for kind in kinds}
    for order in (("env", "none"), ("none", "env")):
        for number in range(calls // 2 + calls // 8):
            for node, kind in zip(nodes, order, strict=True):
                began_s = time.perf_counter()
                done = await node.map(noop, [number], needs=NEEDS, linger_s=LINGER_S, **kinds[kind])
                if number >= calls // 8:
                    times_ms[kind].append((time.perf_counter() - began_s) * 1000)
                assert done == [number]
    return times_ms


async def main(times: int, calls: int) -> None:
    importlib.import_module("formation_p2p.reach.stack")  # which the node imports late
    # One worker: two would each build what they are asked for.
    async with Workers(1) as workers:
        async with workers.scheduler() as node:
            fetched_s, _ = await cold(node, PACKAGE)
            cold_s: list[float] = []
            cpu_s: list[float] = []
            for name in BROUGHT[:times]:
                wall_s, used_s = await cold(node, PACKAGE, name)
                cold_s.append(wall_s)
                cpu_s.append(used_s)
        workers.all.append(await workers.add())
        async with workers.scheduler() as one, workers.scheduler() as other:
            warm_ms = await warm_calls((one, other), calls)
    put(
        {
            "env_cold_s": round(percentile(cold_s, 50), 2),
            "env_warm_ms": {kind: round(statistics.median(ms), 3) for kind, ms in warm_ms.items()},
            "cold_cpu_s": round(percentile(cpu_s, 50), 2),
            "cold_max_s": round(max(cold_s), 2),
            "fetched_s": round(fetched_s, 2),
        }
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--calls", type=int, default=300)
    given = parser.parse_args()
    asyncio.run(main(given.times, given.calls))
