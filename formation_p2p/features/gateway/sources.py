"""What a gateway shows and forwards to, as Protocols: a node is one source (node_source.py), and
tests have theirs in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from formation_p2p.core.errors import RemoteError
from formation_p2p.features.services.api.kept import Wanted
from formation_p2p.features.services.core.spec import ServiceSpec, WorkerType
from formation_p2p.workload.core.process import ProcessSpec


class ServiceUnavailable(RemoteError):
    """No replica takes a request now, and no byte of it has left. `retry_after_s` is None where the
    catalog does not have the service, and where the caller `is_denied` it."""

    def __init__(self, message: str, retry_after_s: int | None, *, is_denied: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.is_denied = is_denied


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """What a worker says of one service that it runs, or is about to. `version` is that of the
    spec; 0 where it says none."""

    service: str
    peer_id: str
    worker: str
    state: str
    kind: WorkerType
    slot: int = 0
    outstanding: int = 0
    capacity: int = 0
    since_unix_s: int = 0
    why: str = ""
    workers: int = 1
    version: int = 0


@dataclass(frozen=True, slots=True)
class ServicesView:
    """The catalog and its replicas as of one read. `unknown` are services of which too few holders
    answered: they are no gaps. `wanted` is how many of a service there are to be by its load,
    where that is known."""

    catalog: tuple[ServiceSpec, ...] = ()
    replicas: tuple[ReplicaView, ...] = ()
    unknown: frozenset[str] = frozenset()
    wanted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker: what it gives, and what it has given as far as this node knows. `position` is its
    place on the ring of keys, from 0 to 1; `rtt_ms` the round trip from this node, where the two
    are connected."""

    peer_id: str
    name: str
    kind: WorkerType
    gives: str
    gave: str = ""
    position: float = 0.0
    rtt_ms: float | None = None


@dataclass(frozen=True, slots=True)
class GangView:
    gang_id: str
    state: str
    members: int
    held: int
    since_unix_s: float


@dataclass(frozen=True, slots=True)
class Upstream:
    """One stream to a replica. Closing `writer` has the replica cancel what it does for it. One
    behind a tunnel of its own is asked at its `authority`, below `prefix`."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    replica: str
    authority: str = ""
    prefix: str = ""
    leave: Callable[[], None] = lambda: None
    """Tells the replica at once that `writer` is closed, and not once all has arrived."""


class RunningJob(Protocol):
    """A job that was submitted here."""

    @property
    def job_id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def task_ids(self) -> Sequence[str]: ...

    def events(self) -> AsyncIterator[Mapping[str, Any]]:
        """Each event as JSON, from the first to the end. One reader."""
        ...

    def results(self) -> list[Mapping[str, Any]]:
        """Of the tasks that have ended, as JSON."""
        ...

    def cancel(self) -> None: ...


class Source(Protocol):
    """On the loop of the gateway."""

    @property
    def peer_id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def addresses(self) -> Sequence[str]:
        """Multiaddrs where others reach this node, with its peer id."""
        ...

    async def services(self) -> ServicesView: ...

    async def workers(self) -> Sequence[WorkerView]: ...

    async def gangs(self) -> Sequence[GangView]: ...

    async def submit(
        self,
        specs: Sequence[ProcessSpec],
        labels: Sequence[str],
        name: str,
        options: Mapping[str, Any],
    ) -> RunningJob:
        """Raises InvalidInput."""
        ...

    async def connect(self, wanted: Wanted, caller: str, full: Callable[[], None]) -> Upstream:
        """A stream to the best replica, or to the one that the caller had while it is ready; where
        all are full, callers take turns, and `full` is called. Raises ServiceUnavailable, and
        FormationError, where nothing was sent."""
        ...

    def failed(self, service: str, replica: str) -> None:
        """A replica answered with an error of its own, such as the status 500."""
        ...

    async def metrics(self) -> bytes:
        """In the text format of Prometheus."""
        ...
