"""Sockets of the abstract namespace (unix(7)) between processes of one user on one machine.

What goes over them are messages, and descriptors of files with them. Any process may take the name
of such a socket: who is at the other end it proves by what it says. For the trio thread.
"""

from __future__ import annotations

import array
import logging
import os
import socket as sockets
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from formation_p2p.machine.unix_socket import is_beside_us

log = logging.getLogger(__name__)

_DESCRIPTOR_BYTES: Final = array.array("i").itemsize


class SameUserListener:
    """Takes so many connections at once of other processes of this user that are no tasks."""

    def __init__(self, address: str, most: int) -> None:
        self._address = address
        self._most = most
        self.connected = 0

    async def serve(
        self, talk: Callable[[sockets.socket], Awaitable[None]], otherwise: str
    ) -> None:
        """Until cancelled: `talk`, with each connection, which is closed then. Where the socket
        cannot be had, nothing is served, and the log says what happens `otherwise`."""
        bound = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
        try:
            bound.bind(self._address)
            bound.listen(self._most)
        except OSError as error:
            bound.close()
            log.warning("%s: %s", otherwise, error)
            return
        with trio.socket.from_stdlib_socket(bound) as listener:
            async with trio.open_nursery() as nursery:
                while True:
                    accepted, _ = await listener.accept()
                    connection = sockets.socket(fileno=accepted.detach())
                    connection.setblocking(False)
                    if self.connected >= self._most or not is_beside_us(connection):
                        connection.close()
                        continue
                    self.connected += 1
                    nursery.start_soon(self._serve, talk, connection)

    async def _serve(
        self, talk: Callable[[sockets.socket], Awaitable[None]], connection: sockets.socket
    ) -> None:
        try:
            with connection:
                await talk(connection)
        finally:
            self.connected -= 1


def connected_to(address: str) -> sockets.socket | None:
    """None where the process that has this name is another user's, or a task's. Raises OSError."""
    connection = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
    try:
        connection.setblocking(False)
        connection.connect(address)
        if is_beside_us(connection):
            return connection
    except BaseException:  # a descriptor is not left open, whatever ends this
        connection.close()
        raise
    connection.close()
    return None


async def received(connection: sockets.socket, most: int) -> bytes:
    """The next message; empty at the end. Raises OSError."""
    while True:
        try:
            return connection.recv(most)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(connection.fileno())


def send_with_file(connection: sockets.socket, message: bytes, file: int) -> None:
    """Raises OSError, also where the other end does not take it now."""
    files = array.array("i", [file]).tobytes()
    connection.sendmsg([message], [(sockets.SOL_SOCKET, sockets.SCM_RIGHTS, files)])


async def received_with_file(connection: sockets.socket, most: int) -> tuple[bytes, int | None]:
    """The next message, and the descriptor that came along, which is the caller's to close. Raises
    OSError, also where more than one came."""
    space = sockets.CMSG_SPACE(_DESCRIPTOR_BYTES)
    while True:
        try:
            message, ancillary, _, _ = connection.recvmsg(most, space, sockets.MSG_CMSG_CLOEXEC)
            break
        except BlockingIOError:
            await trio.lowlevel.wait_readable(connection.fileno())
    files = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (sockets.SOL_SOCKET, sockets.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % _DESCRIPTOR_BYTES])
    if len(files) > 1:
        for file in files:
            os.close(file)
        raise OSError("more than one descriptor came")
    return message, files[0] if files else None
