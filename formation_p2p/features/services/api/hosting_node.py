"""Services of a node's own: those that it publishes, and the replicas that it runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar, Unpack

from formation_p2p.api.calling import CallingNode
from formation_p2p.api.calls import of_calls
from formation_p2p.api.keywords import listing
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.environments.prepare import resolved
from formation_p2p.features.gangs.api.gang import Gang, GangMeans
from formation_p2p.features.gangs.api.pool import pool_of_workers
from formation_p2p.features.gangs.core.choice import Arrangement
from formation_p2p.features.gangs.core.network import NETWORK_LABEL
from formation_p2p.features.gangs.core.pool import Pool
from formation_p2p.features.gangs.core.spec import DEFAULT_SIZE, GangSpec, OnLoss
from formation_p2p.features.services.core.events import DrainReplica, ServeServices, ServicesRead
from formation_p2p.features.services.core.events import SpecPublished as SpecPublished
from formation_p2p.features.services.core.messages import ServiceError
from formation_p2p.features.services.core.signed_spec import MAX_SPEC_TTL_S, seal_spec
from formation_p2p.features.services.core.spec import ServiceSpec, WorkerType
from formation_p2p.features.services.core.tending import Question
from formation_p2p.features.services.host.replicas import ReplicaStatus
from formation_p2p.features.services.host.stream import HangUps, ServiceStream, serve_caller
from formation_p2p.machine.clock import moment
from formation_p2p.machine.core.bounds import shown
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.net.logged import logged
from formation_p2p.peer.shell import Shell
from formation_p2p.placement.core.task_options import (
    DEFAULT_OPTIONS,
    GangKwargs,
    Needs,
    TaskOptions,
    needs_of,
)
from formation_p2p.placement.policies import options_of
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.environment import Environment
from formation_p2p.workload.core.work import PythonCall


class Forming(Awaitable[Gang]):
    """`await` it for the gang, or enter it by `async with`, which closes the gang again."""

    def __init__(self, form: Callable[[], Awaitable[Gang]]) -> None:
        self._form = form
        self._gang: Gang | None = None

    def __await__(self) -> Generator[Any, Any, Gang]:
        return self._form().__await__()

    async def __aenter__(self) -> Gang:
        self._gang = await self._form()
        return self._gang

    async def __aexit__(self, *raised: object) -> None:
        if self._gang is not None:
            await self._gang.close()


async def formed(means: GangMeans, spec: GangSpec) -> Gang:
    """Raises Unplaceable, InvalidInput, NodeClosed."""
    options = spec.options
    if options.env is not None:
        options = await resolved(options, means.services.with_environment)
        needs = tuple(_in_environment(each, options) for each in spec.needs)
        spec = replace(spec, needs=needs, options=options)
    return await Gang(means, spec).form()


def driven(needs: Requirements, driver: str) -> Requirements:
    """Of a rank whose tasks this driver runs, unless the needs name one. Raises InvalidInput."""
    needs = replace(needs, driver=needs.driver or driver)
    return of_calls(needs) if needs.driver == PythonCall.driver else needs


def _in_environment(needs: Requirements, options: TaskOptions) -> Requirements:
    assert isinstance(options.env, Environment)
    python = needs.python or options.needs.python
    return replace(needs, python=python, environment=options.env.name(python))


# The drivers that start their tasks in a sandbox.
_WITH_NETWORK: Final = ("python", "process")

_E = TypeVar("_E", bound=StrEnum)


class GangNode(CallingNode):
    """The part of `Node` that is about gangs."""

    @listing(GangKwargs)
    def gang(
        self,
        members: int | Sequence[Needs] | None = None,
        *,
        driver: str = "python",
        arrange: Arrangement | str = Arrangement.STRICT_SPREAD,
        on_loss: OnLoss | str = OnLoss.REPLACE,
        network: str = "",
        options: TaskOptions = DEFAULT_OPTIONS,
        **kwargs: Unpack[GangKwargs],
    ) -> Forming:
        """Lease workers together, all or none: `async with node.gang(3, needs="gpu=1") as gang`,
        or `gang = await node.gang(…)` and `await gang.close()`.

        `members` is how many, each with the same `needs`; or the needs of each rank, such as
        `["gpu=1", "cpu=16", "cpu=16"]`. Without it there are three, or all workers where there are
        fewer. Nothing runs before all are leased. Where no more is said, they are the workers whose
        keys are nearest to the gang's.

        `driver` runs the tasks of all members: `python` for `run` and `call`, `process` for
        programs. `arrange` is how they lie, `on_loss` whether a member that is lost is replaced, or
        the gang ends (docs/clusters.md). With `network="gang"` the tasks are in a network of their
        own, in which each is a host: m0, m1 and so on. The keyword arguments are those of
        `GangKwargs`; they change `options`. Raises InvalidInput; where it is awaited, Unplaceable,
        NodeClosed.
        """
        self._lifecycle.check_loop()
        chosen = options_of(kwargs, options, takes=GangKwargs, call="gang")
        needs, fewer = _needs_of(members, chosen.needs)
        spec = GangSpec(
            tuple(_in_network(network, driven(each, driver)) for each in needs),
            replace(chosen, memory_given=True, learn=False, attempts=1),
            _one_of(Arrangement, "arrange", arrange),
            _one_of(OnLoss, "on_loss", on_loss),
            fewer,
        )
        means = GangMeans(self._services, self._bridge, self._code)
        return Forming(partial(formed, means, spec))

    async def pool(self) -> Pool:
        """What the workers that the network knows of have together, and whose it is. `divided` says
        what a gang of them must ask for so that it has more than any one machine."""
        self._lifecycle.check_loop()
        found = await self._bridge.explain(None, "any worker")
        return pool_of_workers(ranked.profile for ranked in found.decision.ranked)


def _needs_of(
    members: int | Sequence[Needs] | None, needs: Requirements
) -> tuple[tuple[Requirements, ...], bool]:
    """Of each rank, and whether fewer will do. Raises InvalidInput."""
    if members is None:
        return (needs,) * DEFAULT_SIZE, True
    if isinstance(members, int):
        return (needs,) * members, False
    if isinstance(members, str):
        raise InvalidInput("members", f"{members!r} is not a list; write needs={members!r}")
    return tuple(needs_of(each)[0] for each in members), False


def _in_network(network: str, needs: Requirements) -> Requirements:
    """Raises InvalidInput."""
    if network == "":
        return needs
    if network != "gang":
        raise InvalidInput("network", f"{network!r} is not known; write 'gang', or leave it out")
    if needs.driver not in _WITH_NETWORK:
        known = " or ".join(_WITH_NETWORK)
        raise InvalidInput("network", f"tasks of {needs.driver} can have none; form one of {known}")
    if needs.network_mbps:
        problem = "a task in the gang's network reaches no other; leave network= out of the needs"
        raise InvalidInput("network", problem)
    return replace(needs, labels=(*needs.labels, NETWORK_LABEL))


def _one_of(kind: type[_E], field: str, given: str) -> _E:
    try:
        return kind(given)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise InvalidInput(field, f"{given!r} is not known; write one of {known}") from None


# Dask clusters of a node. What they are made of is above this room, and needs the extra `dask`: it
# is imported by its name, when the first is asked for.
# It holds graphs, and the results on their way to the client.
SCHEDULER_NEEDS: Final = "cpu=0.5,memory=1GiB"


class ClusterNode(GangNode):
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

        room = import_module("formation_p2p.features.dask.cluster")
        folder = None if state is None else Path(state)
        spec = room.ClusterSpec(fewest, most, chosen.needs, threads, folder, trust_results)
        return partial(room.FormationCluster, form, spec, asyncio.get_running_loop())


# As many as a machine of four cores runs beside its tasks.
MAX_SERVICES: Final = 4


class HostingNode(ClusterNode):
    """The part of `Node` that is about services of its own."""

    async def serve_services(
        self,
        types: Iterable[WorkerType | str],
        *,
        max_services: int = MAX_SERVICES,
        allow_exec: bool = False,
    ) -> None:
        """Run services that ask for workers of these types, at most so many at once: those of which
        the network has too few. After `worker`, whose drivers and limits they have. With
        `allow_exec` the publisher of a service may run programs beside its replicas here. Can be
        called once. Raises InvalidInput."""
        self._lifecycle.check_loop()
        chosen = frozenset(map(_type_of, types))

        def allow(shell: Shell) -> None:
            shell.features.services.tending.allows_exec = allow_exec

        self._services.call(allow)
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
            told = await shell.features.services.reads.publish(signed)
            held = self._services.held
            if not told.stored or held is None or await held.stored():
                return told
            return replace(told, why=f"{held.database.path} cannot be written; see the log")

        return await self._bridge.perform(publish)

    async def read_services(self, *named: str) -> ServicesRead:
        """The signed specs and claims of the services named, or of all, as they are in the DHT."""
        self._lifecycle.check_loop()
        return await self._bridge.perform(
            lambda shell: shell.features.services.reads.read(*named, sure=True)
        )

    async def put_secret(
        self, content: bytes, *, service: str = "", known: Blob | None = None
    ) -> Blob:
        """Keep a secret, for tasks that this node submits, or for the replicas of a service that it
        publishes: in a box on its disk that it alone opens. It goes to their workers alone, sealed
        for each. `ProcessSpec(secrets={"TOKEN": ...})` takes what this returns: the one that is
        `known`, where the content is the same. Raises InvalidInput, LocalError."""
        self._lifecycle.check_loop()
        contact = self._services.contact

        async def put(shell: Shell) -> Blob:
            return shell.features.services.tending.secrets.put(content, service, known)

        blob = await self._bridge.perform(put)
        return replace(blob, sources=(contact,))

    async def drop_secret(self, secret: Blob) -> None:
        """Of a task that has ended."""
        self._lifecycle.check_loop()
        self._services.call(lambda shell: shell.features.services.tending.secrets.drop(secret.cid))

    async def tend(
        self, worker: Contact | None, question: Question
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Ask a worker, or this one, about its replica of a service: `ReadLog` for what that has
        printed, `RunBeside` to run a program beside it (core/tending.py says what comes).
        Raises ServiceError."""
        self._lifecycle.check_loop()
        to = worker or self._services.contact

        async def asked(shell: Shell) -> socket.socket:
            stream = await shell.features.services.tending.ask(to, question)
            here, its = socket.socketpair()
            its.setblocking(False)
            shell.do(logged, partial(_tended, shell.features.services.router.hang_ups, stream, its))
            return here

        end = await self._bridge.perform(asked)
        end.setblocking(False)
        return await asyncio.open_unix_connection(sock=end)

    async def drain(self, service: str) -> None:
        """Have the replica of a service that runs here finish what it serves, and end; this node
        takes on no other one of it for a while."""
        self._lifecycle.check_loop()
        self._services.call(lambda shell: shell.feed(DrainReplica(service)))

    async def replicas(self) -> tuple[ReplicaStatus, ...]:
        """Those that this node runs."""
        self._lifecycle.check_loop()
        return await self._bridge.look(lambda shell: shell.features.services.statuses())


async def _tended(hang_ups: HangUps, stream: ServiceStream, its: socket.socket) -> None:
    """On the node's thread, until it is over."""
    with its, suppress(ServiceError):  # where it breaks, its reader meets the end
        await serve_caller(stream, its, hang_ups, lambda first_byte_s: None)


def _type_of(name: WorkerType | str) -> WorkerType:
    try:
        return WorkerType(name)
    except ValueError:
        problem = f"{shown(name)} is none of {', '.join(WorkerType)}"
        raise InvalidInput("serve", problem) from None
