"""Streams of a gang's owner: to services of its members, and from ports of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from functools import partial
from typing import TYPE_CHECKING, Final

from formation_p2p.api.breaking import Breaking
from formation_p2p.core.errors import FormationError, InvalidInput, LocalError
from formation_p2p.core.units import KIB
from formation_p2p.features.gangs.host.splice import splice
from formation_p2p.features.gangs.host.tunnels import WAIT_S
from formation_p2p.leases.core.tunnel import OWNER, TunnelError
from formation_p2p.net.logged import logged

if TYPE_CHECKING:
    from formation_p2p.api.bridge import Bridge
    from formation_p2p.peer.shell import Shell

log = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
# A program that has connected waits in the kernel until the member's port is reached.
BACKLOG: Final = 128
COPY_BYTES: Final = 256 * KIB
# That have connected to ports and are not connected to members yet, each with a descriptor.
MAX_CONNECTING: Final = 256


class OwnerStreams:
    """Of one gang. For the loop; `close` it with the gang."""

    def __init__(self, bridge: Bridge, gang_id: str) -> None:
        self._bridge = bridge
        self._gang_id = gang_id
        self._servers: list[asyncio.Server] = []
        self._connecting = 0

    async def connect(
        self, rank: int, service: str, wait_s: float = WAIT_S
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises TunnelError, InvalidInput, NodeClosed."""
        breaking = Breaking()

        def broken(error: TunnelError) -> None:  # on the node's thread
            self._bridge.on_loop(partial(breaking.told, error))

        async def opened(shell: Shell) -> socket.socket:
            """Where the caller is gone by then its end is closed, and with it the tunnel."""
            tunnel = await shell.gangs.tunnels.open(
                self._gang_id, OWNER, rank, service, wait_s=wait_s
            )
            try:
                here, its = socket.socketpair()
            except OSError as error:
                tunnel.abort("there is no descriptor for it")
                raise LocalError(f"no stream: {error}; raise the limit `ulimit -n`") from error
            here.setblocking(False)
            its.setblocking(False)
            shell.do(logged, partial(splice, tunnel, its, b"", broken))
            return here

        here = await self._bridge.perform(opened)
        try:
            reader, writer = await asyncio.open_unix_connection(sock=here)
        except BaseException:
            here.close()
            raise
        breaking.follow(reader)
        return reader, writer

    async def forward(self, rank: int, to: str, port: int) -> int:
        """A port of this machine's loopback interface that leads there; which one it is. Raises
        InvalidInput where it is taken."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                if self._connecting >= MAX_CONNECTING:
                    raise TunnelError(f"{MAX_CONNECTING} others wait to be connected; try later")
                self._connecting += 1
                try:
                    there, out = await self.connect(rank, to)
                finally:
                    self._connecting -= 1
            except FormationError as error:
                log.warning("a connection to %s of member %d is closed: %s", to, rank, error)
                writer.transport.abort()
                return
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, out))
                    both.create_task(_copy(there, writer))
            except* (OSError, TunnelError) as ended:
                log.debug("a connection to %s of member %d ends: %s", to, rank, ended.exceptions)
                writer.transport.abort()  # its program is told by a reset
            finally:
                out.transport.abort()
                writer.close()

        try:
            server = await asyncio.start_server(connected, LOOPBACK, port, backlog=BACKLOG)
        except OSError as error:
            problem = f"{port} cannot be listened on: {error.strerror}; choose another, or 0"
            raise InvalidInput("port", problem) from error
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    def close(self) -> None:
        """Ports are free again. Streams end with the gang's leases."""
        for server in self._servers:
            server.close()
        self._servers.clear()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(COPY_BYTES):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
