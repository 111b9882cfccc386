"""The methods by which the commands of this user go through a running node. They are entered into
the table of the node's socket (rpc/node_socket.py), and answered on the loop of the node's
program."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from formation_p2p.command import flags
from formation_p2p.command.assembly import local_methods
from formation_p2p.command.local.client import receive
from formation_p2p.core.errors import FormationError, InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.job_events import JobEvent, TaskDisagreed, TaskPlaced, TaskUnplaceable
from formation_p2p.machine.file_lock import lock_file, unlock_file
from formation_p2p.machine.names import name_of
from formation_p2p.placement.core.task_options import DEFAULT_OPTIONS, TaskOptions
from formation_p2p.placement.policies import POLICIES, options_of
from formation_p2p.rpc.values import arguments_of, pack, unpack, unpack_as
from formation_p2p.rpc.wire import (
    EXCHANGE_S,
    MAX_FRAME_BYTES,
    MAX_GREETING_BYTES,
    Message,
    encoded,
    error_to_wire,
    socket_of,
)
from formation_p2p.trust.core.grants import Right
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.environment import Env
from formation_p2p.workload.core.plan import Plan, plan_of
from formation_p2p.workload.core.work import Work

if TYPE_CHECKING:
    from formation_p2p.api.job import JobHandle
    from formation_p2p.api.node import Node

log = logging.getLogger(__name__)

LOCK: Final = "control.lock"
# Commands at once: a person's scripts. Each may hold one question, and what the node keeps of a
# job's output for a slow reader (api/job.py).
MAX_COMMANDS: Final = 64
# Large questions that are being received: what unfinished ones may hold is this often a frame.
MAX_RECEIVING: Final = 4
# A further node of the home takes over within this when the one that served has ended.
LOOK_AGAIN_S: Final = 1.0


@asynccontextmanager
async def commands_served(node: Node, home: Path) -> AsyncIterator[None]:
    """Commands of this user go through the node meanwhile, unless another one of the home serves
    them already."""
    own = node._services.observability.socket
    methods = Methods(node, home)
    own.enter(by_name := methods.by_name())
    named = asyncio.create_task(_named(own.path, home))
    try:
        yield
    finally:
        own.remove(by_name)
        named.cancel()
        await asyncio.gather(named, return_exceptions=True)
        await methods.close()


async def _named(own: Path, home: Path) -> None:
    """The node's socket has the name by which commands find it, once no other node's has."""
    try:
        while (lock := lock_file(home / LOCK)) is None:  # noqa: ASYNC110 - of another program
            await asyncio.sleep(LOOK_AGAIN_S)
    except OSError as error:
        log.warning("commands cannot go through this node: %s", error)
        return
    path = socket_of(home)
    try:
        path.unlink(missing_ok=True)
        path.symlink_to(own.name)
        try:
            await asyncio.Event().wait()
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("commands cannot go through this node: %s: %s", path, error)
    finally:
        unlock_file(lock)


class Client:
    """A command that has asked."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def told(self, max_bytes: int, large: asyncio.Semaphore | None = None) -> Message:
        return await receive(self.reader, max_bytes, large)

    async def answer(self, message: Message, *, within_s: float | None = EXCHANGE_S) -> None:
        self.writer.write(encoded(message))
        async with asyncio.timeout(within_s):
            await self.writer.drain()


class Methods:
    """Each takes what its parameters declare. What those of `answers` return is packed for the
    command; those of `talks` are given the client as well, and answer it themselves."""

    def __init__(self, node: Node, home: Path) -> None:
        self._node = node
        self._home = home
        self._loop = asyncio.get_running_loop()
        self._receiving = asyncio.Semaphore(MAX_RECEIVING)
        self._answering: set[asyncio.Task[Any]] = set()
        self.talks: dict[str, Callable[..., Awaitable[None]]] = {
            "submit": self._submit,
            "get": self._get,
        }
        self.answers: dict[str, Callable[..., Awaitable[object]]] = {
            "put": self._put,
            "discover": self._discover,
            "workers": node.workers,
            "neighbours": node.neighbours,
            "incompatible": node.incompatible,
            "troubles": node.troubles,
            "renew": node.renew,
            "offer_charter": node.offer_charter,
            "ping": node.ping,
            "measure_rate": node.measure_rate,
        }
        for enter in local_methods():
            enter(self, node)

    def by_name(self) -> dict[str, Callable[[socket.socket], None]]:
        """For the node's thread."""
        return {name: partial(self._take_over, name) for name in (*self.talks, *self.answers)}

    def _take_over(self, name: str, connection: socket.socket) -> None:
        try:
            self._loop.call_soon_threadsafe(self._begin, name, connection)
        except RuntimeError:  # the program ends
            connection.close()

    def _begin(self, name: str, connection: socket.socket) -> None:
        if len(self._answering) < MAX_COMMANDS:
            task = asyncio.create_task(self._answer(name, connection))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        else:
            connection.close()

    async def close(self) -> None:
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    async def _answer(self, name: str, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            await self._talk(name, Client(reader, writer))
        except (EOFError, ConnectionError, TimeoutError, InvalidInput) as error:
            log.debug("a command has left, dawdles, or makes no sense: %r", error)
        finally:
            writer.close()

    async def _talk(self, name: str, client: Client) -> None:
        async with asyncio.timeout(EXCHANGE_S):
            question = await client.told(MAX_FRAME_BYTES, self._receiving)
        try:
            if (talk := self.talks.get(name)) is not None:
                await talk(client, **arguments_of(talk, question, given=1))
            else:
                method = self.answers[name]
                answer = await method(**arguments_of(method, question))
                await client.answer({"is": pack(answer)})
        except FormationError as error:
            await client.answer({"error": error_to_wire(error)})

    async def _submit(
        self,
        client: Client,
        work: Any,
        name: str,
        labels: tuple[str, ...],
        options: Any,
        kwargs: dict[str, bool | int | float | str | tuple[str, ...]],  # as flags are
    ) -> None:
        plan, chosen = _plan_from(work, labels), options_of(kwargs, _options_from(options))
        await asyncio.to_thread(self._require, plan, chosen)
        job = await self._node.submit(plan, name=name, options=chosen)
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

    async def _put(self, path: Path) -> Blob:
        return await self._node.put(path)

    async def _get(self, client: Client, blob: Blob, path: Path) -> None:
        latest = (0, 0)

        def progress(done: int, size: int) -> None:
            nonlocal latest
            latest = (done, size)

        getting = asyncio.create_task(self._node.get(blob, path, progress=progress))
        try:
            while not (await asyncio.wait([getting], timeout=LOOK_AGAIN_S))[0]:
                await client.answer({"progress": list(latest)})
            await getting
        finally:
            getting.cancel()
        await client.answer({"is": True})

    async def _discover(self, name: str, options: Any) -> object:
        chosen = _options_from(options)
        return await self._node.discover(chosen.needs, name=name, options=chosen)


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


async def _cancel_when_told(job: JobHandle, client: Client) -> None:
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


def _options_from(packed: object) -> TaskOptions:
    """Raises InvalidInput."""
    match packed:
        case None:
            return DEFAULT_OPTIONS
        case [options, env]:
            env = unpack_as(Env | None, env)
            return replace(TaskOptions.unpack(options, POLICIES), env=env)
        case _:
            raise InvalidInput("options", "they have no such form")
