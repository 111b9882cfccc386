"""The work protocol: one long-lived stream with each peer, frames both ways.

Either side opens it. If both do at once both streams are read, and each side sends on its own.
A second one is opened for what is urgent, when that would wait behind large frames.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio
from libp2p.io.exceptions import IOException

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import RemoteError
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB
from formation_p2p.host.net.connection import Connection
from formation_p2p.host.net.limits import MAX_WORK_STREAMS, PeerLimitsTable
from formation_p2p.host.net.protocols.frames import MAX_WORK_FRAME_BYTES, FrameReader, encode_frame
from formation_p2p.host.net.transport.stream import MuxedStream, StreamStalled

log = logging.getLogger(__name__)

# What is urgent does not wait behind more than this: on a stream of its own it is there at once,
# where a slow uplink takes longer for it than a lease lasts.
BACKLOG_BYTES: Final = 256 * KIB
# Small frames are written together.
JOINED_BYTES: Final = 64 * KIB
# To reach a peer and agree on the protocol, before what is queued for it is given up.
OPEN_S: Final = 20.0
# Frames are not acknowledged here: those written so shortly before a stream broke may be lost. That
# is longer than it takes to find that a peer has fallen silent (UNACKNOWLEDGED_MS of
# transport/tcp.py).
UNSURE_S: Final = 45.0


@dataclass(eq=False)
class WorkSessions:
    """The sessions with all peers."""

    protocol: str
    dial: Callable[[Contact], Awaitable[Connection]]
    limits: PeerLimitsTable
    spawn: Callable[[Callable[[], Awaitable[None]]], None]
    received: Callable[[Contact, bytes], None]
    undelivered: Callable[[PeerId, str], None]
    sessions: dict[PeerId, _Session] = field(default_factory=dict, init=False)

    def send(self, to: Contact, frame: bytes, *, urgent: bool = False) -> None:
        """Queue one frame. If it is lost, `undelivered` is called later, never from in here.

        An urgent one overtakes others where they would keep it waiting.
        """
        session = self._session(to.peer_id)
        overtakes = urgent and session.common.queued_bytes > BACKLOG_BYTES
        (session.urgent if overtakes else session.common).send(to, frame)

    async def serve(self, stream: MuxedStream, connection: Connection) -> None:
        """Read a stream that the peer opened, until it ends."""
        with self.limits.of(connection.peer).stream("work", MAX_WORK_STREAMS):
            session = self._session(connection.peer)
            session.streams.append(stream)
            await session.read(stream, connection)

    def _session(self, peer: PeerId) -> _Session:
        session = self.sessions.get(peer)
        if session is None:
            session = self.sessions[peer] = _Session(self, peer)
        return session


class _Session:
    """All work streams with one peer. There while a stream is open or a frame is queued."""

    def __init__(self, sessions: WorkSessions, peer: PeerId) -> None:
        self.all = sessions
        self.peer = peer
        self.streams: list[MuxedStream] = []
        self.common, self.urgent = self._lanes = _Lane(self), _Lane(self)

    def free_stream(self) -> MuxedStream | None:
        """An open stream that nothing is sent on."""
        taken = [lane.sending for lane in self._lanes]
        return next((c for c in self.streams if c.broken is None and c not in taken), None)

    def tidy(self) -> None:
        if not self.streams and all(lane.writer is None for lane in self._lanes):
            self.all.sessions.pop(self.peer, None)

    # -- reading --------------------------------------------------------------------------

    async def read(self, stream: MuxedStream, connection: Connection) -> None:
        """A stream that is among `streams`. Raises RemoteError, and what `received` raises."""
        try:
            await connection.wait_identified()
            limits = self.all.limits.of(self.peer)
            with FrameReader(stream, limits, MAX_WORK_FRAME_BYTES) as frames:
                while (frame := await frames.next()) is not None:
                    bucket = limits.work_bucket
                    await bucket.wait()
                    began_s = time.perf_counter()
                    self.all.received(connection.contact, frame)
                    bucket.charge(time.perf_counter() - began_s)  # a thousand entries take 5 ms
            stream.abort("the peer finished the session")
        finally:
            self.streams.remove(stream)
            for lane in self._lanes:
                lane.ended(stream)
            self.tidy()

    async def read_own(self, stream: MuxedStream, connection: Connection) -> None:
        try:
            await self.read(stream, connection)
        except RemoteError as error:
            log.debug("the work stream with %s ends: %s", self.peer, error)
            stream.abort(str(error))


class _Lane:
    """What waits to be written to a peer, in order, and the stream it is written to.

    A task writes while there is something to write; what ends it early is told once, for all
    that was queued.
    """

    def __init__(self, session: _Session) -> None:
        self._session = session
        self._all = session.all
        self._peer = session.peer
        self._parameters = session.all.limits.parameters
        self.sending: MuxedStream | None = None
        self.queued_bytes = 0
        self._sent_at = -math.inf
        self._queue: deque[bytes] = deque()
        self.writer: trio.CancelScope | None = None
        self._overflow: str | None = None

    def send(self, to: Contact, frame: bytes) -> None:
        if self._overflow is not None:
            return  # lost with the others, which is about to be told
        if self._sent_at_once(frame):
            return
        self._queue.append(frame)
        self.queued_bytes += len(frame)
        most = self._parameters
        if len(self._queue) > most.max_queued_frames or self.queued_bytes > most.max_queued_bytes:
            self._overflow = f"{len(self._queue)} frames, {self.queued_bytes} bytes are queued"
        if self.writer is None:
            self.writer = trio.CancelScope()
            self._all.spawn(lambda: self._write(to))
        if self._overflow is not None:
            self.writer.cancel()

    def _sent_at_once(self, frame: bytes) -> bool:
        """A small one, on a stream that waits for nothing: no task is needed for that."""
        if self.writer is not None or self.sending is None or len(frame) > JOINED_BYTES:
            return False
        try:
            written = self.sending.write_now(encode_frame(frame))
        except IOException:
            return False  # it has just broken, which is about to be told of all that was sent
        if written:
            self._sent_at = trio.current_time()
        return written

    def ended(self, stream: MuxedStream) -> None:
        """A stream with the peer is over."""
        if stream is self.sending and self.writer is None:
            self.sending = None
            if trio.current_time() - self._sent_at < UNSURE_S:
                self._lost(stream.broken or "the peer finished the session")

    async def _write(self, to: Contact) -> None:
        lost: str | None = None
        assert self.writer is not None
        with self.writer:
            try:
                # The one sent on before, for as long as it is open, so that frames stay in order.
                self.sending = self.sending or self._session.free_stream()
                stream = self.sending or await self._open(to)
                while self._queue:
                    count, data = self._next()
                    await stream.write(data)
                    self._wrote(count)
            except trio.TooSlowError:
                lost = f"no session within {OPEN_S:.0f} s"
            except (RemoteError, IOException) as error:
                lost = str(error)
                if isinstance(error, StreamStalled):
                    stream.carrier.abort(lost)  # it would stall whatever is sent next as well
            except Exception as error:
                # Whatever it is, the frames are lost and someone must be told.
                log.exception("writing to %s failed", self._peer)
                lost = repr(error)
        self.writer = None
        lost = self._overflow or lost
        if lost is None and self.sending is not None:
            lost = self.sending.broken  # it broke under the last frame
        if lost is not None:
            self._lost(lost)
        self._session.tidy()

    def _next(self) -> tuple[int, bytes]:
        """The first frame, with those after it that are small too."""
        frames: list[bytes] = []
        size = 0
        for frame in self._queue:
            size += len(frame)
            if frames and size > JOINED_BYTES:
                break
            frames.append(encode_frame(frame))
        return len(frames), b"".join(frames)

    def _wrote(self, count: int) -> None:
        """The first frames of the queue."""
        self._sent_at = trio.current_time()
        for _ in range(count):
            self.queued_bytes -= len(self._queue.popleft())

    async def _open(self, to: Contact) -> MuxedStream:
        with trio.fail_after(OPEN_S):
            connection = await self._all.dial(to)
            stream = await connection.offer(self._all.protocol)
            # A small frame goes out with the proposal, and stays queued until the peer has agreed.
            written = stream.write_now(encode_frame(self._queue[0]))
            await connection.confirm(stream, self._all.protocol)
        if written:
            self._wrote(1)
        self.sending = stream
        self._session.streams.append(stream)
        self._all.spawn(lambda: self._session.read_own(stream, connection))
        return stream

    def _lost(self, reason: str) -> None:
        self._overflow = None
        self._queue.clear()
        self.queued_bytes = 0
        if self.sending is not None:
            self.sending.abort(reason)
            self.sending = None
        self._all.undelivered(self._peer, reason)
