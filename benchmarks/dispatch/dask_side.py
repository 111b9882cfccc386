"""Dask's distributed: a scheduler and two worker processes of one thread each, no dashboard."""

from __future__ import annotations

import asyncio

import distributed
from distributed import Client, LocalCluster

from benchmarks.dispatch.tasks import noop
from benchmarks.dispatch.timing import arguments_of, measure, put, same


class Dask:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def many(self, count: int) -> None:
        # pure=False: otherwise the second round would find the results of the first.
        same(self._client.gather(self._client.map(noop, range(count), pure=False)), count)

    async def one(self, number: int) -> None:
        assert self._client.submit(noop, number, pure=False).result() == number


if __name__ == "__main__":
    arguments = arguments_of(__doc__)
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        line = asyncio.run(measure(Dask(client), arguments))
        put({**line, "version": distributed.__version__})
