"""Ours: ten thousand tasks to a scheduler that keeps its state on disk, until `submit` returns.

The state is below `.bench`, since a folder for temporary files may be in memory. The tasks of one
submit have all run before the next.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.dispatch.nodes import NEEDS, Workers
from benchmarks.dispatch.processes import ROOT
from benchmarks.dispatch.tasks import noop
from benchmarks.dispatch.timing import percentile, put
from formation_p2p import python_calls

ENVIRONMENT: Final = ROOT / ".bench"
# Ten thousand no-ops.
RUN_S: Final = 60.0


async def main(tasks: int, times: int) -> None:
    importlib.import_module("formation_p2p.reach.stack")  # which the node imports late
    ENVIRONMENT.mkdir(exist_ok=True)
    took_s: list[float] = []
    rates: list[float] = []
    with tempfile.TemporaryDirectory(prefix="state-", dir=ENVIRONMENT) as folder:
        state = Path(folder, "scheduler.sqlite")
        async with Workers(2) as workers, workers.scheduler(state=state) as node:
            for _ in range(times):
                began_s = time.perf_counter()
                job = await node.submit(python_calls(noop, range(tasks)), needs=NEEDS)
                took_s.append(time.perf_counter() - began_s)
                async with asyncio.timeout(RUN_S):
                    assert all(result.status == "succeeded" for result in await job)
                rates.append(tasks / (time.perf_counter() - began_s))
    put(
        {
            "durable_submit_10k_s": round(percentile(took_s, 50), 3),
            "durable_submit_max_s": round(max(took_s), 3),
            "durable_throughput_per_s": round(percentile(rates, 50)),
            "durable_tasks": tasks,
            "durable_times": times,
        }
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.tasks, arguments.times))
