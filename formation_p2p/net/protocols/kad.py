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
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation, RemoteError, Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.net.connection import Connection
from formation_p2p.net.limits import MAX_KAD_STREAMS, PeerLimits, PeerLimitsTable
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import (
    MAX_KAD_FRAME_BYTES,
    MAX_KAD_REQUEST_BYTES,
    FrameReader,
    encode_frame,
)
from formation_p2p.net.transport.stream import MuxedStream

log = logging.getLogger(__name__)

# Echoes of what needs no answer, by a peer that was slow to read.
MAX_ECHOES: Final = 1024


@dataclass(eq=False)
class KadStreams:
    """Asks peers, and has `asked` answer them. The caller of `ask` bounds the time, and cancels to
    give up."""

    protocol: str
    dial: Callable[[Contact], Awaitable[Connection]]
    limits: PeerLimitsTable
    spawn: Callable[[Callable[[], Awaitable[None]]], None]
    asked: Callable[[Contact, bytes, Callable[[bytes | RemoteError | None], None]], None]
    # For each peer, and whether it expects answers.
    lines: dict[tuple[PeerId, bool], _Line] = field(default_factory=dict, init=False)

    async def serve(self, stream: MuxedStream, connection: Connection) -> None:
        """Answer the requests of one stream, in order, until it ends."""
        limits = self.limits.of(connection.peer)
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
                    sender = connection.as_server(self.protocol)
                    response = await self._answer(sender, request, limits)
                finally:
                    limits.answering.release()
                if response is not None:
                    framed = encode_frame(response)
                    if not stream.write_now(framed):
                        await stream.write(framed)

    async def _answer(self, sender: Contact, request: bytes, limits: PeerLimits) -> bytes | None:
        answer = _Answer()
        began_s = time.thread_time()
        self.asked(sender, request, answer.given)
        # Some cost ten times as much as others.
        limits.kad_bucket.charge(time.thread_time() - began_s)
        if not answer.ended.is_set():  # which is rare: the peer's state machine answers at once
            with trio.fail_after(limits.parameters.kad_answer_s):
                return await answer.wait()
        return answer.result()

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
        connection = await self.dial(to)
        stream = await connection.offer(self.protocol)
        try:
            await stream.write(encode_frame(frame))
            await connection.confirm(stream, self.protocol)
            limits = self.limits.of(to.peer_id)
            with FrameReader(stream, limits, MAX_KAD_FRAME_BYTES, asked=True) as frames:
                return await frames.next()
        except IOException as error:
            raise Unreachable(f"{to.peer_id}: {error}") from error
        finally:
            stream.abort("asked once")

    async def _open(self, to: Contact, expects_answer: bool) -> _Line:
        connection = await self.dial(to)
        line = self._alive(to.peer_id, expects_answer)
        if line is not None:
            return line  # another request opened it meanwhile
        stream = await connection.offer(self.protocol)
        confirm = partial(connection.confirm, stream, self.protocol)
        line = _Line(
            to.peer_id, stream, confirm, connection.via is not None, expects_answer=expects_answer
        )
        self.lines[line.place] = line
        self.spawn(lambda: self._run(line))
        return line

    def upgraded(self, peer: PeerId) -> None:
        """There is a direct connection to a peer: what is asked from now on goes there, and what
        was asked on a circuit is answered on it."""
        for place in ((peer, True), (peer, False)):
            if (line := self.lines.get(place)) is not None and line.is_relayed:
                del self.lines[place]
                self.spawn(line.finish)

    def _alive(self, peer: PeerId, expects_answer: bool) -> _Line | None:
        line = self.lines.get((peer, expects_answer))
        return line if line is not None and not line.broken else None

    async def _run(self, line: _Line) -> None:
        end: RemoteError = Unreachable(f"{line.peer}: the network is closing")
        try:
            await line.read(self.limits.of(line.peer))
            end = Unreachable(f"{line.peer} closed the stream")
        except RemoteError as error:
            end = error
        finally:
            if self.lines.get(line.place) is line:
                del self.lines[line.place]
            line.end(end)


class _Answer:
    """What is waited for. The first one counts."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.frame: bytes | None = None
        self._error: RemoteError | None = None

    def end(self, frame: bytes | None = None, error: RemoteError | None = None) -> None:
        if not self.ended.is_set():
            self.frame, self._error = frame, error
            self.ended.set()

    def given(self, said: bytes | RemoteError | None) -> None:
        if isinstance(said, RemoteError):
            self.end(error=said)
        else:
            self.end(said)

    async def wait(self) -> bytes | None:
        """Raises what it ended with."""
        await self.ended.wait()
        return self.result()

    def result(self) -> bytes | None:
        """Once it has ended; as `wait`."""
        if self._error is not None:
            raise self._error
        return self.frame


@dataclass(eq=False)
class _Line:
    """Our stream to a peer. Responses come in the order of the requests.

    A request that is given up breaks it: the response would be taken for the next one's.
    """

    peer: PeerId
    stream: MuxedStream
    confirm: Callable[[], Awaitable[None]]
    is_relayed: bool
    _: KW_ONLY
    expects_answer: bool

    def __post_init__(self) -> None:
        self.place = (self.peer, self.expects_answer)
        self._confirmed = _Answer()
        self._writing = trio.Lock()
        self._waiting: deque[_Answer] = deque()
        self._echoes = 0  # that may come, where no answer is expected

    @property
    def broken(self) -> bool:
        return self.stream.broken is not None

    async def request(self, frame: bytes) -> bytes | None:
        answer = _Answer()
        self._echoes = min(self._echoes + 1, MAX_ECHOES)
        try:
            await self._write(encode_frame(frame), [answer] if self.expects_answer else [])
        except IOException as error:
            # Unless what ended the stream was told already.
            answer.end(error=Unreachable(f"{self.peer}: {error}"))
        else:
            if not self.expects_answer:
                return await self._confirmed.wait()
        try:
            return await answer.wait()
        except trio.Cancelled:
            self.stream.abort("a request was given up")
            raise

    async def _write(self, framed: bytes, waiting: list[_Answer]) -> None:
        if not self._writing.locked() and self.stream.write_now(framed):
            self._waiting += waiting
            return
        async with self._writing:
            self._waiting += waiting
            try:
                await self.stream.write(framed)
            except IOException:
                raise  # the stream has ended by itself
            except BaseException:
                # Cancelled amid a frame: the next one would be taken for its rest.
                self.stream.abort("a request was cut short")
                raise

    async def read(self, limits: PeerLimits) -> None:
        """Hand out responses until the peer finishes. Raises Unreachable, ProtocolViolation."""
        await self.confirm()
        self._confirmed.end()
        with FrameReader(self.stream, limits, MAX_KAD_FRAME_BYTES, asked=True) as frames:
            while (response := await frames.next()) is not None:
                if not self.expects_answer and self._echoes:
                    self._echoes -= 1
                    continue
                if not self._waiting:
                    raise ProtocolViolation(f"{self.peer} responds to what was not asked")
                self._waiting.popleft().end(response)

    async def finish(self) -> None:
        """Close it once nothing is waited for."""
        while self._waiting and not self.broken:
            await self._waiting[-1].ended.wait()
        await self.stream.close()

    def end(self, error: RemoteError) -> None:
        """No more responses: those that wait are told why."""
        self.stream.abort(str(error))
        self._confirmed.end(error=error)
        while self._waiting:
            self._waiting.popleft().end(error=error)
