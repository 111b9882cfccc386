"""Services of a node's own: those that it publishes, and the replicas that it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Unpack

from formation_p2p.api.gang import Gang
from formation_p2p.api.gang_node import GangNode
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.gang.choice import Arrangement
from formation_p2p.core.placement.task_options import (
    DEFAULT_OPTIONS,
    GangKwargs,
    Needs,
    TaskOptions,
    needs_of,
)
from formation_p2p.core.resources.bounds import shown
from formation_p2p.core.services.events import DrainReplica, ServeServices, ServicesRead
from formation_p2p.core.services.events import SpecPublished as SpecPublished
from formation_p2p.core.services.signed_spec import MAX_SPEC_TTL_S, seal_spec
from formation_p2p.core.services.spec import ServiceSpec, WorkerType
from formation_p2p.host.clock import moment
from formation_p2p.host.policies import options_of
from formation_p2p.host.services.replicas import ReplicaStatus
from formation_p2p.host.shell import Shell

# Dask clusters of a node. What they are made of is above this room, and needs the extra `dask`: it
# is imported by its name, when the first is asked for.
# It holds graphs, and the results on their way to the client.
SCHEDULER_NEEDS: Final = "cpu=0.5,memory=1GiB"


class ClusterNode(GangNode):
    """The part of `Node` that is about Dask."""

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
        scheduler, and this program. Results are data unless `trust_results` (docs/clusters.md).
        The keyword arguments are those of `GangKwargs`; they change `options`.

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

        room = import_module("formation_p2p.dask.cluster")
        folder = None if state is None else Path(state)
        spec = room.ClusterSpec(fewest, most, chosen.needs, threads, folder, trust_results)
        return partial(room.FormationCluster, form, spec, asyncio.get_running_loop())


# As many as a machine of four cores runs beside its tasks.
MAX_SERVICES: Final = 4


class HostingNode(ClusterNode):
    """The part of `Node` that is about services of its own."""

    async def serve_services(
        self, types: Iterable[WorkerType | str], *, max_services: int = MAX_SERVICES
    ) -> None:
        """Run services that ask for workers of these types, at most so many at once: those of which
        the network has too few. After `worker`, whose drivers and limits they have. Can be called
        once. Raises InvalidInput."""
        self._lifecycle.check_loop()
        chosen = frozenset(map(_type_of, types))
        self._services.serve_services(ServeServices(chosen, max_services))

    async def publish(self, spec: ServiceSpec, *, lives_s: int = MAX_SPEC_TTL_S) -> SpecPublished:
        """Put a service into the network's catalog, where workers find it; of a service that is
        there, a higher version takes the place of the lower. One that is `withdrawn` ends.

        The answer says how many peers hold it, and why not where none does, or another one counts.
        Raises InvalidInput, also where this node's grant gives no right to it."""
        self._lifecycle.check_loop()
        identity = self._services.entered()[1].identity

        async def publish(shell: Shell) -> SpecPublished:
            issued = int(moment().unix_s)
            grant = shell.peer.network.grant
            signed = seal_spec(identity, spec, grant, issued, issued + lives_s)
            return await shell.service_reads.publish(signed)

        return await self._bridge.perform(publish)

    async def read_services(self, *named: str) -> ServicesRead:
        """The signed specs and claims of the services named, or of all, as they are in the DHT."""
        self._lifecycle.check_loop()
        return await self._bridge.perform(lambda shell: shell.service_reads.read(*named, sure=True))

    async def drain(self, service: str) -> None:
        """Have the replica of a service that runs here finish what it serves, and end; this node
        takes on no other one of it for a while."""
        self._lifecycle.check_loop()
        self._services.call(lambda shell: shell.feed(DrainReplica(service)))

    async def replicas(self) -> tuple[ReplicaStatus, ...]:
        """Those that this node runs."""
        self._lifecycle.check_loop()
        return await self._bridge.look(Shell.replica_statuses)


def _type_of(name: WorkerType | str) -> WorkerType:
    try:
        return WorkerType(name)
    except ValueError:
        problem = f"{shown(name)} is none of {', '.join(WorkerType)}"
        raise InvalidInput("serve", problem) from None
