"""A command's end of the socket of the node that runs on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeAlias, Unpack

from formation_p2p.command.start import Begun, waiting
from formation_p2p.command.words import say
from formation_p2p.core.errors import InvalidInput, NodeClosed
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB
from formation_p2p.machine.names import learn_name
from formation_p2p.machine.unix_socket import reachable
from formation_p2p.rpc.values import pack, unpack, unpack_as
from formation_p2p.rpc.wire import (
    EXCHANGE_S,
    LENGTH,
    MAX_FRAME_BYTES,
    MAX_GREETING_BYTES,
    VERSION,
    Message,
    decoded,
    encoded,
    error_from_wire,
    lacks_in_words,
    length_of,
    socket_of,
)
from formation_p2p.workload.core.blob import Blob

if TYPE_CHECKING:
    from formation_p2p.api.job import JobHandle
    from formation_p2p.api.node import Node
    from formation_p2p.api.task_result import TaskResult
    from formation_p2p.jobs.core.job_events import JobEvent
    from formation_p2p.placement.core.decision import Discovery
    from formation_p2p.placement.core.task_options import Needs, TaskOptionKwargs, TaskOptions
    from formation_p2p.reach.core.paths import Rate, RoundTrip
    from formation_p2p.records.core.profile import Profile
    from formation_p2p.workload.core.memory_estimate import MemoryEstimate
    from formation_p2p.workload.core.plan import Plan
    from formation_p2p.workload.core.work import Work

# What commands need of a node: one of their own has it, and so has the node that runs on this
# machine for the same home.
Link: TypeAlias = "LocalNode | Node"
WatchedJob: TypeAlias = "LocalJob | JobHandle"

_ENDED: Final = "the node of this machine ended meanwhile; run the command again"
# Questions up to here are held without waiting for a turn.
SMALL_BYTES: Final = 64 * KIB


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


async def receive(
    reader: asyncio.StreamReader,
    max_bytes: int = MAX_FRAME_BYTES,
    large: asyncio.Semaphore | None = None,
) -> Message:
    """The next message; `large` ones wait for their turn to be read. Raises EOFError where the
    other side has left, InvalidInput for other bytes."""
    try:
        length = length_of(await reader.readexactly(LENGTH.size), max_bytes)
        turn = contextlib.nullcontext() if large is None or length <= SMALL_BYTES else large
        async with turn:
            return decoded(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EOFError from error


class _Connection:
    """One question and its answers."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        heard: deque[Message] | None = None,
    ) -> None:
        """What was `heard` comes before what is read."""
        self.streams = reader, writer
        self._heard = deque() if heard is None else heard

    @classmethod
    async def to(cls, home: Path, method: str) -> tuple[Self, Message]:
        """With how the node greets. Raises OSError where none listens, NodeClosed where it does not
        answer."""
        with reachable(socket_of(home)) as name:
            connection = cls(*await asyncio.open_unix_connection(name))
        try:
            connection.say({"formation": VERSION, "ask": method})
            async with asyncio.timeout(EXCHANGE_S):
                return connection, await connection.told(MAX_GREETING_BYTES)
        except BaseException as error:
            connection.close()
            if isinstance(error, TimeoutError | InvalidInput):
                raise NodeClosed(_ENDED) from error
            raise

    def say(self, message: Message) -> None:
        self.streams[1].write(encoded(message))

    async def told(self, max_bytes: int = MAX_FRAME_BYTES) -> Message:
        """Raises what the node raised; NodeClosed where it has left."""
        try:
            heard = self._heard
            message = heard.popleft() if heard else await receive(self.streams[0], max_bytes)
        except EOFError:
            raise NodeClosed(_ENDED) from None
        if "error" in message:
            raise error_from_wire(message["error"])
        return message

    def close(self) -> None:
        self.streams[1].close()


class LocalNode:
    """The node that runs from a home, with what a `Node` has. Each question has its own
    connection."""

    def __init__(self, home: Path, begun: Begun | None = None) -> None:
        self._home = home
        self._begun = begun

    @classmethod
    async def at(cls, home: Path) -> Self | None:
        """None where none that takes commands runs there, or one of another version, which the
        person is told."""
        if waiting and waiting[0].home == str(home):
            return cls(home, waiting.pop())
        try:
            connection, greeting = await _Connection.to(home, "submit")
        except OSError:
            return None
        except NodeClosed:
            why = "does not answer"
        else:
            connection.close()
            if greeting.get("has"):
                return cls(home)
            if greeting.get("formation") == VERSION:
                return None
            why = lacks_in_words(greeting, "submit")
        say(f"formation: the node that runs from {home} {why}; joining by itself")
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
        written: dict[str, object] = {**kwargs}
        if isinstance(file := kwargs.get("env"), str):
            written["env"] = Path(file)
        wanted = {"name": name, "labels": labels, "options": _packed_options(options)}
        connection = await self.ask("submit", work=work, kwargs=written, **wanted)
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
        return unpack(Blob, await self.answer("put", path=path))

    async def get(
        self, blob: Blob, path: Path, *, progress: Callable[[int, int], None] | None = None
    ) -> None:
        connection = await self.ask("get", blob=blob, path=path)
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

        found: tuple[Profile, ...] = unpack_as(tuple[Profile, ...], await self.answer("workers"))
        for each in found:
            learn_name(each.peer_id, each.name)
        return found

    async def discover(
        self, needs: Needs, *, name: str = "a task", options: TaskOptions | None = None
    ) -> Discovery:
        """With the needs of the options: a command writes both as one."""
        from formation_p2p.placement.core.decision import Discovery

        packed = _packed_options(options)
        found = unpack(Discovery, await self.answer("discover", name=name, options=packed))
        for peer_id, its_name in found.decision.names:
            learn_name(peer_id, its_name)
        for each in found.decision.ranked:
            learn_name(each.profile.peer_id, each.profile.name)
        return found

    async def neighbours(self) -> int:
        return unpack(int, await self.answer("neighbours"))

    async def renew(self) -> int:
        return unpack(int, await self.answer("renew"))

    async def offer_charter(self, raw: bytes) -> int:
        return unpack(int, await self.answer("offer_charter", raw=raw))

    async def ping(self, peer: str) -> RoundTrip:
        from formation_p2p.reach.core.paths import RoundTrip

        return unpack(RoundTrip, await self.answer("ping", peer=peer))

    async def measure_rate(self, peer: str) -> Rate:
        from formation_p2p.reach.core.paths import Rate

        return unpack(Rate, await self.answer("measure_rate", peer=peer))

    async def put_secret(
        self, content: bytes, *, service: str = "", known: Blob | None = None
    ) -> Blob:
        asked = self.answer("put_secret", content=content, service=service, known=known)
        return unpack(Blob, await asked)

    async def drop_secret(self, secret: Blob, /) -> None:
        await self.answer("drop_secret", secret=secret)

    async def troubles(self) -> tuple[str, ...]:
        told: tuple[str, ...] = unpack_as(tuple[str, ...], await self.answer("troubles"))
        return told

    async def incompatible(self) -> Mapping[PeerId, str]:
        found: dict[PeerId, str] = unpack_as(dict[PeerId, str], await self.answer("incompatible"))
        return found

    async def ask(self, method: str, **question: object) -> _Connection:
        """Raises NodeClosed where the node has ended."""
        begun, self._begun = self._begun, None
        if begun is not None:
            if begun.interrupted:
                asyncio.get_running_loop().call_soon(signal.raise_signal, begun.interrupted)
            streams = await asyncio.open_unix_connection(sock=begun.connection)
            return _Connection(*streams, begun.heard)
        try:
            connection, greeting = await _Connection.to(self._home, method)
        except OSError:
            raise NodeClosed(_ENDED) from None
        try:
            if not greeting.get("has"):
                raise NodeClosed(_ENDED)
            connection.say({name: pack(each) for name, each in question.items()})
        except BaseException:
            connection.close()
            raise
        return connection

    async def answer(self, method: str, **question: object) -> object:
        with contextlib.closing(await self.ask(method, **question)) as connection:
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
    """A job of the node that runs here, with what a `JobHandle` has. It is cancelled when this
    program ends."""

    def __init__(self, connection: _Connection, begun: _Begun) -> None:
        from formation_p2p.api.task_result import TaskEnds

        self._connection = connection
        self.job_id = begun.job_id
        self.tasks = tuple(_Task(*each) for each in begun.tasks)
        self._ends = TaskEnds(dict(begun.tasks))
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
        return self._ends.results()

    def cancel(self) -> None:
        self._connection.say({"cancel": True})


def _packed_options(options: TaskOptions | None) -> object:
    """A policy as its text; the packages beside, with the file that lists them from the root on."""
    if options is None:
        return None
    from formation_p2p.workload.core.environment import Env

    env = options.env
    if isinstance(env, Env) and isinstance(env.requirements, str):
        env = replace(env, requirements=str(Path(env.requirements).absolute()))
    return [options.pack(), pack(env)]
