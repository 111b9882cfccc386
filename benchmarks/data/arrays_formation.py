"""Ours: two worker processes, and this one, which calls `Node.map`.

With `--apart` no memory is shared: everything goes over TCP, encrypted, as between machines.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence

from benchmarks.data.arrays import Array, arguments_of, double, measure, total
from benchmarks.dispatch.nodes import LINGER_S, Workers
from benchmarks.dispatch.timing import put
from formation_p2p import Node

# Of an array of 50 MB, what it is doubled to, and numpy.
NEEDS = "cpu=1,memory=512MiB,driver=python"


class Formation:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def totals(self, arrays: Sequence[Array]) -> Sequence[float]:
        return await self._node.map(total, arrays, needs=NEEDS, linger_s=LINGER_S)

    async def doubles(self, arrays: Sequence[Array]) -> Sequence[Array]:
        return await self._node.map(double, arrays, needs=NEEDS, linger_s=LINGER_S)


async def main() -> None:
    arguments = arguments_of(__doc__)
    importlib.import_module("formation_p2p.reach.stack")  # which the node imports late
    async with Workers(2, apart=arguments.apart) as workers, workers.scheduler() as node:
        line = await measure(Formation(node), arguments)
    put({**line, "version": "this checkout"})


if __name__ == "__main__":
    asyncio.run(main())
