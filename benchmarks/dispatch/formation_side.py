"""Ours: two worker processes, and this one, which calls `Node.map`. Encrypted, as ever."""

from __future__ import annotations

import asyncio
import importlib

import psutil

from benchmarks.cpu import used_s
from benchmarks.dispatch.nodes import NEEDS, Workers
from benchmarks.dispatch.profiles import profiled
from benchmarks.dispatch.tasks import noop
from benchmarks.dispatch.timing import arguments_of, measure, put, same
from formation_p2p import Node


class Formation:
    def __init__(self, node: Node, workers: Workers) -> None:
        self._node = node
        self._workers = [psutil.Process(worker.process.pid) for worker in workers.all]
        self.cpu_us: dict[str, float] = {}

    async def many(self, count: int) -> None:
        before = self._cpu_s()
        same(await self._node.map(noop, range(count), needs=NEEDS), count)
        after = self._cpu_s()
        self.cpu_us = {who: round((s - before[who]) / count * 1e6) for who, s in after.items()}

    async def one(self, number: int) -> None:
        assert await self._node.map(noop, [number], needs=NEEDS) == [number]

    def _cpu_s(self) -> dict[str, float]:
        """What the processes have used so far. Below each worker are its supervisors and
        interpreters, together with those that ended."""
        below = [child for worker in self._workers for child in worker.children(recursive=True)]
        times = [worker.cpu_times() for worker in self._workers]
        ended = [each.children_user + each.children_system for each in times]
        return {
            "scheduler": used_s([psutil.Process()]),
            "workers": used_s(self._workers),
            "interpreters": used_s(below) + sum(ended),
        }


async def main() -> None:
    arguments = arguments_of(__doc__)
    importlib.import_module("formation_p2p.reach.stack")  # which the node imports late
    async with Workers(2) as workers:
        with profiled("scheduler", caller_too=True):
            async with workers.scheduler() as node:
                engine = Formation(node, workers)
                line = await measure(engine, arguments)
    put({**line, "version": "this checkout", "cpu_us_per_task": engine.cpu_us})


if __name__ == "__main__":
    asyncio.run(main())
