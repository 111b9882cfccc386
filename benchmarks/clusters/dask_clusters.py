"""Dask on a gang, beside Dask's own cluster over TCP, and when members die or leave:
`dask_over_tcp`, `replaced_s`, `recomputed`, `resumed_s`.

Nodes and members are processes of this machine; what the sandbox of each member costs is in all
figures.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import cloudpickle
import dask.array as da
from distributed import Client, LocalCluster, SchedulerPlugin, wait

from formation_demo.local_network import LocalNetwork
from formation_p2p import Node

WORKERS: Final = 3
NEEDS: Final = "cpu=1,memory=512MiB"
TASKS: Final = 10_000
# Of the same job; the first of each finds the workers cold.
ROUNDS: Final = 3

# Members have this module by value: it is not installed there.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Computed(SchedulerPlugin):  # type: ignore[misc]
    """How often keys have been computed. Each scheduler has one."""

    name = "computed"

    def __init__(self) -> None:
        self.count = 0

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        self.count += (start, finish) == ("processing", "memory")


def computed(dask_scheduler: Any) -> int:
    """On the scheduler."""
    return int(dask_scheduler.plugins["computed"].count)


# Not functions of this module, which Dask would have members import.
briefly: Final = lambda number: (select.select((), (), (), 0.002), number)[1]  # noqa: E731
die: Final = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731


async def job_s(client: Client) -> float:
    """Products of blocks: each needs blocks that lie on other workers."""
    took = []
    for _ in range(1 + ROUNDS):
        began_s = time.perf_counter()
        array = da.random.default_rng(1).random((3000, 3000), chunks=(750, 750))
        await client.compute((array @ array.T).sum())
        took.append(time.perf_counter() - began_s)
    return statistics.median(took[1:])


async def count_of(cluster: Any) -> int:
    return len((await cluster.scheduler_comm.identity(n_workers=-1))["workers"])


async def replaced_s(cluster: Any, client: Client) -> float:
    """SIGKILL for one worker amid tasks, until there are as many again."""
    futures = client.map(briefly, range(TASKS), pure=False)
    await wait(futures[: TASKS // 10])
    workers = (await cluster.scheduler_comm.identity(n_workers=-1))["workers"]
    before, began_s = set(workers), time.perf_counter()
    with suppress(OSError):
        await client.run(die, workers=[next(iter(workers))], on_error="ignore")
    while True:
        now = set((await cluster.scheduler_comm.identity(n_workers=-1))["workers"])
        if len(now) == len(before) and now != before:
            break
        await asyncio.sleep(0.02)
    took_s = time.perf_counter() - began_s
    if sum(await client.gather(futures)) != sum(range(TASKS)):
        raise RuntimeError("results are missing")
    return took_s


async def recomputed(cluster: Any, client: Client) -> int:
    """Tasks that a planned leave amid them has computed again."""
    await client.register_plugin(Computed())
    futures = client.map(briefly, range(1000), pure=False)
    await wait(futures[:200])
    await cluster.scale(WORKERS - 1)
    await client.gather(futures)
    return await client.run_on_scheduler(computed) - len(futures)  # type: ignore[no-any-return]


async def resumed_s(cluster: Any, client: Client) -> float:
    """SIGKILL for the scheduler, until all results are there again."""
    futures = client.map(briefly, range(1000), pure=False)
    await wait(futures)
    await cluster.keep(futures[:100])
    began_s = time.perf_counter()
    with suppress(OSError):
        await client.run_on_scheduler(die)
    if await client.gather(futures) != list(range(1000)):
        raise RuntimeError("results are missing")
    return time.perf_counter() - began_s


async def measured(folder: Path) -> dict[str, Any]:
    async with (
        LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, asynchronous=True, dashboard_address=None
        ) as local,
        Client(local, asynchronous=True) as client,
    ):
        tcp_s = await job_s(client)
    async with (
        LocalNetwork(workers=WORKERS + 1) as network,
        Node.join(network.invite, home=network.home, listen=()) as node,
    ):
        await network.seen_by(node)
        began_s = time.perf_counter()
        asked: dict[str, Any] = {
            "needs": NEEDS,
            "scheduler_needs": NEEDS,
            "state": folder / "state",
        }
        async with node.dask(WORKERS, **asked) as cluster, cluster.get_client() as client:
            started_s = time.perf_counter() - began_s
            ours_s = await job_s(client)
            figures = {
                "dask_started_s": round(started_s, 1),
                "dask_tcp_s": round(tcp_s, 2),
                "dask_over_tcp": round(ours_s / tcp_s, 2),
                "replaced_s": round(await replaced_s(cluster, client), 1),
                "recomputed": await recomputed(cluster, client),
                "resumed_s": round(await resumed_s(cluster, client), 1),
            }
    return figures


def figures() -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        return asyncio.run(measured(Path(folder)))
