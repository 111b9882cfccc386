"""kad RPC: frames asked and answered, one after the other on a stream.

Ours go over one long-lived stream for each peer (0.5 ms a request, against 1.9 ms with a new
stream for each). Peers may do either. Those that have no answer (ADD_PROVIDER) go over a second
one: py-libp2p answers them all the same, with an echo that would be taken for the next request's.

The first request on a stream goes out with the proposal of the protocol. It is told to have been
sent, or is answered, only after the peer has agreed to that.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio
from libp2p.io.exceptions import IOException

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation, RemoteError, Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.host.net.connection import Connection
from formation_p2p.host.net.limits import MAX_KAD_STREAMS, PeerLimits, PeerLimitsTable
from formation_p2p.host.net.protocols.frames import (
    MAX_KAD_FRAME_BYTES,
    MAX_KAD_REQUEST_BYTES,
    FrameReader,
    encode_frame,
)
from formation_p2p.host.net.transport.stream import MuxedStream

log = logging.getLogger(__name__)

# Echoes of what needs no answer, by a peer that was slow to read.
MAX_ECHOES: Final = 1024

Asked = Callable[[Contact, bytes, Callable[[bytes | None], None]], None]


async def serve_kad(
    stream: MuxedStream, connection: Connection, limits: PeerLimits, asked: Asked, protocol: str
) -> None:
    """Answer the requests of one stream, in order, until it ends."""
    await connection.wait_identified()
    with (
        limits.stream("kad", MAX_KAD_STREAMS),
        FrameReader(stream, limits, MAX_KAD_REQUEST_BYTES) as frames,
    ):
        while (request := await frames.next()) is not None:
            await limits.kad_bucket.wait()
            if limits.answering.available_tokens:
                limits.answering.acquire_nowait()
            else:
                await limits.answering.acquire()
            try:
                response = await _answer(connection.as_server(protocol), request, asked, limits)
            finally:
                limits.answering.release()
            if response is not None:
                framed = encode_frame(response)
                if not stream.write_now(framed):
                    await stream.write(framed)


async def _answer(
    sender: Contact, request: bytes, asked: Asked, limits: PeerLimits
) -> bytes | None:
    answered = trio.Event()
    answers: list[bytes | None] = []

    def answer(response: bytes | None) -> None:
        answers.append(response)
        answered.set()

    began_s = time.perf_counter()
    asked(sender, request, answer)
    limits.kad_bucket.charge(time.perf_counter() - began_s)  # some cost ten times as much as others
    if not answers:  # which is rare: the peer's state machine answers before it returns
        with trio.fail_after(limits.parameters.kad_answer_s):
            await answered.wait()
    return answers[0]


class KadCaller:
    """Asks peers. The caller of `ask` bounds the time, and cancels to give up."""

    def __init__(
        self,
        protocol: str,
        dial: Callable[[Contact], Awaitable[Connection]],
        limits: PeerLimitsTable,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._protocol = protocol
        self._dial = dial
        self._limits = limits
        self._spawn = spawn
        self.lines: dict[tuple[PeerId, bool], _Line] = {}  # and whether it expects answers

    async def ask(self, to: Contact, frame: bytes, *, expects_answer: bool) -> bytes | None:
        """Raises Unreachable, ProtocolViolation."""
        line = self._alive(to.peer_id, expects_answer)
        if line is not None:
            try:
                return await line.request(frame)
            except Unreachable as error:
                # A stream that rested may be gone by now, or another request broke it. Requests
                # may be repeated: they only ask, or set what they name.
                log.debug("asking %s again on a new stream: %s", to.peer_id, error)
        line = await self._open(to, expects_answer)
        return await line.request(frame)

    async def ask_apart(self, to: Contact, frame: bytes) -> bytes | None:
        """As `ask`, on a stream of its own: for what takes long, and would hold up the others."""
        connection = await self._dial(to)
        stream = await connection.offer(self._protocol)
        try:
            await stream.write(encode_frame(frame))
            await connection.confirm(stream, self._protocol)
            with FrameReader(stream, self._limits.of(to.peer_id), MAX_KAD_FRAME_BYTES) as frames:
                return await frames.next()
        except IOException as error:
            raise Unreachable(f"{to.peer_id}: {error}") from error
        finally:
            stream.abort("asked once")

    async def _open(self, to: Contact, expects_answer: bool) -> _Line:
        connection = await self._dial(to)
        line = self._alive(to.peer_id, expects_answer)
        if line is not None:
            return line  # another request opened it meanwhile
        stream = await connection.offer(self._protocol)
        confirm = partial(connection.confirm, stream, self._protocol)
        line = _Line(to.peer_id, stream, confirm, expects_answer=expects_answer)
        self.lines[line.place] = line
        self._spawn(lambda: self._run(line))
        return line

    def _alive(self, peer: PeerId, expects_answer: bool) -> _Line | None:
        line = self.lines.get((peer, expects_answer))
        return line if line is not None and not line.broken else None

    async def _run(self, line: _Line) -> None:
        end: RemoteError = Unreachable(f"{line.peer}: the network is closing")
        try:
            await line.read(self._limits.of(line.peer))
            end = Unreachable(f"{line.peer} closed the stream")
        except RemoteError as error:
            end = error
        finally:
            if self.lines.get(line.place) is line:
                del self.lines[line.place]
            line.end(end)


class _Request:
    def __init__(self) -> None:
        self.ended = trio.Event()
        self.response = b""
        self.error: RemoteError | None = None


class _Line:
    """Our stream to a peer. Responses come in the order of the requests.

    A request that is given up breaks it: the response would be taken for the next one's.
    """

    def __init__(
        self,
        peer: PeerId,
        stream: MuxedStream,
        confirm: Callable[[], Awaitable[None]],
        *,
        expects_answer: bool,
    ) -> None:
        self.peer = peer
        self.place = (peer, expects_answer)
        self._expects_answer = expects_answer
        self._stream = stream
        self._confirm = confirm
        self._confirmed = trio.Event()
        self._refusal: RemoteError | None = None
        self._writing = trio.Lock()
        self._waiting: deque[_Request] = deque()
        self._echoes = 0  # that may come, where no answer is expected

    @property
    def broken(self) -> bool:
        return self._stream.broken is not None

    async def request(self, frame: bytes) -> bytes | None:
        request = _Request()
        self._echoes = min(self._echoes + 1, MAX_ECHOES)
        try:
            await self._write(encode_frame(frame), [request] if self._expects_answer else [])
        except IOException as error:
            raise request.error or Unreachable(f"{self.peer}: {error}") from error
        if not self._expects_answer:
            await self._confirmed.wait()
            if self._refusal is not None:
                raise self._refusal
            return None
        try:
            await request.ended.wait()
        except BaseException:
            self._stream.abort("a request was given up")
            raise
        if request.error is not None:
            raise request.error
        return request.response

    async def _write(self, framed: bytes, waiting: list[_Request]) -> None:
        if not self._writing.locked() and self._stream.write_now(framed):
            self._waiting += waiting
            return
        async with self._writing:
            self._waiting += waiting
            try:
                await self._stream.write(framed)
            except IOException:
                raise
            except BaseException:
                self._stream.abort("a request was cut short")
                raise

    async def read(self, limits: PeerLimits) -> None:
        """Hand out responses until the peer finishes. Raises Unreachable, ProtocolViolation."""
        await self._confirm()
        self._confirmed.set()
        with FrameReader(self._stream, limits, MAX_KAD_FRAME_BYTES) as frames:
            while (response := await frames.next()) is not None:
                if not self._expects_answer and self._echoes:
                    self._echoes -= 1
                    continue
                if not self._waiting:
                    raise ProtocolViolation(f"{self.peer} responds to what was not asked")
                request = self._waiting.popleft()
                request.response = response
                request.ended.set()

    def end(self, error: RemoteError) -> None:
        """No more responses: those that wait are told why."""
        self._stream.abort(str(error))
        if not self._confirmed.is_set():
            self._refusal = error
            self._confirmed.set()
        while self._waiting:
            request = self._waiting.popleft()
            request.error = error
            request.ended.set()
