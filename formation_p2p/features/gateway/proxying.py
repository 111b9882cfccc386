"""`/service/{name}/{path}`: a request goes to a replica, and its answer back. Heads are read, so
that connections can be used again; bodies, event streams and WebSockets pass as bytes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import h11

from formation_p2p.core.errors import FormationError
from formation_p2p.features.gateway import plain
from formation_p2p.features.gateway.client import READ_BYTES, Client, ClientLeft, Head, drained
from formation_p2p.features.gateway.forwarding import (
    Destination,
    request_headers,
    response_headers,
    sent_host,
    trailers_of,
)
from formation_p2p.features.gateway.plain import Headers
from formation_p2p.features.gateway.sources import ServiceUnavailable, Upstream
from formation_p2p.features.gateway.sticky import COOKIE, Sticky
from formation_p2p.features.gateway.streams import Broken, Stream, cancelled
from formation_p2p.features.services.api.kept import IDEMPOTENT, Kept, Wanted, is_for_one_request

log = logging.getLogger(__name__)

# Of one request, on replicas that break before they answer.
MAX_TRIES: Final = 3


# As `connect` of Source.
Connect = Callable[[Wanted, str, Callable[[], None]], Awaitable[Upstream]]
# Is told of a service, and of its replica that answered with an error of its own.
Failed = Callable[[str, str], None]


class Proxy:
    def __init__(self, connect: Connect, failed: Failed, sticky: Sticky) -> None:
        self._connect = connect
        self._failed = failed
        self._sticky = sticky
        self.kept: Kept[Stream] = Kept()

    async def serve(
        self, client: Client, head: Head, to: Destination, on_behalf: bytes = b""
    ) -> tuple[int, str]:
        """Returns the status, and the replica. Raises ClientLeft."""
        if to.path is None:  # so that relative links of the service's pages lead to it
            query = f"?{head.query}" if head.query else ""
            await client.answer(308, {}, [("location", f"{to.prefix}/{query}")])
            return 308, ""
        exchange = _Exchange(client, head, to, self._failed, self._sticky, on_behalf)
        with client.unless_left():
            return await self._exchanged(client, exchange)

    def at_once(
        self, client: Client, head: Head, to: Destination, on_behalf: bytes
    ) -> AtOnce | None:
        """A plain request, to be begun, where a stream for it is at hand."""
        exchange = _Exchange(client, head, to, self._failed, self._sticky, on_behalf)
        if to.path is None or (stream := self.kept.at_hand(exchange.wanted)) is None:
            return None
        if stream.to.authority:
            self.kept.give_back(exchange.service, on_behalf, stream)
            return None
        return AtOnce(self.kept, exchange, stream)

    async def _exchanged(self, client: Client, exchange: _Exchange) -> tuple[int, str]:
        tries = 0
        service = exchange.service
        while True:
            try:
                stream = client.taken() or await self._stream(exchange)
            except ServiceUnavailable as error:
                return await exchange.refuse(error), ""
            except FormationError as error:
                return await exchange.broken(str(error)), ""
            is_whole = False
            try:
                status = await exchange.run(stream)
                is_whole = exchange.is_reusable
            except Broken as error:
                log.debug("a stream to %s broke: %s", service, error)
                self.kept.failed(service, stream.replica)
                if client.has_begun:
                    client.abort()
                    raise ClientLeft from error
                # One that was idle may have been closed meanwhile, and counts as no try.
                tries += not stream.is_used
                if exchange.may_repeat and tries < MAX_TRIES:
                    continue
                return await exchange.broken(str(error)), stream.to.replica
            finally:
                if is_whole:
                    stream.end_cycle()
                    self.kept.give_back(service, exchange.on_behalf, stream)
                else:
                    stream.close()
            return status, stream.to.replica

    async def _stream(self, exchange: _Exchange) -> Stream:
        """One that was kept may be at its end without our knowing: it is for what can be sent
        again."""
        # Callers take turns, where all replicas are full.
        wanted, caller = exchange.wanted, exchange.client.address

        async def opened(full: Callable[[], None]) -> Stream:
            return Stream(await self._connect(wanted, caller, full))

        return await self.kept.stream(wanted, caller, opened, takes_used=exchange.may_repeat)


class _Exchange:
    """One request and its answer."""

    def __init__(
        self,
        client: Client,
        head: Head,
        to: Destination,
        failed: Failed,
        sticky: Sticky,
        on_behalf: bytes,
    ) -> None:
        self.on_behalf = on_behalf
        self._cookies = sticky
        named = head.cookie(COOKIE)
        self.sticky = sticky.replica(to.service, named, time.time()) if named else None
        """The replica that the client had last."""
        self._failed = failed
        self.client = client
        self._head = head
        self._to = to
        self.service = to.service
        self._has_body = client.has_body
        self.is_reusable = False

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.service, self.on_behalf, self.sticky)

    @property
    def may_repeat(self) -> bool:
        return not self._has_body and self._head.method in IDEMPOTENT

    async def refuse(self, error: ServiceUnavailable) -> int:
        body = {"service": self.service, "message": str(error)}
        if error.is_denied:
            await self.client.answer(403, {"error": "refused", **body})
            return 403
        if error.retry_after_s is None:
            await self.client.answer(404, {"error": "Service not found", **body})
            return 404
        again = [("retry-after", str(error.retry_after_s))]
        await self.client.answer(503, {"error": "Service not available", **body}, again)
        return 503

    async def broken(self, message: str) -> int:
        body = {"error": "bad gateway", "service": self.service, "message": message}
        await self.client.answer(502, body)
        return 502

    async def run(self, stream: Stream) -> int:
        """Raises Broken, ClientLeft."""
        target, headers = self.asked(stream)
        if stream.is_asked or (self.client.is_plain and not stream.to.authority):
            return await self._plainly(stream, target, headers)
        request = h11.Request(method=self._head.method, target=target, headers=headers)
        await stream.send(request)
        if not self._has_body:
            await stream.send(h11.EndOfMessage())
            return await self._answer(stream)
        # A replica may answer before it has read all, and read no more.
        uploading = asyncio.ensure_future(self._upload(stream))
        answering = asyncio.ensure_future(self._answer(stream))
        try:
            await asyncio.wait((answering, uploading), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and isinstance(failed := uploading.exception(), ClientLeft):
                raise failed
            return await answering
        finally:
            await cancelled(uploading, answering)

    def asked(self, stream: Stream) -> tuple[bytes, Headers]:
        """What the replica is asked for."""
        query = f"?{self._head.query}" if self._head.query else ""
        host = sent_host(self._head, self._to, stream.to.authority)
        headers = request_headers(self._head, self._to, self.client.address, host)
        target = (stream.to.prefix + (self._to.path or "/") + query).encode("latin-1")
        return target, headers

    async def _plainly(self, stream: Stream, target: bytes, headers: Headers) -> int:
        """A plain request. Its answer, too, unless that is not plain."""
        came = await stream.send_plainly(plain.written(b"GET %b HTTP/1.1" % target, headers))
        answer = plain.answer_of(came)
        if answer is None or not self.client.is_plain:
            stream.tell_h11(h11.Request(method=b"GET", target=target, headers=headers), came)
            return await self._answer(stream)
        told = self.told(stream, answer.status, answer.headers)
        await self.client.answer_plainly(answer, told)
        self.is_reusable = True
        return answer.status

    def told(self, stream: Stream, status: int, headers: Headers) -> Headers:
        """What the client is told of a replica's answer, before its body."""
        if status >= 500:
            self._failed(self.service, stream.to.replica)
        cookie = ""
        if stream.to.replica and stream.to.replica != self.sticky:
            cookie = self._cookies.cookie(self.service, stream.to.replica, time.time())
        return response_headers(headers, self._head, self._to, stream.to, cookie)

    async def _upload(self, stream: Stream) -> None:
        while piece := await self.client.piece():
            await stream.send(h11.Data(data=piece))
        await stream.send(h11.EndOfMessage(headers=trailers_of(self.client.trailers)))

    async def _answer(self, stream: Stream) -> int:
        client = self.client
        response = await stream.event()
        while isinstance(response, h11.InformationalResponse):
            if response.status_code == 101:
                await self._switch(stream, response)
                return 101
            if self._head.http_version != b"1.0":
                links = [each for each in response.headers if each[0] == b"link"]
                await client.begin(response.status_code, links, bytes(response.reason))
            response = await stream.event()
        if not isinstance(response, h11.Response):
            raise Broken("it sent no response")
        status = int(response.status_code)
        headers = self.told(stream, status, list(response.headers))
        await client.begin(status, headers, bytes(response.reason))
        while True:
            event = stream.at_hand()
            if event is h11.NEED_DATA:
                await client.flush()  # it may be long until there is more
                event = await stream.event()
            if not isinstance(event, h11.Data):
                break
            await client.send(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise Broken("it ended in the middle of its response")
        is_old = self._head.http_version == b"1.0"
        await client.end([] if is_old else trailers_of(event.headers))
        done = stream.http.our_state is h11.DONE and stream.http.their_state is h11.DONE
        self.is_reusable = done and not is_for_one_request(self._head.method, status)
        return status

    async def _switch(self, stream: Stream, response: Any) -> None:
        """To WebSocket or whatever both sides agreed on: bytes from here on, each way until it
        ends."""
        headers = response_headers(list(response.headers), self._head, self._to, stream.to)
        headers += [(k, v) for k, v in response.headers if k == b"upgrade"]
        headers.append((b"connection", b"upgrade"))
        await self.client.begin(101, headers, bytes(response.reason))
        reader, writer, ahead = self.client.raw()
        there = stream.to
        writer.write(bytes(stream.http.trailing_data[0]))
        there.writer.write(ahead)
        both = [
            asyncio.ensure_future(_copy(reader, there.writer)),
            asyncio.ensure_future(_copy(there.reader, writer, self.client.patience.stall_s)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            # WebSocket's end is said in its frames: when one side is gone, so is the connection.
        finally:
            writer.close()
            await cancelled(*both)


@dataclass
class AtOnce(asyncio.Protocol):
    """A plain request to the first bytes of its answer, as the protocol of the replica's stream: no
    task takes a turn for it. What comes to anything but a plain answer is for the client's task."""

    kept: Kept[Stream]
    exchange: _Exchange
    stream: Stream

    def begin(self, over: Callable[[int, str], None]) -> None:
        """`over` is told the status and the replica, or 0 where the client's task goes on."""
        self.over, transport = over, self.stream.to.writer.transport
        self.usual: Any = transport.get_protocol()
        transport.set_protocol(self)
        self.exchange.client.gives_up = self._give_up
        target, headers = self.exchange.asked(self.stream)
        transport.write(plain.written(b"GET %b HTTP/1.1" % target, headers))

    def data_received(self, data: bytes) -> None:
        stream, exchange = self.stream, self.exchange
        stream.to.writer.transport.set_protocol(self.usual)
        answer = plain.answer_of(data)
        if answer is None or exchange.client.is_last:
            self.usual.data_received(data)
            stream.is_asked = True
            self.over(0, "")
            exchange.client.leave_to_task(stream)
            return
        headers = exchange.told(stream, answer.status, answer.headers)
        self.kept.give_back(exchange.service, exchange.on_behalf, stream)
        self.over(answer.status, stream.to.replica)
        exchange.client.answer_at_once(answer, headers)

    def connection_lost(self, error: Exception | None) -> None:
        """The stream was idle, and may have been closed meanwhile: the request is sent again."""
        self.kept.failed(self.exchange.service, self.stream.replica)
        self._give_up()
        self.usual.connection_lost(error)

    def _give_up(self, ahead: bytes = b"") -> None:
        self.stream.to.writer.transport.set_protocol(self.usual)
        self.stream.close()
        self.over(0, "")
        self.exchange.client.leave_to_task(None, ahead)


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stall_s: float | None = None
) -> None:
    """A replica may be busy for as long as it likes; a client reads within `stall_s`."""
    while data := await reader.read(READ_BYTES):
        writer.write(data)
        await drained(writer, stall_s)
