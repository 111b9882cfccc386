"""A gang of eight workers on loopback, from `node.gang(8)` until all are leased and each has been
told: by a node that knows the workers, and by one that has just joined (cold)."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import time
from typing import Final

from benchmarks.dispatch.nodes import NEEDS, Workers
from benchmarks.dispatch.timing import percentile, put
from formation_p2p import Node

SIZE: Final = 8
# The first ones after the workers' start, which are not counted.
WARM_TIMES: Final = 3
# A worker has its capacity back, and what it does after a lease is done.
SETTLE_S: Final = 0.7
FORM_S: Final = 30.0


async def formed_ms(node: Node) -> float:
    began_s = time.perf_counter()
    async with asyncio.timeout(FORM_S), node.gang(SIZE, needs=NEEDS) as gang:
        took_s = time.perf_counter() - began_s
        assert len(gang.members) == SIZE
    await asyncio.sleep(SETTLE_S)
    return took_s * 1000


async def main(times: int, colds: int) -> None:
    importlib.import_module("formation_p2p.reach.stack")  # which the node imports late
    async with Workers(SIZE) as workers:
        async with workers.scheduler() as node:
            took_ms = [await formed_ms(node) for _ in range(WARM_TIMES + times)][WARM_TIMES:]
        cold_ms = []
        for _ in range(colds):
            async with workers.newcomer() as node:
                cold_ms.append(await formed_ms(node))
    put(
        {
            "gang_p50_ms": round(percentile(took_ms, 50), 1),
            "gang_p95_ms": round(percentile(took_ms, 95), 1),
            "gang_cold_ms": round(percentile(cold_ms, 50), 1),
            "gangs": times,
        }
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--colds", type=int, default=7)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.times, arguments.colds))
