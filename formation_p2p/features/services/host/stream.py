"""One end of a stream of a service, and how it is joined to the socket of a program.

A program may leave its stream unread for as long as it likes, and may say nothing for as long:
see `MuxedStream.become_tunnel`. Each way ends by itself.
"""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB
from formation_p2p.features.services.core.messages import ServiceError
from formation_p2p.net.transport.errors import IOException, StreamEOF
from formation_p2p.net.tunnels import SMALL_BYTES, TunnelStream

# Which sockets have been closed entirely at their other end. A program that closes one and a
# program that has merely finished writing look the same to a reader: only a hang-up tells them
# apart. An event loop cannot wait for that alone, so that all sockets of a node are looked at
# together, by one call.
# Who leaves a request is to be noticed within a second.
LOOK_S: Final = 0.2


class HangUps:
    """Of one node. `run` it for as long as the node runs."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._gone: dict[int, trio.Event] = {}
        self._any = trio.Event()

    async def run(self) -> None:
        while True:
            await self._any.wait()
            while self._gone:
                for descriptor, _ in self._poll.poll(0):
                    self._forget(descriptor).set()
                await trio.sleep(LOOK_S)
            self._any = trio.Event()

    async def wait(self, end: socket.socket) -> None:
        """Until its other end is closed. It stays open here for so long."""
        descriptor, gone = end.fileno(), trio.Event()
        self._gone[descriptor] = gone
        self._poll.register(descriptor, 0)
        self._any.set()
        try:
            await gone.wait()
        finally:
            if self._gone.get(descriptor) is gone:
                self._forget(descriptor)

    def _forget(self, descriptor: int) -> trio.Event:
        self._poll.unregister(descriptor)
        return self._gone.pop(descriptor)


log = logging.getLogger(__name__)

# As much as a unix socket holds by default (net.core.wmem_default, socket(7)).
PIECE_BYTES: Final = 208 * KIB
# What a caller had said before it left is delivered, where that takes no longer.
LEFT_S: Final = 0.4


class ServiceStream:
    """One task may read and one may write at a time. Where it breaks, ServiceError is raised."""

    def __init__(self, stream: TunnelStream, service: str, replica: PeerId) -> None:
        self.stream = stream
        self.service = service
        self.replica = replica
        """The peer on which the replica runs."""

    async def read(self, n: int = PIECE_BYTES) -> bytes:
        """Up to `n` bytes, whatever is there; nothing where the other end has finished."""
        try:
            return await self.stream.read(n)
        except StreamEOF:
            return b""
        except IOException as error:
            raise self._broken(error) from error

    async def write(self, data: bytes) -> None:
        """All of it. Waits for as long as the other end does not read."""
        try:
            if len(data) > SMALL_BYTES or not self.stream.write_now(data):
                await self.stream.write(data)
        except IOException as error:
            raise self._broken(error) from error

    async def finish(self) -> None:
        """Nothing more is written. What the other end writes can still be read."""
        await self.stream.close()

    def abort(self, reason: str) -> None:
        """Both directions end at once, and the other end is told."""
        self.stream.abort(reason)

    def _broken(self, error: IOException) -> ServiceError:
        why = self.stream.broken or error
        return ServiceError(f"the stream to {self.service} has broken: {why}; ask again")


async def serve_program(stream: ServiceStream, end: socket.socket) -> None:
    """At the worker: until both ways have ended, or the caller has left; then `end` is closed,
    whereby its program is told. Raises ServiceError where the stream breaks."""
    with end:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_say, end, stream)
                await hear(stream, end)
        except* ServiceError as broken:
            raise _only(broken) from None


async def serve_caller(
    stream: ServiceStream,
    end: socket.socket,
    hang_ups: HangUps,
    answered: Callable[[float], None],
    left: trio.Event | None = None,
) -> None:
    """At the caller's: until both ways have ended, or the program at the other end of `end` has
    left; then the replica is told. `answered` is told how long each first byte took that follows
    what the caller says. Raises ServiceError where the stream breaks, unless `left` is set, by
    which the caller's own end of the stream is told from that. `end` is to be closed then, once its
    reader knows why."""
    left = trio.Event() if left is None else left
    asked_s: list[float] = []  # when the caller began to say what is not answered yet

    def said() -> None:
        if not asked_s:
            asked_s.append(trio.current_time())

    def heard() -> None:
        if asked_s:
            answered(trio.current_time() - asked_s.pop())

    async def watch(nursery: trio.Nursery) -> None:
        await hang_ups.wait(end)
        with trio.move_on_after(LEFT_S):
            await over.wait()
        left.set()
        stream.abort("the caller has left")
        nursery.cancel_scope.cancel()

    over = trio.Event()
    try:
        async with trio.open_nursery() as watching:
            watching.start_soon(watch, watching)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_say, end, stream, said)
                await hear(stream, end, heard)
            over.set()
            watching.cancel_scope.cancel()
    except* ServiceError as broken:
        if not left.is_set():  # else it has broken by this
            raise _only(broken) from None


def _only(group: BaseExceptionGroup[ServiceError]) -> ServiceError:
    """The first error of nested groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ServiceError), "it was split off by its type"
    return error


def _nothing() -> None:
    """Is told of bytes that are not timed."""


async def _say(
    end: socket.socket, stream: ServiceStream, said: Callable[[], None] = _nothing
) -> None:
    """What the program says, on the stream."""
    while data := await _receive(end):
        said()
        await stream.write(data)
    await stream.finish()


async def _receive(end: socket.socket) -> bytes:
    """Nothing at the end: of a program that was killed as well, whose socket may be reset."""
    while True:
        try:
            return end.recv(PIECE_BYTES)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(end.fileno())
        except OSError as error:
            log.debug("a program has gone: %s", error)
            return b""


async def hear(
    stream: ServiceStream, end: socket.socket, heard: Callable[[], None] = _nothing
) -> None:
    """What comes on the stream, to the program. What it does not want any more is read all the
    same: an answer that it gave before it closed must still arrive."""
    is_wanted = True
    while data := await stream.read(PIECE_BYTES):
        heard()
        is_wanted = is_wanted and await _sent(end, data)
    with suppress(OSError):
        end.shutdown(socket.SHUT_WR)


async def _sent(end: socket.socket, data: bytes) -> bool:
    view = memoryview(data)
    while view:
        try:
            view = view[end.send(view) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(end.fileno())
        except OSError as error:
            log.debug("a program has closed its end: %s", error)
            return False
    return True
