"""concurrent.futures.ProcessPoolExecutor, two processes; one task at a time, as with the others."""

from __future__ import annotations

import asyncio
import platform
from concurrent.futures import ProcessPoolExecutor

from benchmarks.dispatch.tasks import noop
from benchmarks.dispatch.timing import arguments_of, measure, put, same


class Pool:
    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor

    async def many(self, count: int) -> None:
        same(list(self._executor.map(noop, range(count), chunksize=1)), count)

    async def one(self, number: int) -> None:
        assert self._executor.submit(noop, number).result() == number


if __name__ == "__main__":
    arguments = arguments_of(__doc__)
    with ProcessPoolExecutor(max_workers=2) as executor:
        line = asyncio.run(measure(Pool(executor), arguments))
        put({**line, "version": f"Python {platform.python_version()}"})
