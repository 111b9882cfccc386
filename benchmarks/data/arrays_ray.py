"""Ray, two processors: arrays are put into its object store as they are passed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import ray

from benchmarks.data.arrays import Array, arguments_of, double, measure, total
from benchmarks.dispatch.ray_side import ray_here
from benchmarks.dispatch.timing import put


class Ray:
    def __init__(self) -> None:
        self._total, self._double = ray.remote(total), ray.remote(double)

    async def totals(self, arrays: Sequence[Array]) -> Sequence[float]:
        return self._all(self._total, arrays)

    async def doubles(self, arrays: Sequence[Array]) -> Sequence[Array]:
        return self._all(self._double, arrays)

    def _all(self, function: Any, arrays: Sequence[Array]) -> list[Any]:
        return list(ray.get([function.remote(array) for array in arrays]))


if __name__ == "__main__":
    arguments = arguments_of(__doc__)
    with ray_here():
        put({**asyncio.run(measure(Ray(), arguments)), "version": ray.__version__})
