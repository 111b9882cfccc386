"""A command's end of the socket of the node that runs on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from formation_p2p.command.local.begun import Begun, waiting
from formation_p2p.command.local.frames import error_from_wire, receive
from formation_p2p.command.local.values import pack, unpack, unpack_as
from formation_p2p.command.local.wire import (
    EXCHANGE_S,
    MAX_FRAME_BYTES,
    MAX_GREETING_BYTES,
    VERSION,
    encoded,
    socket_of,
)
from formation_p2p.command.words import say
from formation_p2p.core.errors import InvalidInput, NodeClosed
from formation_p2p.core.identity import PeerId
from formation_p2p.machine.names import learn_name
from formation_p2p.machine.unix_socket import reachable
from formation_p2p.workload.core.blob import Blob

if TYPE_CHECKING:
    from formation_p2p.api.task_result import TaskResult
    from formation_p2p.core.effects import Contact
    from formation_p2p.features.services.core.events import ServicesRead, SpecPublished
    from formation_p2p.features.services.core.spec import ServiceSpec
    from formation_p2p.features.services.core.tending import Question
    from formation_p2p.jobs.core.job_events import JobEvent
    from formation_p2p.placement.core.decision import Discovery
    from formation_p2p.placement.core.task_options import Needs, TaskOptionKwargs, TaskOptions
    from formation_p2p.reach.core.paths import Rate, RoundTrip
    from formation_p2p.records.core.profile import Profile
    from formation_p2p.workload.core.memory_estimate import MemoryEstimate
    from formation_p2p.workload.core.plan import Plan
    from formation_p2p.workload.core.work import Work

_ENDED = "the node of this machine ended meanwhile; run the command again"


class _Connection:
    """One question and its answers."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        heard: deque[dict[str, Any]] | None = None,
    ) -> None:
        """What was `heard` comes before what is read."""
        self._reader = reader
        self._writer = writer
        self._heard = deque() if heard is None else heard

    @classmethod
    async def of(cls, begun: Begun) -> Self:
        """One that the start of the command has opened."""
        return cls(*await asyncio.open_unix_connection(sock=begun.connection), begun.heard)

    @classmethod
    async def to(cls, home: Path) -> Self:
        """Raises OSError where no node listens."""
        with reachable(socket_of(home)) as name:
            return cls(*await asyncio.open_unix_connection(name))

    def say(self, message: dict[str, Any]) -> None:
        self._writer.write(encoded(message))

    async def told(self, max_bytes: int = MAX_FRAME_BYTES) -> dict[str, Any]:
        """Raises what the node raised; NodeClosed where it has left."""
        try:
            heard = self._heard
            message = heard.popleft() if heard else await receive(self._reader, max_bytes)
        except EOFError:
            raise NodeClosed(_ENDED) from None
        if "error" in message:
            raise error_from_wire(message["error"])
        return message

    @property
    def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """What follows is no message."""
        return self._reader, self._writer

    def close(self) -> None:
        self._writer.close()


class LocalNode:
    """A `Link` to the node that runs from a home. Each question has its own connection."""

    def __init__(self, home: Path, begun: Begun | None = None) -> None:
        self._home = home
        self._begun = begun

    @classmethod
    async def at(cls, home: Path) -> Self | None:
        """None where none runs there, or one of another version, which the person is told."""
        if waiting and waiting[0].home == str(home):
            return cls(home, waiting.pop())
        try:
            connection = await _Connection.to(home)
        except OSError:
            return None
        with contextlib.closing(connection):
            connection.say({"formation": VERSION})
            try:
                async with asyncio.timeout(EXCHANGE_S):
                    version = (await connection.told(MAX_GREETING_BYTES)).get("formation")
            except (NodeClosed, InvalidInput, TimeoutError):
                version = None
        if version == VERSION:
            return cls(home)
        told = "does not answer" if version is None else "is of another version"
        say(f"formation: the node that runs from {home} {told}; joining by itself")
        return None

    async def submit(
        self,
        work: Plan | Work,
        *,
        name: str = "",
        labels: Sequence[str] = (),
        options: TaskOptions | None = None,
        **kwargs: Unpack[TaskOptionKwargs],
    ) -> LocalJob:
        wanted = {"name": name, "labels": list(labels), "options": _packed_options(options)}
        written = {key: pack(value) for key, value in kwargs.items()}
        if isinstance(file := kwargs.get("env"), str):
            written["env"] = _from_root(Path(file))
        connection = await self._ask("submit", work=pack(work), kwargs=written, **wanted)
        # To import these takes a sixth of a short command; the node places its task meanwhile.
        import formation_p2p.api.task_result
        import formation_p2p.command.outcomes  # noqa: F401

        try:
            begun = (await connection.told())["is"]
        except BaseException:
            connection.close()
            raise
        return LocalJob(connection, unpack(_Begun, begun))

    async def put(self, path: Path, /) -> Blob:
        return unpack(Blob, await self._answer("put", path=_from_root(path)))

    async def get(
        self, blob: Blob, path: Path, *, progress: Callable[[int, int], None] | None = None
    ) -> None:
        connection = await self._ask("get", blob=pack(blob), path=_from_root(path))
        with contextlib.closing(connection):
            while True:
                match await connection.told():
                    case {"progress": [int(done), int(size)]}:
                        if progress is not None:
                            progress(done, size)
                    case _:
                        return

    async def workers(self) -> tuple[Profile, ...]:
        from formation_p2p.records.core.profile import Profile

        found: tuple[Profile, ...] = unpack_as(tuple[Profile, ...], await self._answer("workers"))
        for each in found:
            learn_name(each.peer_id, each.name)
        return found

    async def discover(
        self, needs: Needs, *, name: str = "a task", options: TaskOptions | None = None
    ) -> Discovery:
        """With the needs of the options: a command writes both as one."""
        from formation_p2p.placement.core.decision import Discovery

        packed = _packed_options(options)
        found = unpack(Discovery, await self._answer("discover", name=name, options=packed))
        for peer_id, its_name in found.decision.names:
            learn_name(peer_id, its_name)
        for each in found.decision.ranked:
            learn_name(each.profile.peer_id, each.profile.name)
        return found

    async def neighbours(self) -> int:
        return unpack(int, await self._answer("neighbours"))

    async def renew(self) -> int:
        return unpack(int, await self._answer("renew"))

    async def offer_charter(self, raw: bytes) -> int:
        return unpack(int, await self._answer("offer_charter", raw=raw))

    async def ping(self, peer: str) -> RoundTrip:
        from formation_p2p.reach.core.paths import RoundTrip

        return unpack(RoundTrip, await self._answer("ping", peer=peer))

    async def measure_rate(self, peer: str) -> Rate:
        from formation_p2p.reach.core.paths import Rate

        return unpack(Rate, await self._answer("rate", peer=peer))

    async def publish(self, spec: ServiceSpec, /) -> SpecPublished:
        from formation_p2p.features.services.core.events import SpecPublished
        from formation_p2p.features.services.core.signed_spec import encode_spec

        answer = await self._answer("publish", spec=encode_spec(spec))
        stored, why = unpack_as(tuple[int, str], answer)
        return SpecPublished(b"", stored, why, cause="asked for here")

    async def read_services(self) -> ServicesRead:
        from formation_p2p.features.services.core.claim import open_claim
        from formation_p2p.features.services.core.events import ServicesRead
        from formation_p2p.features.services.core.signed_spec import open_spec

        kind = tuple[tuple[bytes, ...], tuple[bytes, ...], tuple[str, ...], bool]
        specs, claims, unknown, heard = unpack_as(kind, await self._answer("services"))
        now_s = time.time()
        catalog = tuple(open_spec(each, now_s) for each in specs)
        shown = tuple(open_claim(each, now_s) for each in claims)
        return ServicesRead(0, catalog, shown, unknown, heard, cause="asked for here")

    async def put_secret(
        self, content: bytes, *, service: str = "", known: Blob | None = None
    ) -> Blob:
        more = {"service": service, "known": pack(known)}
        return unpack(Blob, await self._answer("put_secret", content=content, **more))

    async def drop_secret(self, secret: Blob, /) -> None:
        await self._answer("drop_secret", secret=pack(secret))

    async def tend(
        self, worker: Contact | None, question: Question, /
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        from formation_p2p.features.services.core import tending

        to = None if worker is None else [worker.peer_id, list(worker.addresses)]
        connection = await self._ask("tend", to=to, question=tending.pack(question))
        try:
            await connection.told()
        except BaseException:
            connection.close()
            raise
        return connection.streams

    async def troubles(self) -> tuple[str, ...]:
        told: tuple[str, ...] = unpack_as(tuple[str, ...], await self._answer("troubles"))
        return told

    async def incompatible(self) -> Mapping[PeerId, str]:
        found: dict[PeerId, str] = unpack_as(dict[PeerId, str], await self._answer("incompatible"))
        return found

    async def _ask(self, what: str, **more: object) -> _Connection:
        """Raises NodeClosed where the node has ended."""
        begun, self._begun = self._begun, None
        if begun is not None:
            if begun.interrupted:
                asyncio.get_running_loop().call_soon(signal.raise_signal, begun.interrupted)
            return await _Connection.of(begun)
        try:
            connection = await _Connection.to(self._home)
        except OSError:
            raise NodeClosed(_ENDED) from None
        try:
            connection.say({"formation": VERSION})
            connection.say({"ask": what, **more})
            await connection.told(MAX_GREETING_BYTES)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _answer(self, what: str, **more: object) -> object:
        with contextlib.closing(await self._ask(what, **more)) as connection:
            return (await connection.told()).get("is")


@dataclass(frozen=True, slots=True)
class _Task:
    task_id: str
    label: str


@dataclass(frozen=True, slots=True)
class _Begun:
    """The answer to `submit`; `sizes` as MemoryEstimate has it."""

    job_id: str
    tasks: tuple[tuple[str, str], ...]
    sizes: tuple[tuple[str, int, int], ...]


class LocalJob:
    """A `WatchedJob` of the node that runs here. It is cancelled when this program ends."""

    def __init__(self, connection: _Connection, begun: _Begun) -> None:
        from formation_p2p.api.task_result import TaskEnds

        self._connection = connection
        self._ends = TaskEnds()
        self.job_id = begun.job_id
        self.tasks = tuple(_Task(*each) for each in begun.tasks)
        self._sizes = begun.sizes

    @property
    def sizes(self) -> tuple[MemoryEstimate, ...]:
        if not self._sizes:
            return ()
        from formation_p2p.workload.core.memory_estimate import MemoryEstimate

        return tuple(MemoryEstimate(*each) for each in self._sizes)

    async def events(self) -> AsyncIterator[JobEvent]:
        """Raises NodeClosed where the node ends before the job does."""
        from formation_p2p.jobs.core.job_events import JobEnded, JobEvent

        with contextlib.closing(self._connection):
            while True:
                message = await self._connection.told()
                event: JobEvent = unpack_as(JobEvent, message.get("event"))
                for peer_id, name in message.get("names", {}).items():
                    learn_name(peer_id, name)
                self._ends.notify(event)
                yield event
                if isinstance(event, JobEnded):
                    return

    async def results(self) -> tuple[TaskResult, ...]:
        """Once the events have been read."""
        labels = {task.task_id: task.label for task in self.tasks}
        return tuple(self._ends.result(each.task_id, each.label, labels) for each in self.tasks)

    def cancel(self) -> None:
        self._connection.say({"cancel": True})


def _packed_options(options: TaskOptions | None) -> object:
    """A policy as its text; the packages beside, with the file that lists them from the root on."""
    if options is None:
        return None
    from formation_p2p.workload.core.environment import Env

    env = options.env
    if isinstance(env, Env) and isinstance(env.requirements, str):
        env = replace(env, requirements=_from_root(Path(env.requirements)))
    return [options.pack(), pack(env)]


def _from_root(path: Path) -> str:
    """The node has another working folder."""
    return str(path.absolute())
