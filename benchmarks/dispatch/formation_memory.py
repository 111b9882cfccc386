"""Ours: what this process holds with a hundred thousand tasks queued; both workers are busy."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import time
from typing import Final

import psutil

from benchmarks.dispatch.nodes import NEEDS, Workers
from benchmarks.dispatch.tasks import block, noop
from benchmarks.dispatch.timing import put
from formation_p2p import JobHandle, TaskBegan, python_calls

BLOCKED_S: Final = 30.0
# The most that it holds in this long after `submit` has returned is what counts: its node takes
# the job in meanwhile.
WATCH_S: Final = 5.0
AGAIN_S: Final = 0.05


async def began(job: JobHandle, tasks: int) -> None:
    """Returns once so many tasks of a job run."""
    left = tasks
    async for event in job.events():
        left -= isinstance(event, TaskBegan)
        if not left:
            return


async def main(queued: int) -> None:
    importlib.import_module("formation_p2p.reach.stack")  # which the node imports late
    process = psutil.Process()
    async with Workers(2) as workers, workers.scheduler() as node:
        blocking = await node.submit(python_calls(block, range(2)), needs=NEEDS)
        async with asyncio.timeout(BLOCKED_S):
            await began(blocking, 2)
        before_bytes = process.memory_info().rss
        began_s = time.perf_counter()
        waiting = await node.submit(python_calls(noop, range(queued)), needs=NEEDS)
        submit_s = time.perf_counter() - began_s
        most_bytes, until_s = 0, time.monotonic() + WATCH_S
        while time.monotonic() < until_s:
            most_bytes = max(most_bytes, process.memory_info().rss)
            await asyncio.sleep(AGAIN_S)
        assert not waiting.is_over
        assert not blocking.is_over
    put(
        {
            "rss_100k_queued_mb": round(most_bytes / 1e6, 1),
            "rss_before_mb": round(before_bytes / 1e6, 1),
            "submit_s": round(submit_s, 3),
            "queued": queued,
        }
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queued", type=int, default=100_000)
    asyncio.run(main(parser.parse_args().queued))
