"""A tunnel and a program's socket, joined: what one brings goes out at the other, both ways.

Each way ends by itself, as the programs end it. Where the tunnel breaks the socket is closed, with
nothing finished before: a program that has not ended its own way yet can tell by POLLHUP.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

from formation_p2p.core.units import KIB
from formation_p2p.features.gangs.host.seat import Tunnel
from formation_p2p.leases.core.tunnel import TunnelError
from formation_p2p.net.transport.pieces import rest_of

log = logging.getLogger(__name__)

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
