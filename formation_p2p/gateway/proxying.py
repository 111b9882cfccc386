"""`/service/{name}/{path}`: a request goes to a replica, and its answer back. Heads are read, so
that connections can be used again; bodies, event streams and WebSockets pass as bytes."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import h11

from formation_p2p.core.errors import FormationError
from formation_p2p.core.services.resend import IDEMPOTENT
from formation_p2p.gateway.access import COOKIE, HEADER, shown_token
from formation_p2p.gateway.client import READ_BYTES, Client, ClientLeft, Head, Headers
from formation_p2p.gateway.ending import cancelled
from formation_p2p.gateway.sources import ServiceUnavailable, Source
from formation_p2p.gateway.streams import Broken, Kept, Stream

log = logging.getLogger(__name__)

T = TypeVar("T")

# Names the replica that a client came to, so that it comes to it again.
STICKY: Final = "formation_replica"
# What is for one hop alone (RFC 9110, section 7.6.1), or is written anew.
_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade expect x-forwarded-for x-forwarded-proto x-forwarded-host "
    b"x-forwarded-prefix".split()
) | {HEADER}
_PATH: Final = re.compile(r"/service/([a-z0-9][a-z0-9-]{0,39})(/.*)?", re.DOTALL)
# Of one request, on replicas that break before they answer.
MAX_TRIES: Final = 3
_PEER: Final = re.compile(r"[A-Za-z0-9]{1,64}")


class Proxy:
    def __init__(self, source: Source) -> None:
        self._source = source
        self.kept = Kept()

    async def serve(self, client: Client, head: Head) -> tuple[int, str]:
        """Returns the status, and the replica. Raises ClientLeft."""
        match = _PATH.fullmatch(head.path)
        if match is None:
            message = "write /service/NAME/PATH; names are in /api/services/list"
            await client.answer(404, {"error": "not found", "message": message})
            return 404, ""
        service, path = match[1], match[2]
        if path is None:  # so that relative links of the service's pages lead to it
            query = f"?{head.query}" if head.query else ""
            await client.answer(308, {}, [("location", f"/service/{service}/{query}")])
            return 308, ""
        exchange = _Exchange(client, head, service, path, self._source.failed)
        with client.unless_left():
            return await self._exchanged(client, exchange)

    async def _exchanged(self, client: Client, exchange: _Exchange) -> tuple[int, str]:
        tries = 0
        service = exchange.service
        while True:
            try:
                stream = await self._stream(exchange)
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
                if client.has_begun:
                    client.abort()
                    raise ClientLeft from error
                # One that was idle may have been closed meanwhile, and counts as no try.
                tries += not stream.is_used
                if exchange.may_repeat and tries < MAX_TRIES:
                    continue
                message = f"the replica ended the stream: {error}"
                return await exchange.broken(message), stream.to.replica
            finally:
                if is_whole:
                    stream.http.start_next_cycle()
                    self.kept.give_back(service, stream)
                else:
                    stream.close()
            return status, stream.to.replica

    async def _stream(self, exchange: _Exchange) -> Stream:
        sticky = exchange.sticky
        if (kept := self.kept.take(exchange.service, sticky)) is not None:
            return kept
        return Stream(await self._source.connect(exchange.service, sticky))


class _Exchange:
    """One request and its answer."""

    def __init__(
        self,
        client: Client,
        head: Head,
        service: str,
        path: str,
        failed: Callable[[str, str], None],
    ) -> None:
        self._failed = failed
        self._client = client
        self._head = head
        self.service = service
        self._path = path
        self._has_body = client.has_body
        self.is_reusable = False

    @property
    def may_repeat(self) -> bool:
        return not self._has_body and self._head.method in IDEMPOTENT

    @property
    def sticky(self) -> str | None:
        named = self._head.cookie(STICKY)
        return named if _PEER.fullmatch(named) else None

    async def refuse(self, error: ServiceUnavailable) -> int:
        body = {"service": self.service, "message": str(error)}
        if error.retry_after_s is None:
            await self._client.answer(404, {"error": "Service not found", **body})
            return 404
        again = [("retry-after", str(error.retry_after_s))]
        await self._client.answer(503, {"error": "Service not available", **body}, again)
        return 503

    async def broken(self, message: str) -> int:
        body = {"error": "bad gateway", "service": self.service, "message": message}
        await self._client.answer(502, body)
        return 502

    async def run(self, stream: Stream) -> int:
        """Raises Broken, ClientLeft."""
        query = f"?{self._head.query}" if self._head.query else ""
        await stream.send(
            h11.Request(
                method=self._head.method,
                target=(stream.to.prefix + self._path + query).encode("latin-1"),
                headers=self._request_headers(stream.to.authority),
            )
        )
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

    async def _upload(self, stream: Stream) -> None:
        while piece := await self._client.piece():
            await stream.send(h11.Data(data=piece))
        await stream.send(h11.EndOfMessage())

    async def _answer(self, stream: Stream) -> int:
        client = self._client
        response = await stream.event()
        while isinstance(response, h11.InformationalResponse):
            if response.status_code == 101:
                await self._switch(stream, response)
                return 101
            response = await stream.event()
        if not isinstance(response, h11.Response):
            raise Broken("it sent no response")
        status = int(response.status_code)
        if status >= 500:
            self._failed(self.service, stream.to.replica)
        await client.begin(status, self._response_headers(response, stream), bytes(response.reason))
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
        await client.end()
        done = stream.http.our_state is h11.DONE and stream.http.their_state is h11.DONE
        self.is_reusable = done
        return status

    async def _switch(self, stream: Stream, response: Any) -> None:
        """To WebSocket or whatever both sides agreed on: bytes from here on, each way until it
        ends."""
        headers = [(k, v) for k, v in response.headers if k != b"connection"]
        headers.append((b"connection", b"upgrade"))
        await self._client.begin(101, headers, bytes(response.reason))
        reader, writer, ahead = self._client.raw()
        there = stream.to
        writer.write(bytes(stream.http.trailing_data[0]))
        there.writer.write(ahead)
        both = [
            asyncio.ensure_future(_copy(reader, there.writer)),
            asyncio.ensure_future(_copy(there.reader, writer)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            # WebSocket's end is said in its frames: when one side is gone, so is the connection.
        finally:
            writer.close()
            await cancelled(*both)

    def _request_headers(self, authority: str) -> Headers:
        dropped = _listed(self._head.header(b"connection"))
        own = f"Bearer {shown_token(self._head)[0]}".encode("latin-1")
        headers: Headers = []
        is_chunked = False
        for name, value in self._head.headers:
            if name == b"transfer-encoding":
                is_chunked = True
            if name in _HOP or name in dropped:
                continue
            if name == b"authorization" and value == own:
                continue  # the service is not to have it
            if name == b"cookie" and not (value := _other_cookies(value)):
                continue
            headers.append((name, value))
        if is_chunked:
            headers = [each for each in headers if each[0] != b"content-length"]
            headers.append((b"transfer-encoding", b"chunked"))
        if self._head.wants_upgrade:
            headers.append((b"connection", b"upgrade"))
            headers.append((b"upgrade", self._head.header(b"upgrade").encode("latin-1")))
        forwarded = self._client.address.encode()
        if authority or not any(name == b"host" for name, _ in headers):
            headers = [each for each in headers if each[0] != b"host"]
            headers.insert(0, (b"host", (authority or self.service).encode()))
        headers += [
            (b"x-forwarded-for", forwarded),
            (b"x-forwarded-proto", b"http"),
            (b"x-forwarded-host", self._head.header(b"host").encode("latin-1")),
            (b"x-forwarded-prefix", f"/service/{self.service}".encode()),
        ]
        return [each for each in headers if each[1] or each[0] != b"x-forwarded-host"]

    def _response_headers(self, response: Any, stream: Stream) -> Headers:
        own = dict(response.headers).get(b"connection", b"").decode("latin-1")
        dropped = _listed(own)
        is_chunked = False
        headers: Headers = []
        for name, value in response.headers:
            if name == b"transfer-encoding":
                is_chunked = True
            if name in _HOP or name in dropped:
                continue
            if name == b"location" and value.startswith(b"/") and not value.startswith(b"//"):
                value = f"/service/{self.service}".encode() + value
            headers.append((name, value))
        if is_chunked and self._head.http_version != b"1.0":
            headers.append((b"transfer-encoding", b"chunked"))
        if (replica := stream.to.replica) and replica != self.sticky:
            cookie = f"{STICKY}={replica}; Path=/service/{self.service}/; HttpOnly; SameSite=Lax"
            headers.append((b"set-cookie", cookie.encode()))
        return headers


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(READ_BYTES):
        writer.write(data)
        await writer.drain()


def _listed(connection: str) -> frozenset[bytes]:
    return frozenset(each.strip().lower().encode("latin-1") for each in connection.split(","))


def _other_cookies(value: bytes) -> bytes:
    """Without those of the gateway itself."""
    own = (COOKIE.encode(), STICKY.encode())
    kept = [each.strip() for each in value.split(b";")]
    return b"; ".join(each for each in kept if each.partition(b"=")[0].strip() not in own)
