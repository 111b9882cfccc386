"""The socket by which the commands of this user go through a running node (frames.py)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from formation_p2p.command import flags
from formation_p2p.command.local.frames import LOCK, error_to_wire, receive
from formation_p2p.command.local.values import pack, unpack, unpack_as
from formation_p2p.command.local.wire import (
    EXCHANGE_S,
    MAX_FRAME_BYTES,
    MAX_GREETING_BYTES,
    VERSION,
    encoded,
    socket_of,
)
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import FormationError, InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB
from formation_p2p.features.services.core import tending
from formation_p2p.features.services.core.signed_spec import decode_spec
from formation_p2p.jobs.core.job_events import (
    JobEvent,
    TaskDisagreed,
    TaskPlaced,
    TaskUnplaceable,
)
from formation_p2p.machine.file_lock import lock_file, unlock_file
from formation_p2p.machine.names import name_of
from formation_p2p.machine.unix_socket import is_beside_us, reachable
from formation_p2p.placement.core.task_options import DEFAULT_OPTIONS, TaskOptions
from formation_p2p.placement.policies import POLICIES, options_of
from formation_p2p.trust.core.grants import Right
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.environment import Env
from formation_p2p.workload.core.plan import Plan, plan_of
from formation_p2p.workload.core.work import Work

if TYPE_CHECKING:
    from formation_p2p.api.job import JobHandle
    from formation_p2p.api.node import Node

log = logging.getLogger(__name__)

# Commands at once: a person's scripts. Each may hold one question, and what the node keeps of a
# job's output for a slow reader (api/job.py).
MAX_COMMANDS: Final = 64
# Large questions that are being received: what unfinished ones may hold is this often a frame.
MAX_RECEIVING: Final = 4
# A further node of the home takes over within this when the one that served has ended.
LOOK_AGAIN_S: Final = 1.0
# Of what passes through to a replica, and from it.
PIECE_BYTES: Final = 64 * KIB


@asynccontextmanager
async def commands_served(node: Node, home: Path) -> AsyncIterator[None]:
    """Commands of this user go through the node meanwhile, unless another one of the home serves
    them already."""
    serving = asyncio.create_task(_serve(node, home))
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def _serve(node: Node, home: Path) -> None:
    try:
        while (lock := lock_file(home / LOCK)) is None:  # noqa: ASYNC110 - of another program
            await asyncio.sleep(LOOK_AGAIN_S)
    except OSError as error:
        log.warning("commands cannot go through this node: %s", error)
        return
    path = socket_of(home)
    try:
        listener = _listener(path)
        server = _Server(node, home)
        async with await asyncio.start_unix_server(server.answer, sock=listener):
            try:
                await asyncio.Event().wait()
            finally:
                path.unlink(missing_ok=True)
                await server.close()
    except OSError as error:
        log.warning("commands cannot go through this node: %s: %s", path, error)
    finally:
        unlock_file(lock)


def _listener(path: Path) -> socket.socket:
    """Its last owner is gone: we have the lock. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        with reachable(path) as name:
            listener.bind(name)
        path.chmod(0o600)
    except BaseException:
        listener.close()
        raise
    return listener


class _Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Bytes both ways, until the others have ended, or the command has left."""
        both = [
            asyncio.create_task(_copy(reader, self._writer)),
            asyncio.create_task(_copy(self._reader, writer)),
        ]
        try:
            # A command that has said all looks like one that has left, but for this.
            while not both[0].done() and not _has_hung_up(self._writer):
                await asyncio.wait(both[:1], timeout=LOOK_AGAIN_S)
        finally:
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def told(self, max_bytes: int, large: asyncio.Semaphore | None = None) -> dict[str, Any]:
        return await receive(self._reader, max_bytes, large)

    async def answer(self, message: dict[str, Any], *, within_s: float | None = EXCHANGE_S) -> None:
        self._writer.write(encoded(message))
        async with asyncio.timeout(within_s):
            await self._writer.drain()


def _has_hung_up(writer: asyncio.StreamWriter) -> bool:
    """Whether the other end is closed both ways."""
    poll = select.poll()
    poll.register(writer.get_extra_info("socket").fileno(), 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(PIECE_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


class _Server:
    def __init__(self, node: Node, home: Path) -> None:
        self._node = node
        self._home = home
        self._receiving = asyncio.Semaphore(MAX_RECEIVING)
        self._answering: set[asyncio.Task[Any]] = set()
        self._questions: dict[str, Callable[[dict[str, Any], _Client], Awaitable[object]]] = {
            "submit": self._submit,
            "put": self._put,
            "get": self._get,
            "workers": self._workers,
            "discover": self._discover,
            "neighbours": self._neighbours,
            "incompatible": self._incompatible,
            "troubles": self._troubles,
            "renew": self._renew,
            "offer_charter": self._offer_charter,
            "ping": self._ping,
            "rate": self._rate,
            "publish": self._publish,
            "services": self._read_services,
            "tend": self._tend,
            "put_secret": self._put_secret,
            "drop_secret": self._drop_secret,
        }

    async def close(self) -> None:
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            theirs = writer.get_extra_info("socket")
            if len(self._answering) < MAX_COMMANDS and is_beside_us(theirs):
                self._answering.add(task)
                await self._talk(_Client(reader, writer))
        except (EOFError, ConnectionError, TimeoutError, InvalidInput) as error:
            log.debug("a command has left, dawdles, or makes no sense: %r", error)
        finally:
            self._answering.discard(task)
            writer.close()

    async def _talk(self, client: _Client) -> None:
        async with asyncio.timeout(EXCHANGE_S):
            version = (await client.told(MAX_GREETING_BYTES)).get("formation")
            await client.answer({"formation": VERSION})
            if version != VERSION:
                return
            question = await client.told(MAX_FRAME_BYTES, self._receiving)
        asked = self._questions.get(str(question.get("ask")))
        try:
            if asked is None:
                raise InvalidInput("ask", f"one of {', '.join(self._questions)}")
            answer = await asked(question, client)
        except FormationError as error:
            await client.answer({"error": error_to_wire(error)})
        else:
            if answer is not None:
                await client.answer({"is": pack(answer)})

    async def _submit(self, question: dict[str, Any], client: _Client) -> None:
        labels: tuple[str, ...] = unpack_as(tuple[str, ...], question.get("labels"))
        plan = _plan_from(question.get("work"), labels)
        options = _options_from(question)
        await asyncio.to_thread(self._require, plan, options)
        job = await self._node.submit(plan, name=unpack(str, question.get("name")), options=options)
        cancelling = asyncio.create_task(_cancel_when_told(job, client))
        try:
            tasks = [[each.task_id, each.label] for each in job.tasks]
            sizes = [[each.kind, each.runs, each.memory_bytes] for each in job.sizes]
            await client.answer({"is": ["_Begun", job.job_id, tasks, sizes]})
            async for event in job.events():
                # A reader may take as long as it likes: the job keeps what is bounded for it.
                told = {"event": pack(event), "names": _names_in(event)}
                await client.answer(told, within_s=None)
        finally:
            cancelling.cancel()
            if not job.is_over:
                job.cancel()

    def _require(self, plan: Plan, options: TaskOptions) -> None:
        for driver in {task.work.driver for task in plan.tasks}:
            flags.require(self._home, Right.SUBMIT, driver=driver, priority=options.priority)

    async def _put(self, question: dict[str, Any], _: _Client) -> Blob:
        return await self._node.put(Path(unpack(str, question.get("path"))))

    async def _get(self, question: dict[str, Any], client: _Client) -> bool:
        blob, path = unpack(Blob, question.get("blob")), unpack(str, question.get("path"))
        latest = (0, 0)

        def progress(done: int, size: int) -> None:
            nonlocal latest
            latest = (done, size)

        getting = asyncio.create_task(self._node.get(blob, Path(path), progress=progress))
        try:
            while not (await asyncio.wait([getting], timeout=LOOK_AGAIN_S))[0]:
                await client.answer({"progress": list(latest)})
            await getting
        finally:
            getting.cancel()
        return True

    async def _workers(self, _: dict[str, Any], __: _Client) -> object:
        return await self._node.workers()

    async def _discover(self, question: dict[str, Any], _: _Client) -> object:
        options, name = _options_from(question), unpack(str, question.get("name"))
        return await self._node.discover(options.needs, name=name, options=options)

    async def _neighbours(self, _: dict[str, Any], __: _Client) -> int:
        return await self._node.neighbours()

    async def _renew(self, _: dict[str, Any], __: _Client) -> int:
        return await self._node.renew()

    async def _offer_charter(self, question: dict[str, Any], _: _Client) -> int:
        return await self._node.offer_charter(unpack(bytes, question.get("raw")))

    async def _ping(self, question: dict[str, Any], _: _Client) -> object:
        return await self._node.ping(unpack(str, question.get("peer")))

    async def _rate(self, question: dict[str, Any], _: _Client) -> object:
        return await self._node.measure_rate(unpack(str, question.get("peer")))

    async def _publish(self, question: dict[str, Any], _: _Client) -> object:
        spec = decode_spec(unpack(bytes, question.get("spec")))
        published = await self._node.publish(spec)
        return [published.stored, published.why]

    async def _read_services(self, _: dict[str, Any], __: _Client) -> object:
        found = await self._node.read_services()
        specs = [each.raw for each in found.catalog]
        return [specs, [each.raw for each in found.claims], list(found.unknown), found.heard]

    async def _put_secret(self, question: dict[str, Any], _: _Client) -> Blob:
        known: Blob | None = unpack_as(Blob | None, question.get("known"))
        content = unpack(bytes, question.get("content"))
        service = unpack(str, question.get("service"))
        return await self._node.put_secret(content, service=service, known=known)

    async def _drop_secret(self, question: dict[str, Any], _: _Client) -> bool:
        await self._node.drop_secret(unpack(Blob, question.get("secret")))
        return True

    async def _tend(self, question: dict[str, Any], client: _Client) -> None:
        to = None
        if (packed := question.get("to")) is not None:
            peer, addresses = unpack_as(tuple[str, tuple[str, ...]], packed)
            to = Contact(PeerId(peer), addresses)
        asked = tending.parse(unpack(bytes, question.get("question")))
        if not isinstance(asked, tending.ReadLog | tending.RunBeside):
            raise InvalidInput("question", "is none of a person's")
        reader, writer = await self._node.tend(to, asked)
        try:
            await client.answer({"is": True})
            await client.join(reader, writer)
        finally:
            writer.transport.abort()

    async def _troubles(self, _: dict[str, Any], __: _Client) -> object:
        return await self._node.troubles()

    async def _incompatible(self, _: dict[str, Any], __: _Client) -> object:
        return await self._node.incompatible()


def _names_in(event: JobEvent) -> dict[str, str]:
    """Of the peers that an event names for the first time."""
    match event:
        case TaskPlaced(worker=worker):
            peers: tuple[PeerId, ...] = (worker,)
        case TaskUnplaceable(reasons=reasons) | TaskDisagreed(reasons=reasons):
            peers = tuple(peer_id for peer_id, _ in reasons)
        case _:
            return {}
    return {peer_id: name for peer_id in peers if (name := name_of(peer_id)) is not None}


async def _cancel_when_told(job: JobHandle, client: _Client) -> None:
    """A command that has left wants its job no more."""
    with contextlib.suppress(EOFError, InvalidInput):
        await client.told(MAX_GREETING_BYTES)
    job.cancel()


def _plan_from(packed: object, labels: tuple[str, ...]) -> Plan:
    """Raises InvalidInput."""
    match packed:
        case ["Plan", *_]:
            return unpack(Plan, packed)
        case _:
            return plan_of(unpack_as(Work, packed), labels)


def _options_from(question: dict[str, Any]) -> TaskOptions:
    """Raises InvalidInput."""
    options = DEFAULT_OPTIONS
    match question.get("options"):
        case None:
            pass
        case [packed, env]:
            options = TaskOptions.unpack(packed, POLICIES)
            options = replace(options, env=unpack_as(Env | None, env))
        case _:
            raise InvalidInput("options", "they have no such form")
    written: Any = dict[str, bool | int | float | str | tuple[str, ...]]  # as flags are
    kwargs: dict[str, Any] = unpack_as(written, question.get("kwargs", {}))
    return options_of(kwargs, options)
