"""The folder in which the tasks of a gang's member reach the others: `FORMATION_GANG`.

- `connect`: a program connects, writes `<rank> <service>\\n` (`owner` is a rank too), and reads
  `ok\\n` or `error <why>\\n`; after the first it is the stream.
  Instead it may write `forward <port> <rank> <service>`: from then on that port of its 127.0.0.1
  leads there, until the lease ends. A service may be a port: `:8080`.
- `services/`: a program listens on a unix socket of its own there, which others reach by its name.

A task puts what it likes into `services/`. The node opens a name there without following a link,
takes it only if it is a socket, and connects to what it has opened, whatever lies there by then.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, Self

from formation_p2p.core.negotiation.tunnel import RESERVED
from formation_p2p.host.gang.programs import Programs
from formation_p2p.host.gang.seat import Tunnel
from formation_p2p.host.gang.splice import splice
from formation_p2p.host.machine.folders import remove_folder
from formation_p2p.host.machine.unix_socket import connected_to, reachable

CONNECT: Final = "connect"
SERVICES: Final = "services"
# Programs that wait in the kernel.
BACKLOG: Final = 128


class GangFolder:
    """`run` it until cancelled; then `close` it. `made` raises OSError."""

    def __init__(self, path: Path, services: int, listening: socket.socket) -> None:
        self.path = path
        self._services = services
        self._listening = listening

    @classmethod
    def made(cls, root: Path) -> Self:
        path = Path(tempfile.mkdtemp(prefix="gang-", dir=root))
        (path / SERVICES).mkdir(mode=0o700)
        # Opened before any task can put another in its place.
        services = os.open(path / SERVICES, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with reachable(path / CONNECT) as name:
                listening.bind(name)
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            os.close(services)
            raise
        return cls(path, services, listening)

    async def close(self) -> None:
        """`run` is over, and the tasks of the lease are dead."""
        os.close(self._services)
        await remove_folder(self.path)

    async def run(self, programs: Programs) -> None:
        """Serve the programs that connect. Afterwards they are refused."""
        with self._listening:
            await programs.run(self._listening)

    def find(self, service: str) -> Callable[[Tunnel], Awaitable[None]] | None:
        """A program that listens under this name. It is connected to already."""
        if service.startswith((RESERVED, ":")):
            return None
        end = connected_to(self._services, service)
        return None if end is None else partial(splice, end=end)
