"""The ports of a task, in the network of its sandbox: its supervisor, which is in there,
makes sockets for the node and hands them over.

A task that shares the machine's network has none: they would be the ports of all programs of the
machine, and those who may reach the task are strangers to those.
"""

from __future__ import annotations

import errno
import marshal
import os
import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import trio

from formation_p2p.drivers.supervisor import BEGIN, LISTEN, MAX_BEGIN_BYTES, REACH

# A supervisor looks up ten times a second at least; while no task runs it does not look.
ANSWER_S: Final = 5.0
# To reach a port of the same machine.
REACH_S: Final = 1.0
NO_PORTS: Final = (
    "no task with a network of its own runs here now; where it has no sandbox, or shares the "
    "machine's network, use services by name"
)


class PortUser(Protocol):
    """What is given the socket on which a supervisor is asked; returns what takes it away again."""

    def attach(self, channel: socket.socket) -> Callable[[], None]: ...


class TaskPorts:
    """Of one lease."""

    def __init__(self) -> None:
        self._channel: socket.socket | None = None
        self._turn = trio.Lock()
        self._number = 0

    def attach(self, channel: socket.socket) -> Callable[[], None]:
        """It does not block."""
        self._channel = channel

        def detach() -> None:
            if channel.fileno() >= 0:
                trio.lowlevel.notify_closing(channel.fileno())
            if self._channel is channel:
                self._channel = None

        return detach

    async def reached(self, port: int) -> socket.socket | str:
        """Connected to it; or why not."""
        nothing = f"no program of its task listens on 127.0.0.1:{port}"
        try:
            made = await self._made(REACH, port)
        except OSError as error:
            return nothing if error.errno == errno.ECONNREFUSED else error.strerror or nothing
        try:
            with trio.move_on_after(REACH_S):
                await trio.lowlevel.wait_writable(made.fileno())
                if not made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    return made
        except BaseException:
            made.close()
            raise
        made.close()
        return nothing

    async def listening(self, port: int) -> socket.socket:
        """On 127.0.0.1. Raises OSError."""
        return await self._made(LISTEN, port)

    async def begin(self, argv: Sequence[str], fds: Sequence[int]) -> None:
        """Run a program where the task runs: with its input, its output, its errors, and a socket
        that is told its exit code. Raises OSError."""
        words = marshal.dumps(list(argv))
        if len(words) + 2 > MAX_BEGIN_BYTES:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        await self._asked(BEGIN, words, fds)

    async def _made(self, kind: bytes, port: int) -> socket.socket:
        problem, made = await self._asked(kind, port.to_bytes(2))
        if made is None:
            raise OSError(problem, os.strerror(problem))
        return made

    async def _asked(
        self, kind: bytes, what: bytes, fds: Sequence[int] = ()
    ) -> tuple[int, socket.socket | None]:
        async with self._turn:
            channel = self._channel
            if channel is None:
                raise OSError(errno.ENETDOWN, NO_PORTS)
            self._number = (self._number + 1) % 256
            try:
                # To its end: requests that are given up would pile up there.
                with trio.CancelScope(shield=True), trio.fail_after(ANSWER_S):
                    number = bytes([self._number])
                    if fds:
                        socket.send_fds(channel, [kind + number + what], list(fds))
                    else:
                        channel.send(kind + what + number)
                    return await self._answer(channel)
            except (trio.TooSlowError, trio.ClosedResourceError) as error:
                raise OSError(errno.ETIMEDOUT, "the task does not run any more") from error

    async def _answer(self, channel: socket.socket) -> tuple[int, socket.socket | None]:
        """To the latest request: earlier ones may have come too late."""
        while True:
            await trio.lowlevel.wait_readable(channel.fileno())
            said, fds, _, _ = socket.recv_fds(channel, 2, 1)
            made = socket.socket(fileno=fds[0]) if fds else None
            if made is not None:
                made.set_inheritable(False)
            if len(said) != 2:
                raise OSError(errno.EPIPE, "its supervisor has ended")
            if said[1] == self._number:
                if made is not None:
                    made.setblocking(False)
                return said[0], made
            if made is not None:
                made.close()
