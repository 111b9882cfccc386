"""A Dask cluster on a gang: rank 0 runs the scheduler, each other one a worker.

All of it runs in the members' sandboxes, which have no network: what they say to each other goes
over the gang's streams. The owner has the cluster object, the state, and the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol, TypeVar

from distributed import Client, futures_of
from distributed.comm.core import connect
from distributed.core import Status, rpc
from distributed.deploy.adaptive import Adaptive
from distributed.deploy.cluster import Cluster
from distributed.security import Security

from formation_p2p.core.errors import FormationError, InvalidInput, Unplaceable
from formation_p2p.features.dask.client import FormationClient
from formation_p2p.features.dask.comm import PREFIX
from formation_p2p.features.dask.door import Door, Reaching
from formation_p2p.features.dask.member import SCHEDULER_PORT, run_scheduler, run_worker, versions
from formation_p2p.features.dask.scheduler import DASHBOARD_PORT
from formation_p2p.features.dask.survival import Kept, Survival
from formation_p2p.machine.core.requirements import Requirements

# What a Dask client of a cluster connects with: the gang's streams alone.
#
# A member may name any address as that of a worker, and a client that fetches results from workers
# (`direct=True`, the methods of actors) connects to it. Over another protocol Dask would unpickle
# what comes from there.

# Its WebSocket connector takes no other option than those of a request, and does not ask whether
# it has to encrypt.
_NO_WEBSOCKET: Final = {"formation": "connects to no other addresses"}


class StreamsOnly(Security):  # type: ignore[misc]
    """`Client(cluster)` takes it from its cluster. Other connections raise RuntimeError or
    TypeError."""

    def get_connection_args(self, role: str) -> dict[str, Any]:
        """For Dask's connectors."""
        return {
            "ssl_context": None,
            "require_encryption": True,
            "extra_conn_args": _NO_WEBSOCKET,
        }


T = TypeVar("T")

_log = logging.getLogger(__name__)

# A member that fails so often in a row, each time so soon, while the cluster starts, cannot run it.
# Later it may be the machine's fault, and work waits for it: it is started again and again.
MAX_STARTS: Final = 5
EARLY_S: Final = 5.0
# Between two starts of what ended early: longer each time, and at most.
_BACK_OFF_S: Final = 0.5
_MAX_BACK_OFF_S: Final = 10.0
# For a process that starts, and imports Dask, on a busy machine.
START_S: Final = 60.0
_POLL_S: Final = 0.05


class MemberGang(Reaching, Protocol):
    """What a cluster needs of a gang (features/gangs/api/gang.py)."""

    @property
    def size(self) -> int: ...

    def call(self, rank: int, function: Any, *args: Any) -> asyncio.Future[Any]: ...
    async def resize(self, size: int) -> None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """`minimum` workers at once, up to `maximum` as there is work; each with `needs`. `threads` of
    each, as many as its cores by default. `state` is the folder of what survives the scheduler.

    Raises InvalidInput.
    """

    minimum: int
    maximum: int
    needs: Requirements
    threads: int | None = None
    state: Path | None = None
    trust_results: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum:
            problem = f"({self.minimum}, {self.maximum}) is not at least one, and at most more"
            raise InvalidInput("workers", problem)
        if self.threads is not None and self.threads < 1:
            raise InvalidInput("threads", f"{self.threads} is less than one; leave it out")

    @property
    def of_worker(self) -> dict[str, Any]:
        """As `run_worker` takes it."""
        gpus = {"GPU": self.needs.gpu_count} if self.needs.gpu_count else {}
        return {
            "versions": versions(),
            "threads": self.threads or max(1, self.needs.cpu_milli // 1000),
            "memory_bytes": self.needs.memory_bytes,
            "resources": gpus,
        }


class HighestLeave(Adaptive):  # type: ignore[misc]
    """Grows and shrinks a cluster by its work. What leaves are the highest ranks, as a gang can
    give back no others; each finishes what it runs, and hands over what it keeps."""

    async def workers_to_close(self, target: int) -> list[int]:
        return sorted(self.plan)[target:]

    async def scale_down(self, workers: list[int]) -> None:
        if workers:
            await self.cluster.resized(len(self.plan) - len(workers))


class FormationCluster(Cluster):  # type: ignore[misc]
    """`Node.dask` and `SyncNode.dask` make it; `Client(cluster)` works with it. Await it, or use
    it in `async with`; that of a SyncNode has started, and is for `with`.

    `form` leases a gang of so many members, on `node_loop`, that of the node.
    """

    status: Any

    def __init__(
        self,
        form: Callable[[int], Awaitable[Any]],
        spec: ClusterSpec,
        node_loop: asyncio.AbstractEventLoop,
        *,
        asynchronous: bool,
    ) -> None:
        self._form = form
        self._spec = spec
        self._node_loop = node_loop
        self._gang: MemberGang | None = None
        self._door: Door | None = None
        self._lives: dict[int, asyncio.Task[None]] = {}
        self._problems: dict[int, str] = {}
        self._again: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._resizing = asyncio.Lock()
        self._kept = None if spec.state is None else Kept(spec.state)
        self.survival: Survival | None = None
        if not spec.trust_results:
            self.security = StreamsOnly()
        super().__init__(asynchronous=asynchronous, quiet=True, name=None)
        if not asynchronous:
            self._loop_runner.start()
            try:
                self.sync(self._start)
            except BaseException:
                self._loop_runner.stop()
                raise

    # What Dask's Cluster calls.

    async def _start(self) -> None:
        """Raises Unplaceable, and RuntimeError where no member can run Dask, with what it said."""
        async with self._starting:
            if self.status != Status.created:
                return
            self.status = Status.starting
            try:
                self._gang = await self._on_node(self._formed)
                address = f"{PREFIX}m0.{self._gang.gang_id}:{SCHEDULER_PORT}"
                self.scheduler_comm = rpc(address)
                if self._kept is not None:
                    self.survival = Survival(self._kept, address, self._goes_on)
                for rank in range(1 + self._spec.minimum):  # workers wait for the scheduler
                    self._live(rank)
                await self._up()
                await self._joined(self._spec.minimum)
                await self._restore()
                await super()._start()
            except BaseException:
                self.status = Status.failed
                await self._end()
                raise
            if self._spec.maximum > self._spec.minimum:
                self.adapt(minimum=self._spec.minimum, maximum=self._spec.maximum)

    async def _formed(self) -> MemberGang:
        gang: MemberGang = await self._form(1 + self._spec.minimum)
        self._door = await Door(gang, DASHBOARD_PORT, trust_results=self._spec.trust_results).open()
        return gang

    def __await__(self) -> Any:
        async def started() -> FormationCluster:
            await self._start()
            return self

        return started().__await__()

    async def __aenter__(self) -> FormationCluster:
        await self
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._close()

    async def _close(self) -> None:
        if self.status in (Status.closing, Status.closed):
            return
        with suppress(AttributeError):
            self._adaptive.stop()
        self.status = Status.closing
        await self._end()
        self.status = Status.running  # for the base to close what it has opened
        await super()._close()

    async def _end(self) -> None:
        if self._again is not None:
            self._again.cancel()
        if self.survival is not None:
            await self.survival.close()
        gang, door = self._gang, self._door
        if gang is not None:
            await self._on_node(gang.close)
        for life in self._lives.values():
            life.cancel()
        await asyncio.gather(*self._lives.values(), return_exceptions=True)
        if door is not None:
            await self._on_node(door.close)

    def close(self, timeout: float | None = None) -> Any:
        closed = super().close(timeout)
        if not self.asynchronous:
            self._loop_runner.stop()
        return closed

    async def _watch_worker_status(self, comm: Any) -> None:
        """Through all lives of the scheduler. That one has ended is seen here: where its whole
        member has died, the gang begins the next one, and the call for it goes on."""
        while True:
            await super()._watch_worker_status(comm)
            comm = None
            if self.status == Status.running:
                if self._again is not None:
                    self._again.cancel()
                self._again = asyncio.create_task(self._revived())
            while comm is None:
                if self.status != Status.running:
                    return
                with suppress(OSError):
                    comm = await self.scheduler_comm.live_comm()
                    await comm.write({"op": "subscribe_worker_status"})
                    self.scheduler_info = await comm.read()
                    self._watch_worker_status_comm = comm

    @property
    def dashboard_link(self) -> str:
        """On this machine: the dashboard, where bokeh is installed on the scheduler's."""
        return "" if self._door is None else f"http://127.0.0.1:{self._door.port}/status"

    @property
    def workers(self) -> dict[int, Any]:
        """By rank."""
        return {rank: life for rank, life in self._lives.items() if rank > 0}

    def get_client(self) -> Client:
        """Its futures go on with the next life of the scheduler, where there is a state."""
        return FormationClient(self, asynchronous=self.asynchronous)

    # Growing and shrinking.

    def scale(self, n: int) -> Any:
        """Have `n` workers. Those that leave finish what they run, and hand over what they keep.
        Raises InvalidInput; Unplaceable where there are not workers enough."""
        return self.sync(self.resized, n)

    async def resized(self, count: int) -> None:
        """As `scale`."""
        if count < 1:
            raise InvalidInput("workers", f"{count} is less than one; close the cluster instead")
        async with self._resizing:
            gang = self._gang
            assert gang is not None
            now = len(self.workers)
            if count > now:
                await self._on_node(lambda: gang.resize(1 + count))
                for rank in range(now + 1, count + 1):
                    self._live(rank)
            elif count < now:
                leaving = list(range(count + 1, now + 1))
                left = await self.scheduler_comm.formation_leave(names=leaving)
                # From the highest on, as long as each has left.
                keep = max(set(leaving) - set(left), default=count)
                for rank in range(keep + 1, now + 1):
                    self._lives.pop(rank).cancel()
                await self._on_node(lambda: gang.resize(1 + keep))
                if keep > count:
                    _log.warning("workers up to %d keep what no other can take", keep)

    def adapt(self, **options: Any) -> Adaptive:
        """Grow and shrink with the work. The options are those of Dask's Adaptive."""
        return super().adapt(**{"Adaptive": HighestLeave, **options})

    async def scale_up(self, n: int) -> None:
        with suppress(Unplaceable):  # until there are: it is asked for again
            await self.resized(n)

    def keep(self, *collections: Any) -> Any:
        """Mark what was persisted or submitted: its results are on the disk when this returns, and
        no new life of the scheduler computes them again. Raises InvalidInput without a state,
        KeyError, and RuntimeError for what failed."""
        return self.sync(self._keep, *collections)

    async def _keep(self, *collections: Any) -> None:
        if self.survival is None:
            raise InvalidInput("state", "this cluster keeps nothing; make it with state=…")
        await self.survival.keep(x.key for each in collections for x in futures_of(each))

    # The members.

    def _live(self, rank: int) -> None:
        self._lives[rank] = asyncio.create_task(self._lived(rank))

    async def _lived(self, rank: int) -> None:
        """One life after the other of what runs on a rank."""
        gang = self._gang
        assert gang is not None
        function, spec = (run_worker if rank else run_scheduler), self._spec.of_worker
        early = 0
        while self.status not in (Status.closing, Status.closed):
            began = monotonic()
            try:
                await self._on_node(lambda: gang.call(rank, function, spec))
                problem = "ended"
            except Exception as error:  # noqa: BLE001 - what a member says is told, and tried again
                problem = str(error)
            self._log(f"member {rank}: {problem}")
            early = early + 1 if monotonic() - began < EARLY_S else 0
            if self.status == Status.starting and (
                early >= MAX_STARTS or " instead of " in problem
            ):
                self._problems[rank] = problem
                return
            if early >= MAX_STARTS:
                _log.warning("member %d does not run Dask: %s; it is tried again", rank, problem)
            await asyncio.sleep(min(_BACK_OFF_S * early, _MAX_BACK_OFF_S))

    async def _revived(self) -> None:
        """A new life of the scheduler gets what is kept, however long it takes to come: clients
        wait for that."""
        while self.status == Status.running:
            try:
                await self._up()
                await self._joined(1)
                await self._restore()
                return
            except (OSError, RuntimeError, FormationError) as error:
                _log.warning("the scheduler's next life has not got what is kept yet: %s", error)
            await asyncio.sleep(EARLY_S)

    async def _restore(self) -> None:
        """Then clients go on."""
        if self.survival is not None:
            self.survival.follow()
            await self.survival.restore()
        await self.scheduler_comm.formation_resumed()

    def _goes_on(self) -> bool:
        return self.status in (Status.starting, Status.running)

    async def _up(self) -> None:
        """Until the scheduler answers. Raises RuntimeError with what its member said."""
        deadline = monotonic() + START_S
        while True:
            self._check(0)
            try:
                comm = await connect(self.scheduler_comm.address, timeout=2)
            except OSError as error:
                if monotonic() > deadline:
                    raise RuntimeError(f"no scheduler within {START_S:g} s: {error}") from error
            else:
                await comm.close()
                return

    async def _joined(self, count: int) -> None:
        """Until so many workers are there. Raises RuntimeError."""
        deadline = monotonic() + START_S
        while True:
            for rank in self._lives:
                self._check(rank)
            with suppress(OSError):  # the scheduler's member is lost, and the next life comes up
                identity = await self.scheduler_comm.identity(n_workers=-1)
                if len(identity["workers"]) >= count:
                    return
            if monotonic() > deadline:
                raise RuntimeError(f"fewer than {count} workers joined within {START_S:g} s")
            await asyncio.sleep(_POLL_S)

    def _check(self, rank: int) -> None:
        if rank in self._problems:
            raise RuntimeError(f"member {rank} cannot run Dask: {self._problems[rank]}")

    async def _on_node(self, call: Callable[[], Awaitable[T]]) -> T:
        """On the node's loop; Dask's may be another one."""

        async def there() -> T:
            return await call()

        coroutine: Coroutine[Any, Any, T] = there()
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(coroutine, self._node_loop)
        )
