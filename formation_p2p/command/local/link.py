"""What commands need of a node: `Node` has it, and so has the node that runs on this machine for
the same home, reached through its socket (client.py)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Unpack

if TYPE_CHECKING:
    import asyncio

    from formation_p2p.api.task_result import TaskResult
    from formation_p2p.core.effects import Contact
    from formation_p2p.core.identity import PeerId
    from formation_p2p.features.services.core.events import ServicesRead, SpecPublished
    from formation_p2p.features.services.core.spec import ServiceSpec
    from formation_p2p.features.services.core.tending import Question
    from formation_p2p.jobs.core.job_events import JobEvent
    from formation_p2p.placement.core.decision import Discovery
    from formation_p2p.placement.core.task_options import Needs, TaskOptionKwargs, TaskOptions
    from formation_p2p.reach.core.paths import Rate, RoundTrip
    from formation_p2p.records.core.profile import Profile
    from formation_p2p.workload.core.blob import Blob
    from formation_p2p.workload.core.memory_estimate import MemoryEstimate
    from formation_p2p.workload.core.plan import Plan
    from formation_p2p.workload.core.work import Work


class NamedTask(Protocol):
    @property
    def task_id(self) -> str: ...

    @property
    def label(self) -> str: ...


class WatchedJob(Protocol):
    """As `JobHandle`."""

    @property
    def job_id(self) -> str: ...

    @property
    def tasks(self) -> Sequence[NamedTask]: ...

    @property
    def sizes(self) -> tuple[MemoryEstimate, ...]: ...

    def events(self) -> AsyncIterator[JobEvent]: ...

    async def results(self) -> tuple[TaskResult, ...]: ...

    def cancel(self) -> None: ...


class Link(Protocol):
    """As `Node`."""

    async def submit(
        self,
        work: Plan | Work,
        *,
        name: str = ...,
        labels: Sequence[str] = ...,
        options: TaskOptions = ...,
        **kwargs: Unpack[TaskOptionKwargs],
    ) -> WatchedJob: ...

    async def put(self, path: Path, /) -> Blob: ...

    async def get(
        self,
        blob: Blob,
        path: Path,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> None: ...

    async def workers(self) -> tuple[Profile, ...]: ...

    async def discover(
        self, needs: Needs, *, name: str = ..., options: TaskOptions = ...
    ) -> Discovery: ...

    def neighbours(self) -> Awaitable[int]: ...

    async def renew(self) -> int: ...

    async def offer_charter(self, raw: bytes, /) -> int: ...

    async def ping(self, peer: str) -> RoundTrip: ...

    async def measure_rate(self, peer: str) -> Rate: ...

    async def publish(self, spec: ServiceSpec, /) -> SpecPublished: ...

    async def read_services(self) -> ServicesRead: ...

    async def put_secret(
        self, content: bytes, *, service: str = ..., known: Blob | None = ...
    ) -> Blob: ...

    async def drop_secret(self, secret: Blob, /) -> None: ...

    async def tend(
        self, worker: Contact | None, question: Question, /
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]: ...

    def incompatible(self) -> Awaitable[Mapping[PeerId, str]]: ...

    def troubles(self) -> Awaitable[tuple[str, ...]]: ...


@asynccontextmanager
async def reach(
    home: Path,
    *,
    may: Callable[[], None] | None = None,
    state: Path | None = None,
    metrics: str | None = None,
    own: bool = False,
) -> AsyncIterator[Link]:
    """The node of this machine that runs from the home, or else a node of the command's own.

    It has its own with a `state` or `metrics`, which are a node's, and where `own` asks for it.
    `may` raises before one joins that is not allowed to do what is to be done; the node that runs
    here looks for itself.
    """
    from formation_p2p.command.local.client import LocalNode
    from formation_p2p.state.member_file import learn_names

    learn_names(home)
    if not own and state is None and metrics is None:
        local = await LocalNode.at(home)
        if local is not None:
            yield local
            return
    from formation_p2p.api.node import Node

    if may is not None:
        may()
    async with Node.join(home=home, listen=(), state=state, metrics=metrics) as node:
        yield node
