"""A Dask cluster on leased workers: an array that none of them could hold, summed where it lies.

    pip install 'formation_p2p[dask]'
    python -m examples.dask_cluster

It starts a network of its own on this machine: a gate and two workers, one of which gets the
scheduler, too. In a network that is there, leave that out and join with its invite.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # where `examples` is

import dask.array as da
from distributed import Client, wait

from formation_demo.local_network import LocalNetwork
from formation_p2p import Node

WORKER = "cpu=1,memory=320MiB"
SCHEDULER = "cpu=0.5,memory=320MiB"
MIB = 2**20


async def main() -> None:
    async with (
        LocalNetwork(workers=2, cpu_milli=2000) as network,
        Node.join(network.invite, home=network.home, listen=()) as node,
    ):
        await network.seen_by(node)
        async with (
            node.dask(workers=2, needs=WORKER, scheduler_needs=SCHEDULER) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            array = da.arange(360 * MIB // 8, chunks=4 * MIB // 2, dtype="i8")
            array = client.persist(array)
            await wait(array)
            total = await client.compute(array.sum())
            there = (await client.nbytes(summary=False)).values()
            print(
                f"{sum(there) / MIB:.0f} MiB lie on workers of 320 MiB each; their sum is {total}"
            )


if __name__ == "__main__":
    asyncio.run(main())
