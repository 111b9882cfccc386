"""Ray, two processors, no dashboard; it uses the home and the temporary folder that it is given."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from benchmarks.dispatch.tasks import noop
from benchmarks.dispatch.timing import arguments_of, measure, put, same


class Ray:
    def __init__(self) -> None:
        self._noop = ray.remote(noop)

    async def many(self, count: int) -> None:
        same(ray.get([self._noop.remote(number) for number in range(count)]), count)

    async def one(self, number: int) -> None:
        assert ray.get(self._noop.remote(number)) == number


@contextmanager
def ray_here() -> Iterator[None]:
    # Nothing about this run is told to anyone.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=tempfile.gettempdir(),
    )
    try:
        yield
    finally:
        ray.shutdown()


if __name__ == "__main__":
    arguments = arguments_of(__doc__)
    with ray_here():
        put({**asyncio.run(measure(Ray(), arguments)), "version": ray.__version__})
