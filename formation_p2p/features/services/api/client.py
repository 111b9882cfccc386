"""A service, as a program calls it: HTTP requests, and plain streams.

async with node.service("llm-inference") as llm:
    answer = await llm.post("/v1/completions", json={"prompt": "Why?"})
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Self

import trio

from formation_p2p.api.bridge import Breaking
from formation_p2p.core.errors import FormationError, InvalidInput, LocalError, NodeClosed, lacks
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB
from formation_p2p.features.services.core.messages import ServiceError
from formation_p2p.features.services.core.spec import check_service_name
from formation_p2p.features.services.host.router import joined
from formation_p2p.machine.descriptors import raise_descriptor_limit
from formation_p2p.net.logged import logged

if TYPE_CHECKING:
    import httpx2

    from formation_p2p.api.bridge import Bridge
    from formation_p2p.peer.shell import Shell

log = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
# A program that has connected to a port waits in the kernel until a replica has taken its stream.
BACKLOG: Final = 1024
COPY_BYTES: Final = 256 * KIB
_NUMBERS: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ServiceConnection:
    """A stream to a replica. To close `writer` has the replica cancel what it does for it, within a
    second; `writer.write_eof()` ends the one way alone. Where the stream breaks, `reader` raises
    ServiceError."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    replica: PeerId
    """The peer on which it runs."""
    leave: Callable[[], None] = lambda: None
    """Tells the replica at once that `writer` is closed, and not once all has arrived."""

    def abort(self) -> None:
        """End both ways at once."""
        self.writer.transport.abort()


class ServiceClient:
    """Made by `Node.service`. Use it in an `async with` block, or `close` it.

    HTTP requests need the extra `services`: what they take, and return, is httpx2's. Each goes to
    the replica that has the least to do among the nearest; one that no replica has begun is sent
    again, to another one. A replica that has begun is never asked twice, but for methods that do no
    harm twice, such as GET.
    """

    def __init__(self, bridge: Bridge, name: str, *, within_s: float, sticky: bool) -> None:
        check_service_name("service", name)
        self.name = name
        self.within_s = within_s
        self._bridge = bridge
        self._is_sticky = sticky
        self._last: PeerId | None = None
        self._caller = f"client {next(_NUMBERS)}"
        self._http: httpx2.AsyncClient | None = None
        self._servers: list[asyncio.Server] = []
        self._copying: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Its ports are free again, and what is under way by them or over HTTP ends. Streams that
        `connect` gave live on."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for task in self._copying:
            task.cancel()
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    # -- HTTP -------------------------------------------------------------------------------------

    @property
    def http(self) -> httpx2.AsyncClient:
        """An `httpx2.AsyncClient` whose requests go to the service. It waits for an answer as long
        as that takes. Raises ImportError without the extra `services`."""
        if self._http is None:
            self._http = _over_http().client_of(self)
        return self._http

    async def request(self, method: str, path: str, /, **kwargs: Any) -> httpx2.Response:
        """As `httpx2.AsyncClient.request`. Raises ServiceError where no replica takes it in
        time, or the replica that took it breaks; ImportError without the extra `services`."""
        return await self.http.request(method, path, **kwargs)

    async def get(self, path: str, /, **kwargs: Any) -> httpx2.Response:
        """See `request`."""
        return await self.request("GET", path, **kwargs)

    async def post(self, path: str, /, **kwargs: Any) -> httpx2.Response:
        """See `request`."""
        return await self.request("POST", path, **kwargs)

    async def put(self, path: str, /, **kwargs: Any) -> httpx2.Response:
        """See `request`."""
        return await self.request("PUT", path, **kwargs)

    async def delete(self, path: str, /, **kwargs: Any) -> httpx2.Response:
        """See `request`."""
        return await self.request("DELETE", path, **kwargs)

    def stream(
        self, method: str, path: str, /, **kwargs: Any
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        """As `httpx2.AsyncClient.stream`: `async for line in response.aiter_lines()` reads the
        answer as it comes. To leave the block before its end has the replica cancel it."""
        return self.http.stream(method, path, **kwargs)

    # -- streams ----------------------------------------------------------------------------------

    async def connect(
        self,
        *,
        within_s: float | None = None,
        sticky: PeerId | None = None,
        caller: str | None = None,
        on_behalf: bytes = b"",
        full: Callable[[], None] = lambda: None,
    ) -> ServiceConnection:
        """A stream to a replica, for whatever its program speaks: to that on the peer `sticky` if
        it takes one more. Waits `within_s` for one. A program that asks for several callers names
        them by `caller`: they take turns, as clients do. One that asks for another member says so
        with the grant of that, `on_behalf`. `full` is called on the loop as often as no replica
        has a place for it. Raises ServiceError: nothing was sent."""
        breaking = Breaking()
        end, replica, leave = await self._socket(
            breaking, within_s, sticky, caller, on_behalf, partial(self._bridge.on_loop, full)
        )
        end.setblocking(False)
        try:
            reader, writer = await asyncio.open_unix_connection(sock=end)
        except BaseException:
            end.close()
            raise
        breaking.follow(reader)
        return ServiceConnection(reader, writer, replica, partial(self._call, leave))

    async def connect_socket(self, within_s: float | None = None) -> socket.socket:
        """As `connect`: a socket that blocks, whose end does not tell a clean end from another."""
        end, _, _ = await self._socket(Breaking(), within_s)
        end.setblocking(True)
        return end

    async def forward(self, port: int = 0) -> int:
        """A port of this machine's loopback interface that leads to the service, for programs that
        know of no node; which one it is. Raises InvalidInput where it is taken."""
        try:
            server = await asyncio.start_server(self._served, LOOPBACK, port, backlog=BACKLOG)
        except OSError as error:
            problem = f"{port} cannot be listened on: {error.strerror}; choose another, or 0"
            raise InvalidInput("port", problem) from error
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    def failed(self, replica: PeerId) -> None:
        """Say that the replica answered with an error of its own, such as the status 500: it is
        left out for a while where that goes on."""
        self._call(lambda shell: shell.features.services.router.failed(self.name, replica))

    def _call(self, do: Callable[[Shell], None]) -> None:
        with contextlib.suppress(NodeClosed):
            self._bridge.call(do)

    async def _socket(
        self,
        breaking: Breaking,
        within_s: float | None,
        sticky: PeerId | None = None,
        caller: str | None = None,
        on_behalf: bytes = b"",
        full: Callable[[], None] = lambda: None,
    ) -> tuple[socket.socket, PeerId, Callable[[Shell], None]]:
        """One end of a pair of sockets, whose other end is joined to a stream; and what has it end
        at once, on the node's thread."""
        wait_s = self.within_s if within_s is None else within_s
        wanted = sticky or (self._last if self._is_sticky else None)
        whose = self._caller if caller is None else caller

        def broken(error: ServiceError) -> None:  # on the node's thread
            self._bridge.on_loop(partial(breaking.told, error))

        async def opened(shell: Shell) -> tuple[socket.socket, PeerId, Callable[[Shell], None]]:
            """Where the caller is gone by then its end is closed, and with it the stream."""
            router = shell.features.services.router
            asked = partial(router.open, self.name, within_s=wait_s, sticky=wanted)
            stream = await asked(caller=whose, on_behalf=on_behalf, full=full)
            try:
                here, its = _socket_pair()
            except OSError as error:
                stream.abort("there is no descriptor for it")
                router.ended(stream)
                raise LocalError(f"no stream: {error}; raise the limit `ulimit -n`") from error
            its.setblocking(False)
            left = trio.Event()
            shell.do(logged, partial(joined, router, stream, its, broken, left))

            def leave(shell: Shell) -> None:
                left.set()
                stream.abort("the caller has left")

            return here, stream.replica, leave

        end, replica, leave = await self._bridge.perform(opened)
        self._last = replica
        return end, replica, leave

    async def _served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As `_copied`. asyncio of Python 3.11 reports a connection whose task was cancelled as a
        fault: `close` ends those that are under way."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._copied(reader, writer)

    async def _copied(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One program that has connected to a port."""
        task = asyncio.current_task()
        assert task is not None, "asyncio starts one for each"
        self._copying.add(task)
        try:
            there = await self.connect()
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, there.writer))
                    both.create_task(_copy(there.reader, writer))
            finally:
                there.abort()
        except* (OSError, FormationError) as ended:
            log.debug("a connection to %s ends: %s", self.name, ended.exceptions)
            writer.transport.abort()  # its program is told by a reset
        finally:
            writer.close()
            self._copying.discard(task)


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Raises OSError."""
    try:
        return socket.socketpair()
    except OSError:
        raise_descriptor_limit()  # hundreds of requests take more than a process begins with
        return socket.socketpair()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(COPY_BYTES):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


def _over_http() -> Any:
    try:
        return import_module("formation_p2p.features.services.api.http")
    except ImportError as error:
        raise lacks("HTTP to services", str(error.name), "services") from error
