"""joblib, two processes of loky, which map what is large from a file in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import joblib

from benchmarks.data.arrays import Array, arguments_of, double, measure, total
from benchmarks.dispatch.timing import put


class Joblib:
    def __init__(self, parallel: joblib.Parallel) -> None:
        self._parallel = parallel

    async def totals(self, arrays: Sequence[Array]) -> Sequence[float]:
        return self._all(total, arrays)

    async def doubles(self, arrays: Sequence[Array]) -> Sequence[Array]:
        return self._all(double, arrays)

    def _all(self, function: Callable[[Array], Any], arrays: Sequence[Array]) -> list[Any]:
        return list(self._parallel(joblib.delayed(function)(array) for array in arrays))


if __name__ == "__main__":
    arguments = arguments_of(__doc__)
    with joblib.Parallel(n_jobs=2) as parallel:
        line = asyncio.run(measure(Joblib(parallel), arguments))
        put({**line, "version": joblib.__version__})
