"""The owner's door to its gang: a unix socket in a folder of its own, as members have one.

Dask's client runs in an asyncio loop of its own, in the owner's process or another one: it reaches
the members through this socket, and a browser the dashboard through a port of this machine.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self

from formation_p2p.core.errors import FormationError
from formation_p2p.core.units import KIB
from formation_p2p.features.dask.comm import CONNECT, Place, owned, service_of
from formation_p2p.features.dask.plain import loads

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_READ_BYTES: Final = 256 * KIB
# A rank and a service.
_MAX_LINE_BYTES: Final = 512
# A caller says at once what it wants.
_ASKING_S: Final = 10.0
# For a service that is about to listen; Dask asks again.
_LISTEN_S: Final = 2.0


class Reaching(Protocol):
    """What a door needs of a gang."""

    gang_id: str

    async def connect(self, rank: int, service: str, *, wait_s: float) -> Pair: ...


class Door:
    """On the node's loop."""

    def __init__(self, gang: Reaching, dashboard_port: int, *, trust_results: bool) -> None:
        self._gang = gang
        self._loads = None if trust_results else loads
        self._dashboard = service_of(dashboard_port)
        # Only this user enters it.
        self._folder = tempfile.TemporaryDirectory(prefix="formation-dask-")
        self._servers: list[asyncio.Server] = []
        self._carried: set[asyncio.Task[None]] = set()
        self.port = 0

    async def open(self) -> Self:
        """Raises OSError."""
        path = Path(self._folder.name)
        carry, browse = self._task(self._carry), self._task(self._browse)
        self._servers = [
            await asyncio.start_unix_server(carry, path / CONNECT, limit=_READ_BYTES),
            # This machine's users alone, as with Dask's own cluster.
            await asyncio.start_server(browse, "127.0.0.1", 0, limit=_READ_BYTES),
        ]
        self.port = self._servers[1].sockets[0].getsockname()[1]
        owned[self._gang.gang_id] = Place(path, f"owner.{self._gang.gang_id}", self._loads)
        return self

    async def close(self) -> None:
        owned.pop(self._gang.gang_id, None)
        for server in self._servers:
            server.close()
        for task in self._carried:
            task.cancel()
        await asyncio.gather(*self._carried, return_exceptions=True)
        self._folder.cleanup()

    def _task(
        self, carry: Callable[[Pair], Coroutine[None, None, None]]
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(carry((reader, writer)))
            self._carried.add(task)
            task.add_done_callback(self._carried.discard)

        return accepted

    async def _carry(self, caller: Pair) -> None:
        reader, writer = caller
        try:
            line = (await asyncio.wait_for(reader.readuntil(b"\n"), _ASKING_S)).decode("ascii")
            rank, service = line.split()
            member = await self._gang.connect(int(rank), service, wait_s=_LISTEN_S)
        except (OSError, ValueError, EOFError, FormationError, TimeoutError) as error:
            with suppress(OSError):
                writer.write(f"error {str(error)[: _MAX_LINE_BYTES - 8]!r}\n".encode())
                await writer.drain()
            writer.close()
            return
        writer.write(b"ok\n")
        await _joined(caller, member)

    async def _browse(self, browser: Pair) -> None:
        try:
            member = await self._gang.connect(0, self._dashboard, wait_s=_LISTEN_S)
        except (OSError, FormationError):
            browser[1].close()
            return
        await _joined(browser, member)


async def _joined(here: Pair, there: Pair) -> None:
    """What comes from one goes to the other, until both have finished."""
    try:
        await asyncio.gather(_pumped(here[0], there[1]), _pumped(there[0], here[1]))
    finally:
        for _, writer in (here, there):
            writer.close()


async def _pumped(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(_READ_BYTES):
            sink.write(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()
    except (OSError, FormationError):
        # The other direction ends with it: a stream that has broken carries nothing.
        sink.close()
