"""What a node offers its program of Dask. Its first cluster imports the extra `dask`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Unpack

from formation_p2p.api.sync_loop import SyncLoop, made, without_await
from formation_p2p.core.errors import lacks
from formation_p2p.features.gangs.api.gang import Gang
from formation_p2p.features.gangs.api.node import GangNode
from formation_p2p.features.gangs.core.choice import Arrangement
from formation_p2p.placement.core.task_options import (
    DEFAULT_OPTIONS,
    GangKwargs,
    Needs,
    TaskOptions,
    listing,
    needs_of,
)
from formation_p2p.placement.policies import options_of

# It holds graphs, and the results on their way to the client.
SCHEDULER_NEEDS: Final = "cpu=0.5,memory=1GiB"


class DaskNode(GangNode):
    """The part of `Node` that is about Dask."""

    @listing(GangKwargs)
    def dask(
        self,
        workers: int | tuple[int, int] = (1, 16),
        *,
        threads: int | None = None,
        state: Path | str | None = None,
        scheduler_needs: Needs = SCHEDULER_NEEDS,
        arrange: Arrangement | str = Arrangement.SPREAD,
        trust_results: bool = False,
        options: TaskOptions = DEFAULT_OPTIONS,
        **kwargs: Unpack[GangKwargs],
    ) -> Any:
        """A Dask cluster: `async with node.dask(3, needs="cpu=2,memory=4GiB") as cluster`, then
        `Client(cluster, asynchronous=True)`.

        `workers` is how many there are, or the fewest and the most: it grows and shrinks with the
        work then. Each has `needs`, and `threads`, as many as cores by default. With `state`, a
        folder, graphs that are submitted and results that are marked by `cluster.keep` outlive the
        scheduler, and this program. Results are data unless `trust_results`
        (docs/explanation/clusters.md). The keyword arguments are those of `GangKwargs`; they change
        `options`.

        Raises InvalidInput, ImportError without the extra `dask`; where it is awaited, Unplaceable,
        and RuntimeError where a member cannot run Dask.
        """
        made = self._dask(
            workers,
            threads=threads,
            state=state,
            scheduler_needs=scheduler_needs,
            arrange=arrange,
            trust_results=trust_results,
            options=options,
            **kwargs,
        )
        return made(asynchronous=True)

    def _dask(
        self,
        workers: int | tuple[int, int] = (1, 16),
        *,
        threads: int | None = None,
        state: Path | str | None = None,
        scheduler_needs: Needs = SCHEDULER_NEEDS,
        arrange: Arrangement | str = Arrangement.SPREAD,
        trust_results: bool = False,
        options: TaskOptions = DEFAULT_OPTIONS,
        **kwargs: Unpack[GangKwargs],
    ) -> Callable[..., Any]:
        """What makes the cluster, on the loop of its client. Raises as `dask`."""
        self._lifecycle.check_loop()
        chosen = options_of(kwargs, options, takes=GangKwargs, call="dask")
        fewest, most = (workers, workers) if isinstance(workers, int) else workers
        scheduler = replace(needs_of(scheduler_needs)[0], python=chosen.needs.python)

        async def form(size: int) -> Gang:
            members = [scheduler, *[chosen.needs] * (size - 1)]
            return await self.gang(members, arrange=arrange, options=chosen)

        try:
            from formation_p2p.features.dask.cluster import ClusterSpec, FormationCluster
        except ImportError as error:
            raise lacks("a Dask cluster", "dask and distributed", "dask") from error

        folder = None if state is None else Path(state)
        spec = ClusterSpec(fewest, most, chosen.needs, threads, folder, trust_results)
        return partial(FormationCluster, form, spec, asyncio.get_running_loop())


def _clustered(loop: SyncLoop, begin: Callable[[], Callable[..., Any]]) -> Any:
    return loop.call(begin)(asynchronous=False)


class SyncDask:
    """What `SyncNode` has of Dask."""

    dask = functools.wraps(DaskNode.dask)(made(DaskNode._dask, _clustered))
    dask.__doc__ = without_await(DaskNode.dask.__doc__ or "")
