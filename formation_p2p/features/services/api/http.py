"""HTTP/1.1 to services, as a transport of httpx2.

A stream to a replica is used for one request after another, for a while: see kept.py.

A request whose answer has not begun is sent again where that does no harm: where it provably never
ran, or does the same twice. Needs the extra `services`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import h11
import httpx2

from formation_p2p.core.errors import RemoteError
from formation_p2p.core.units import KIB
from formation_p2p.features.services.api.kept import (
    IDEMPOTENT,
    Kept,
    Wanted,
    has_more,
    is_for_one_request,
)
from formation_p2p.features.services.core.messages import ServiceError

if TYPE_CHECKING:
    from formation_p2p.features.services.api.client import ServiceClient, ServiceConnection

# Times that a request is sent, where the replica that took it breaks.
MAX_TRIES: Final = 3
READ_BYTES: Final = 64 * KIB
# A head with the cookies of a large site has 8 KiB.
MAX_HEAD_BYTES: Final = 64 * KIB
_SERVER_ERROR: Final = 500


def client_of(service: ServiceClient) -> httpx2.AsyncClient:
    """Whose requests go to the service, by paths alone."""
    return httpx2.AsyncClient(
        transport=ServiceTransport(service),
        base_url=f"http://{service.name}",
        timeout=httpx2.Timeout(None, connect=service.within_s),
        trust_env=False,
    )


@dataclass(eq=False)
class _Stream:
    """One stream, and where HTTP is on it."""

    connection: ServiceConnection
    http: h11.Connection = field(
        default_factory=lambda: h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    )
    opened_s: float = field(default_factory=time.monotonic)
    is_used: bool = False
    kept_s: float = 0.0
    is_for_one_request: bool = False

    @property
    def replica(self) -> str:
        return self.connection.replica

    async def send(self, event: h11.Event) -> None:
        data = self.http.send(event)
        if data:
            self.connection.writer.write(data)
            await self.connection.writer.drain()

    async def event(self) -> Any:
        """The next that the replica says. Raises h11.RemoteProtocolError, OSError, RemoteError."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.connection.reader.read(READ_BYTES))
        return event

    def may_go_on(self) -> bool:
        """Whether another request may follow the one that was answered."""
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        if self.is_for_one_request:
            return False
        self.http.start_next_cycle()
        return True

    def has_ended(self) -> bool:
        return has_more(self.http, self.connection.reader)

    def close(self) -> None:
        self.connection.abort()

    def give_up(self) -> None:
        self.close()
        self.connection.leave()


class ServiceTransport(httpx2.AsyncBaseTransport):
    """Of one service. For httpx2, and for what takes its transports."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service
        self._kept: Kept[_Stream] = Kept()
        self._under_way: set[_Stream] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises ServiceError; httpx2.ReadTimeout where the caller gave one."""
        timeouts: dict[str, float | None] = request.extensions.get("timeout", {})
        # What a program makes as it is sent can be had once.
        can_again = isinstance(request.stream, httpx2.ByteStream)
        tries = 0
        while True:
            tries += 1
            wanted = Wanted(self._service.name, within_s=timeouts.get("connect"))
            stream = await self._kept.stream(wanted, "", partial(self._opened, wanted.within_s))
            self._under_way.add(stream)
            try:
                head = await self._exchanged(stream, request, timeouts.get("read"))
            except (h11.RemoteProtocolError, OSError, RemoteError) as error:
                self._drop(stream)
                self._kept.failed(self._service.name, stream.replica)
                if not stream.is_used:  # else its program may have closed it while it was idle
                    self._service.failed(stream.connection.replica)
                never_ran = isinstance(error, ServiceError) and error.never_ran
                again = never_ran or request.method in IDEMPOTENT
                if again and can_again and tries < MAX_TRIES:
                    continue
                raise _broken(self._service.name, error) from error
            except BaseException:
                self._drop(stream)  # the caller has left: the replica is told
                raise
            stream.is_for_one_request = is_for_one_request(request.method, head.status_code)
            if head.status_code >= _SERVER_ERROR:
                self._service.failed(stream.connection.replica)
            return httpx2.Response(
                head.status_code,
                headers=list(head.headers.raw_items()),
                stream=_Body(self, stream, timeouts.get("read")),
                extensions={
                    "http_version": b"HTTP/1.1",
                    "reason_phrase": bytes(head.reason),
                    "replica": stream.connection.replica,
                },
            )

    async def _opened(self, within_s: float | None, full: Callable[[], None]) -> _Stream:
        return _Stream(await self._service.connect(within_s=within_s, full=full))

    async def _exchanged(
        self, stream: _Stream, request: httpx2.Request, read_s: float | None
    ) -> h11.Response:
        """The request is sent whole; the head of its answer."""
        head = h11.Request(
            method=request.method, target=request.url.raw_path, headers=request.headers.raw
        )
        assert isinstance(request.stream, httpx2.AsyncByteStream), "the client is not blocking"
        try:
            await stream.send(head)
            async for piece in request.stream:
                await stream.send(h11.Data(data=piece))
            await stream.send(h11.EndOfMessage())
        except OSError:
            # It has heard enough, and may have said why, or is gone.
            if stream.connection.reader.at_eof():
                raise
        try:
            async with asyncio.timeout(read_s):
                while True:
                    event = await stream.event()
                    if isinstance(event, h11.Response):
                        return event
                    if event is h11.PAUSED:
                        problem = "it speaks another protocol from here on; use `connect` for that"
                        raise ServiceError(f"the service {self._service.name}: {problem}")
                    if isinstance(event, h11.ConnectionClosed):
                        raise h11.RemoteProtocolError("it has closed the stream without an answer")
        except TimeoutError as error:
            problem = f"no answer within {read_s:g} s"
            raise httpx2.ReadTimeout(problem, request=request) from error

    def done(self, stream: _Stream) -> None:
        """Its answer was read, or its reader has left."""
        self._under_way.discard(stream)
        if stream.may_go_on():
            self._kept.give_back(self._service.name, b"", stream)
        else:
            stream.close()

    def _drop(self, stream: _Stream) -> None:
        self._under_way.discard(stream)
        stream.close()

    async def aclose(self) -> None:
        self._kept.close()
        for stream in (*self._under_way,):
            self._drop(stream)


class _Body(httpx2.AsyncByteStream):
    """Of an answer, as it comes. To close it before its end has the replica cancel the request."""

    def __init__(self, transport: ServiceTransport, stream: _Stream, read_s: float | None) -> None:
        self._transport = transport
        self._stream = stream
        self._read_s = read_s
        self._is_over = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(self._read_s):
                    event = await self._stream.event()
            except TimeoutError as error:
                raise httpx2.ReadTimeout(f"nothing more within {self._read_s:g} s") from error
            except (h11.RemoteProtocolError, OSError, RemoteError) as error:
                raise _broken(self._transport._service.name, error) from error
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            else:
                return

    async def aclose(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._transport.done(self._stream)


def _broken(service: str, error: Exception) -> ServiceError:
    if isinstance(error, ServiceError):
        return error
    return ServiceError(f"the replica of {service} broke amid a request: {error}; ask again")
