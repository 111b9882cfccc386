"""One connection of an HTTP client: heads within a deadline and a size, bodies as they come, and
the news that the client has left."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import responses
from typing import Any, Final
from urllib.parse import unquote

import h11

from formation_p2p.core.units import KIB
from formation_p2p.features.gateway import plain
from formation_p2p.features.gateway.plain import MAX_HEAD_BYTES, Headers

# At a time; and what is read ahead of a client that sends its next request too early.
READ_BYTES: Final = 64 * KIB
# A client that has lost its network is noticed after 30 s and 3 probes.
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))

# RFC 9112, section 3.2.2. Its host counts, and not that of the header.
_ABSOLUTE: Final = re.compile(r"https?://([^/?#@]+)(.*)", re.IGNORECASE | re.DOTALL)
# What h11 quotes of a message.
_QUOTED: Final = re.compile(r":? ?(bytearray\()?b['\"].*", re.DOTALL)


class ClientLeft(Exception):
    """The client has closed the connection, or took too long."""


@dataclass(frozen=True, slots=True)
class Patience:
    """With clients that are slow: who holds a descriptor for nothing loses it. A response may be
    silent for as long as it likes."""

    head_s: float = 10.0
    """From the first byte of a head to its last."""
    idle_s: float = 60.0
    """Between two requests. Browsers and proxies reconnect by themselves."""
    stall_s: float = 60.0
    """From one piece of a request's body to the next, and for a client to read what it is sent."""


PATIENCE: Final = Patience()


@dataclass(frozen=True, slots=True)
class Head:
    """Of a request, whose header names are in lower case. `path` has no query."""

    method: str
    target: str
    path: str
    query: str
    headers: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    http_version: bytes

    def header(self, name: bytes) -> str:
        """The first of this name, or nothing."""
        for key, value in self.headers:
            if key == name:
                return value.decode("latin-1")
        return ""

    def cookie(self, name: str) -> str:
        for each in self.header(b"cookie").split(";"):
            key, _, value = each.strip().partition("=")
            if key == name:
                return value
        return ""

    @property
    def plain_path(self) -> str:
        """Without percent signs, as the interface has it: what is allowed depends on this one."""
        return unquote(self.path)

    @property
    def wants_upgrade(self) -> bool:
        return "upgrade" in self.header(b"connection").lower() and bool(self.header(b"upgrade"))


class _Protocol(asyncio.StreamReaderProtocol):
    """Tells at once when the client has closed its end, whatever was not read yet."""

    left: Callable[[], None]
    takes: Callable[[bytes], bool]

    def data_received(self, data: bytes) -> None:
        if not self.takes(data):
            super().data_received(data)

    def eof_received(self) -> bool | None:
        self.left()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.left()
        super().connection_lost(exc)


async def client_of(connection: socket.socket, patience: Patience = PATIENCE) -> Client:
    """Of a connection that was accepted."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=READ_BYTES, loop=loop)
    protocol = _Protocol(reader, loop=loop)
    protocol.left, protocol.takes = lambda: None, lambda data: False
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    client = Client(reader, writer, patience)
    protocol.left, protocol.takes = client.has_closed, client.takes
    if reader.at_eof():
        client.has_closed()
    return client


class Client:
    """Owns the connection. Every method but `close` raises ClientLeft."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, patience: Patience
    ) -> None:
        self.patience = patience
        self._reader = reader
        self._writer = writer
        self._held = b""
        self._has_left = False
        self._working: asyncio.Task[Any] | None = None
        self._http = _server()
        self._asks_for_head = False
        self._plain = b""
        """The request where it is plain, and h11 does not know of it."""
        self._closes = False  # after a request that is plain
        self.serves_at_once: Callable[[Head], bool] = lambda head: False
        """Whether a plain request is under way from now on, without a turn of this one's task."""
        self._is_waiting = False  # for the first byte of a request
        self.gives_up: Callable[[bytes], None] | None = None
        """Has the task go on with what is under way at once, and with what came after that."""
        self._at_once = b""  # the request of that
        self._answered_s = 0.0
        self._sent_on: Any = None
        self.trailers: Sequence[tuple[bytes, bytes]] = ()  # of the request, once it was read
        self.address = str((writer.get_extra_info("peername") or ("?",))[0])
        _keep_alive(writer.get_extra_info("socket"))
        self.has_begun = False  # the response
        self.is_last = False  # the gateway is being left: no request follows this one

    async def head(self) -> Head | None:
        """The next request's; None where there is none more. Answers what is no request itself."""
        try:
            first = await self._event(self.patience.idle_s, self.patience.head_s)
            if isinstance(first, Head):
                self.has_begun = self._asks_for_head = False
                return first
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            await self.answer(status, {"error": "bad request", "message": in_words(error)})
            return None
        except TimeoutError:
            await self.answer(408, {"error": "timeout", "message": "the head took too long"})
            return None
        if not isinstance(first, h11.Request):
            return None
        self.has_begun, self._asks_for_head = False, first.method == b"HEAD"
        framed = {name for name, _ in first.headers} & {b"content-length", b"transfer-encoding"}
        if len(framed) == 2:
            # Of two servers in a row, one might go by each (RFC 9112, section 6.1).
            problem = "content-length and transfer-encoding exclude each other"
            await self.answer(400, {"error": "bad request", "message": problem})
            return None
        if not framed:
            self._http.next_event()  # that there is no body
        target, headers = first.target.decode("latin-1"), tuple(first.headers)
        if (absolute := _ABSOLUTE.fullmatch(target)) is not None:
            host = (b"host", absolute[1].encode("latin-1"))
            headers = (host, *(each for each in headers if each[0] != b"host"))
            target = "/" + absolute[2].removeprefix("/")
        path, _, query = target.partition("?")
        method, version = first.method.decode("ascii"), bytes(first.http_version)
        return Head(method, target, path, query, headers, version)

    async def _event(self, idle_s: float, whole_s: float) -> Any:
        """Of h11, or the head of a request that is plain. The clock of the whole head starts with
        its first byte. Empty lines before it are passed over (RFC 9112, section 2.2)."""
        loop = asyncio.get_running_loop()
        ahead = bytes(self._http.trailing_data[0])
        if ahead[:1] in (b"\r", b"\n"):
            self._http, ahead = _server(), ahead.lstrip(b"\r\n")
            if ahead:
                self._http.receive_data(ahead)
        ends = loop.time() + (whole_s if ahead else idle_s)
        began = bool(ahead)
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._is_waiting = not began
            try:
                async with asyncio.timeout_at(ends):
                    data = await self._read()
                self._is_waiting = False  # it may have come before this was called
            except TimeoutError:
                if began:
                    raise
                answered_s = self._answered_s if self.gives_up is None else loop.time()
                if (ends := answered_s + idle_s) > loop.time():
                    continue
                raise ClientLeft from None  # an idle connection just ends
            if data and not began:
                if not (data := data.lstrip(b"\r\n")):
                    continue
                began, ends = True, loop.time() + whole_s
                if (found := plain.request_of(data)) is not None:
                    self._plain, self._closes = data, plain.closes(found[1])
                    return _plain_head(*found)
            self._http.receive_data(data)
        return event

    def takes(self, data: bytes) -> bool:
        """Whether it is a plain request that is answered without a turn of this connection's task.
        Another one that does not wait for the answer is read by the task, with this one."""
        if self.gives_up is not None:
            self.gives_up(data)
            return True
        is_waiting, self._is_waiting = self._is_waiting, False
        if is_waiting and not self.is_last and not self._writer.transport.get_write_buffer_size():
            found = plain.request_of(data)
            if found is not None and not plain.closes(found[1]):
                self._at_once, self.has_begun = data, False
                self._is_waiting = self.serves_at_once(_plain_head(*found))
        return self._is_waiting

    def answer_at_once(self, answer: plain.PlainAnswer, headers: Headers) -> None:
        self.has_begun, self.gives_up = True, None
        self._answered_s = asyncio.get_running_loop().time()
        first_line = b"HTTP/1.1 %d %b" % (answer.status, answer.reason)
        self._writer.write(plain.written(first_line, headers, answer.body))

    def leave_to_task(self, sent_on: object, ahead: bytes = b"") -> None:
        """The request: on the stream where it was sent, if that brings more than a plain answer."""
        self.gives_up, self._is_waiting, self._sent_on = None, False, sent_on
        self._reader.feed_data(self._at_once + ahead)

    def taken(self) -> Any:
        """Where the request was sent at once, whose answer is not plain; else None."""
        stream, self._sent_on = self._sent_on, None
        return stream

    @property
    def is_plain(self) -> bool:
        """Whether the request is, and its answer may be."""
        return bool(self._plain) and not self.is_last

    def _tell_h11(self) -> None:
        """Of the request, where its answer is not plain."""
        if self._plain:
            self._http.receive_data(self._plain)
            self._plain = b""
            self._http.next_event()
            self._http.next_event()  # that there is no body

    async def _read(self) -> bytes:
        try:
            return await self._reader.read(READ_BYTES)
        except OSError as error:
            raise ClientLeft from error

    @property
    def has_body(self) -> bool:
        """Whether there is more of the request to read."""
        return self._http.their_state is h11.SEND_BODY

    async def piece(self) -> bytes:
        """Of the request's body; empty at its end. Raises ClientLeft for one that is malformed or
        stalls."""
        if not self.has_body:
            return b""
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        try:
            while True:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    async with asyncio.timeout(self.patience.stall_s):
                        data = await self._read()
                    self._http.receive_data(data)
                elif isinstance(event, h11.Data):
                    return bytes(event.data)
                else:
                    self.trailers = event.headers
                    return b""
        except (TimeoutError, h11.RemoteProtocolError) as error:
            raise ClientLeft from error

    async def body(self, max_bytes: int) -> bytes | None:
        """All of it; None where it is longer."""
        whole = bytearray()
        while piece := await self.piece():
            whole += piece
            if len(whole) > max_bytes:
                return None
        return bytes(whole)

    def has_closed(self) -> None:
        """Its end: what is done for it is cancelled, if it is done in `unless_left`."""
        self._has_left = True
        if self.gives_up is not None:
            self.gives_up(b"")
        if self._working is not None:
            self._working.cancel()

    def is_gone(self) -> bool:
        return self._has_left

    @contextmanager
    def unless_left(self) -> Iterator[None]:
        """What the current task does for the client ends with ClientLeft when that leaves."""
        task = asyncio.current_task()
        assert task is not None, "a connection is a task"
        if self._has_left:
            raise ClientLeft
        asked = task.cancelling()
        self._working = task
        try:
            yield
        except asyncio.CancelledError:
            # As asyncio.timeout does: another may have cancelled the task as well.
            if self.is_gone() and task.uncancel() <= asked:
                raise ClientLeft from None
            raise
        finally:
            self._working = None

    async def answer_plainly(self, answer: plain.PlainAnswer, headers: Headers) -> None:
        """A whole answer, to a request that is plain. Its length is among the headers."""
        assert self._plain, "the request is plain"
        if self._closes:
            headers = [*headers, (b"connection", plain.CLOSE)]
        self.answer_at_once(answer, headers)
        await self._write(b"")

    async def begin(self, status: int, headers: Headers, reason: bytes = b"") -> None:
        self._tell_h11()
        self.has_begun = status == 101 or status >= 200
        if not reason:
            reason = responses.get(status, "").encode()
        kind = h11.InformationalResponse if status < 200 else h11.Response
        if self.is_last and status >= 200 and (b"connection", b"close") not in headers:
            headers = [*headers, (b"connection", b"close")]
        event = kind(status_code=status, headers=headers, reason=reason)
        # With what follows, in one packet.
        await self._send(event, holds=status >= 200)

    async def flush(self) -> None:
        """What was sent is not to wait for what follows."""
        if self._held:
            await self._write(b"")

    async def send(self, data: bytes | memoryview) -> None:
        """Nothing of it goes to a client that asks for the head alone."""
        if data and not self._asks_for_head:
            await self._send(h11.Data(data=bytes(data)))

    async def end(self, trailers: Headers | None = None) -> None:
        await self._send(h11.EndOfMessage(headers=trailers or []))

    async def _send(self, event: Any, *, holds: bool = False) -> None:
        try:
            data = self._http.send(event) or b""
        except h11.LocalProtocolError as error:
            raise ClientLeft from error
        if holds:
            self._held += data
        elif data or self._held:
            await self._write(data)

    async def _write(self, data: bytes) -> None:
        held, self._held = self._held, b""
        try:
            self._writer.write(held + data)
            await drained(self._writer, self.patience.stall_s)
        except (OSError, TimeoutError) as error:
            self.abort()
            raise ClientLeft from error

    async def answer(
        self, status: int, body: Mapping[str, Any], headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """A whole response in JSON; then the connection goes on, unless there is a body that was
        not read."""
        self._tell_h11()
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise ClientLeft
        data = json.dumps(body).encode()
        head: Headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(data)).encode()),
            *((name.encode(), value.encode()) for name, value in headers),
        ]
        if self._http.their_state is not h11.DONE:
            head.append((b"connection", b"close"))
        await self.begin(status, head)
        await self.send(data)
        await self.end()

    @property
    def is_idle(self) -> bool:
        """Between two requests, or before the first."""
        return (
            not self._plain
            and self.gives_up is None
            and self._http.our_state is h11.IDLE
            and self._http.their_state is h11.IDLE
        )

    def next(self) -> bool:
        """Whether the connection takes one more request."""
        if (unread := self.taken()) is not None:
            unread.close()  # the request was refused after all
        if self._plain:
            self._plain = b""
            return self.has_begun and not self._closes
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
        """After a switch of protocols: the streams, and what was read already."""
        return self._reader, self._writer, bytes(self._http.trailing_data[0])

    async def close(self) -> None:
        """One that has closed its sending side alone, as `nc -N` does, reads why no answer came."""
        if self._has_left and not self.has_begun and not self._writer.is_closing():
            message = "the client closed its sending side; keep it open until the answer has come"
            with suppress(ClientLeft):
                await self.answer(400, {"error": "bad request", "message": message})
        if (unread := self.taken()) is not None:
            unread.close()
        self._writer.close()

    def abort(self) -> None:
        """So that a client can tell that its response is cut."""
        self._writer.transport.abort()


async def drained(writer: asyncio.StreamWriter, stall_s: float | None) -> None:
    """Once it has taken what was written. Raises TimeoutError where it takes nothing for a time."""
    if stall_s is None or not writer.transport.get_write_buffer_size():
        await writer.drain()
        return
    async with asyncio.timeout(stall_s):
        await writer.drain()


def in_words(error: h11.ProtocolError) -> str:
    """Without what it quotes of the message, which may be a secret."""
    return _QUOTED.sub("", str(error))


def _plain_head(target: bytes, headers: Headers) -> Head:
    text = target.decode("ascii")
    path, _, query = text.partition("?")
    return Head("GET", text, path, query, tuple(headers), b"1.1")


def _server() -> Any:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)


def _keep_alive(of: socket.socket | None) -> None:
    if of is None or of.family == socket.AF_UNIX:
        return
    of.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            of.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
