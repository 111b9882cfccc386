"""The programs of a lease that connect to `connect` in its folder (folder.py): led to other members
at once, or from a port of theirs."""

from __future__ import annotations

import errno
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from formation_p2p.core.errors import FormationError
from formation_p2p.core.units import KIB
from formation_p2p.features.gangs.core.roster import OWNER
from formation_p2p.features.gangs.core.tunnel import MAX_PORT, TunnelError, is_service
from formation_p2p.features.gangs.host.seat import Tunnel, name_of
from formation_p2p.net.logged import logged
from formation_p2p.net.transport.tcp import rest_of

# A tunnel and a program's socket, joined: what one brings goes out at the other, both ways.
#
# Each way ends by itself, as the programs end it. Where the tunnel breaks the socket is closed,
# with nothing finished before: a program that has not ended its own way yet can tell by POLLHUP.

# As much as a unix socket holds by default (net.core.wmem_default, socket(7)).
PIECE_BYTES: Final = 208 * KIB


def _untold(broken: TunnelError) -> None:
    log.debug("a stream of a task ends: %s", broken)


async def splice(
    tunnel: Tunnel,
    end: socket.socket,
    first: bytes = b"",
    on_broken: Callable[[TunnelError], None] = _untold,
) -> None:
    """Until both ways have ended, or either side is gone; then `end` is closed. It is one that does
    not block. `first` is what the program has said before. `on_broken` is told, before `end` is
    closed, where it is the tunnel that ends."""
    with end:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_from_program, tunnel, end, first)
                await _to_program(tunnel, end)
        except* TunnelError as broken:
            first_of = broken.exceptions[0]
            assert isinstance(first_of, TunnelError), "the nursery has one level"
            on_broken(first_of)
        except* OSError as gone:
            log.debug("a program has closed its end: %s", gone.exceptions[0])
            tunnel.abort("the program there has closed its end")


async def _from_program(tunnel: Tunnel, end: socket.socket, first: bytes) -> None:
    data = first or await _receive(end)
    while data:
        await tunnel.write(data)
        data = await _receive(end)
    await tunnel.finish()


async def _receive(end: socket.socket) -> bytes:
    while True:
        try:
            return end.recv(PIECE_BYTES)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(end.fileno())


async def _to_program(tunnel: Tunnel, end: socket.socket) -> None:
    while pieces := await tunnel.read_pieces(PIECE_BYTES):
        left: list[bytes | memoryview] = [*pieces]
        while left:
            try:
                left = rest_of(left, end.sendmsg(left))
            except BlockingIOError:
                await trio.lowlevel.wait_writable(end.fileno())
    with suppress(OSError):  # the program has closed it, having heard enough
        end.shutdown(socket.SHUT_WR)


log = logging.getLogger(__name__)

OWNER_WORD: Final = "owner"
# That are being connected, by `connect` or by a port, each with a descriptor; others wait in the
# kernel.
MAX_CONNECTING: Final = 128
# Ports of a task that lead to others.
MAX_FORWARDS: Final = 64
# The longest has the name of a service, two numbers and a word.
MAX_LINE_BYTES: Final = 128
# To write it.
LINE_S: Final = 20.0
# Of an answer, with its end.
MAX_ANSWER_BYTES: Final = KIB
# Between two looks whether a descriptor is free.
LOOK_S: Final = 0.2

_RIGHT: Final = "write a rank, a space, the name of a service and a newline"
_RESET: Final = struct.pack("ii", 1, 0)

Open = Callable[[int, str], Awaitable[Tunnel]]
Listen = Callable[[int], Awaitable[socket.socket]]


@dataclass(eq=False, slots=True)
class _Forward:
    """Of a port, until `scope` is cancelled."""

    rank: int
    service: str
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


@dataclass(eq=False)
class Programs:
    """`open_tunnel` leads to a member, `listen` has a port of the task's listened on, and raises
    OSError."""

    open_tunnel: Open
    listen: Listen

    def __post_init__(self) -> None:
        self._forwards: dict[int, _Forward] = {}
        self._places = trio.Semaphore(MAX_CONNECTING)
        self._nursery: trio.Nursery

    async def run(self, listening: socket.socket) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await self._accept(listening, self._serve)

    async def _accept(
        self,
        listening: socket.socket,
        serve: Callable[[socket.socket], Awaitable[None]],
    ) -> None:
        while True:
            end = await _next_program(listening)
            try:
                await self._places.acquire()
            except BaseException:
                end.close()
                raise
            self._nursery.start_soon(logged, partial(serve, end))

    async def _serve(self, end: socket.socket) -> None:
        with end:
            try:
                line, rest = await _line(end)
                tunnel = await self._asked(line)
            except (FormationError, trio.TooSlowError, OSError, ValueError) as error:
                _say(end, f"error {error or 'no line came in time'}")
                return
            finally:
                self._places.release()
            took_it = _say(end, "ok")
            if tunnel is None:
                return
            if took_it:
                await splice(tunnel, end, rest)
            else:
                tunnel.abort("the program there has closed its end")

    async def _asked(self, line: str) -> Tunnel | None:
        """Raises TunnelError, InvalidInput, OSError, and ValueError that says what is right."""
        match line.split(" "):
            case [rank, service]:
                return await self.open_tunnel(_rank(rank), service)
            case ["forward", port, rank, service] if port.isdecimal() and is_service(service):
                await self._forward(int(port), _rank(rank), service)
                return None
        raise ValueError(_RIGHT)

    async def _forward(self, port: int, rank: int, service: str) -> None:
        if not 0 < port <= MAX_PORT:
            raise ValueError(f"{port} is not a port")
        before = self._forwards.get(port)
        if before is None and len(self._forwards) >= MAX_FORWARDS:
            raise ValueError(f"{MAX_FORWARDS} ports lead to others already; use one of these")
        try:
            listening = await self.listen(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            if before is None:
                raise ValueError(f"a program listens on port {port} here; choose another") from None
            if (before.rank, before.service) != (rank, service):
                there = f"{before.service} of {name_of(before.rank)}"
                raise ValueError(
                    f"port {port} leads to {there} until the lease ends; choose another"
                ) from None
            return  # by a task before
        if before is not None:
            before.scope.cancel()  # it was in the network of a task that has ended
        forward = self._forwards[port] = _Forward(rank, service)
        self._nursery.start_soon(logged, partial(self._lead, listening, forward))

    async def _lead(self, listening: socket.socket, forward: _Forward) -> None:
        rank, service = forward.rank, forward.service

        async def led(end: socket.socket) -> None:
            with end:
                try:
                    tunnel = await self.open_tunnel(rank, service)
                except FormationError as error:
                    log.debug("a connection of a task leads nowhere: %s", error)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    return
                finally:
                    self._places.release()
                await splice(tunnel, end)

        with listening, forward.scope:
            await self._accept(listening, led)


async def _next_program(listening: socket.socket) -> socket.socket:
    while True:
        try:
            end, _ = listening.accept()
        except BlockingIOError:
            await trio.lowlevel.wait_readable(listening.fileno())
        except OSError:
            await trio.sleep(LOOK_S)  # no descriptor is free: one will be
        else:
            end.setblocking(False)
            return end


async def _line(end: socket.socket) -> tuple[str, bytes]:
    """The first line, and what came with it. Raises TooSlowError, OSError, ValueError."""
    said = bytearray()
    with trio.fail_after(LINE_S):
        while b"\n" not in said:
            try:
                data = end.recv(4 * KIB)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(end.fileno())
                continue
            said += data
            if not data or len(said.partition(b"\n")[0]) > MAX_LINE_BYTES:
                raise ValueError(_RIGHT)
    line, _, rest = said.partition(b"\n")
    return line.decode("ascii", errors="replace"), bytes(rest)


def _rank(word: str) -> int:
    """Raises ValueError, which says what is right."""
    if word == OWNER_WORD:
        return OWNER
    if not word.isdecimal() or len(word) > 3:
        raise ValueError(_RIGHT)
    return int(word)


def _say(end: socket.socket, line: str) -> bool:
    """Whether the program took it: its socket is empty yet."""
    said = line.replace("\n", " ").encode(errors="replace")[: MAX_ANSWER_BYTES - 1] + b"\n"
    with suppress(OSError):
        return end.send(said) == len(said)
    return False
