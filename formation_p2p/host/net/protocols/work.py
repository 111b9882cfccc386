"""The work protocol: one long-lived stream with each peer, frames both ways.

Either side opens it. If both do at once both streams are read, and each side sends on its own.
A second one is opened for what is urgent, when that would wait behind large frames.

From a circuit they move to a direct connection as soon as there is one: see `_Lane.move`.
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

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import RemoteError, Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB
from formation_p2p.host.net.connection import Connection
from formation_p2p.host.net.limits import MAX_WORK_STREAMS, PeerLimitsTable
from formation_p2p.host.net.protocols.frames import MAX_WORK_FRAME_BYTES, FrameReader, encode_frame
from formation_p2p.host.net.protocols.work_stream import WorkStream
from formation_p2p.host.net.transport.errors import IOException
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
# To hear that the peer has got all that was written on a circuit, while nothing more is written. A
# circuit that takes longer than that to answer is moved from at a quieter time.
SETTLE_S: Final = 5.0
QUIET_S: Final = 1.0
# To hand out what is left on a circuit, and for the other end to move too, once one end has moved.
LEFT_S: Final = 60.0
# Between two looks where nothing tells of a change.
LOOK_S: Final = 0.1


@dataclass(eq=False)
class WorkSessions:
    """The sessions with all peers."""

    protocol: str
    dial: Callable[[Contact], Awaitable[Connection]]
    limits: PeerLimitsTable
    spawn: Callable[[Callable[[], Awaitable[None]]], None]
    received: Callable[[Contact, bytes], None]
    undelivered: Callable[[PeerId, str], None]
    direct_to: Callable[[PeerId], Connection | None]
    left_s: float = LEFT_S
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
            await session.read(session.add(stream, connection))

    def upgraded(self, peer: PeerId) -> None:
        """There is a direct connection to a peer, beside a circuit."""
        if (session := self.sessions.get(peer)) is not None:
            session.upgraded()

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
        self.streams: list[WorkStream] = []
        self.common, self.urgent = self._lanes = _Lane(self), _Lane(self)
        self._changed = trio.lowlevel.ParkingLot()

    def add(self, stream: MuxedStream, connection: Connection) -> WorkStream:
        self.streams.append(added := WorkStream(stream, connection))
        return added

    def free_stream(self) -> WorkStream | None:
        """An open stream that nothing is sent on; none of a circuit beside a direct connection."""
        taken = [each for lane in self._lanes for each in (lane.sending, lane.moving_to)]
        free = [c for c in self.streams if c.stream.broken is None and c not in taken]
        if any(each.is_relayed for each in free) and self.all.direct_to(self.peer) is not None:
            free = [each for each in free if not each.is_relayed]
        return free[0] if free else None

    def tidy(self) -> None:
        if not self.streams and all(lane.writer is None for lane in self._lanes):
            self.all.sessions.pop(self.peer, None)

    def upgraded(self) -> None:
        for lane in self._lanes:
            if lane.sending is not None and lane.sending.is_relayed:
                self.all.spawn(lane.move)

    async def open(self, connection: Connection, first: bytes = b"") -> tuple[WorkStream, bool]:
        """A stream of ours, and whether `first` went out with the proposal, which a small frame
        does, and arrives once the peer has agreed. Raises RemoteError, IOException."""
        stream = await connection.offer(self.all.protocol)
        written = bool(first) and stream.write_now(encode_frame(first))
        await connection.confirm(stream, self.all.protocol)
        opened = self.add(stream, connection)
        self.all.spawn(lambda: self._read_own(opened))
        return opened, written

    def lost(self, reason: str) -> None:
        for lane in self._lanes:
            lane.lost_too(reason)
        self.all.undelivered(self.peer, reason)

    # -- reading --------------------------------------------------------------------------

    async def read(self, opened: WorkStream) -> None:
        """A stream that is among `streams`. Raises RemoteError, and what `received` raises."""
        stream, connection = opened.stream, opened.connection
        try:
            await connection.wait_identified()
            limits = self.all.limits.of(self.peer)
            with FrameReader(stream, limits, MAX_WORK_FRAME_BYTES) as opened.frames:
                while (frame := await opened.frames.next()) is not None:
                    opened.is_handing_out = True
                    bucket = limits.work_bucket
                    await bucket.wait()
                    if len(self.streams) > 1 and not opened.is_relayed:
                        await self._circuits_dry()
                    began_s = time.perf_counter()
                    self.all.received(connection.contact, frame)
                    bucket.charge(time.perf_counter() - began_s)  # a thousand entries take 5 ms
                    opened.is_handing_out = False
                    self._changed.unpark_all()
            if opened.is_relayed:
                await self._left(opened)
            else:
                stream.abort("the peer finished the session")
        finally:
            self.streams.remove(opened)
            self._changed.unpark_all()
            for lane in self._lanes:
                lane.ended(opened)
            self.tidy()

    async def _circuits_dry(self) -> None:
        """The peer has moved here from a circuit, on which all that it sent before has arrived.
        Raises Unreachable: that stays there, so this stream ends too, which tells the peer."""
        if not await self._comes(lambda: all(s.is_dry for s in self.streams if s.is_relayed)):
            for each in self.streams:
                if each.is_relayed:
                    each.stream.abort("what came here is not handed out")
            raise Unreachable("what came on the circuit before is not handed out")

    async def _left(self, opened: WorkStream) -> None:
        """The peer has moved from this stream: once we have too, or after a time, it is over."""
        stream, lanes = opened.stream, self._lanes
        if await self._comes(lambda: stream.broken or all(x.sending is not opened for x in lanes)):
            await stream.close()
        else:
            stream.abort("the peer has moved from the circuit")

    async def _comes(self, is_so: Callable[[], object]) -> bool:
        """Whether that is so in time."""
        with trio.move_on_after(self.all.left_s):
            while not is_so():
                with trio.move_on_after(LOOK_S):
                    await self._changed.park()
        return bool(is_so())

    async def leave(self, opened: WorkStream) -> None:
        """Finish a stream that a lane may have moved from, if both have."""
        self._changed.unpark_all()
        if all(lane.sending is not opened for lane in self._lanes):
            await opened.stream.close()

    async def _read_own(self, opened: WorkStream) -> None:
        try:
            await self.read(opened)
        except RemoteError as error:
            log.debug("the work stream with %s ends: %s", self.peer, error)
            opened.stream.abort(str(error))


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
        self.sending: WorkStream | None = None
        self.queued_bytes = 0
        self.moving_to: WorkStream | None = None
        self._is_moving = False
        self._turn = trio.Lock()  # to write, or to move
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
        if self._turn.locked():
            return False
        try:
            written = self.sending.stream.write_now(encode_frame(frame))
        except IOException:
            return False  # it has just broken, which is about to be told of all that was sent
        if written:
            self._sent_at = trio.current_time()
        return written

    def ended(self, over: WorkStream) -> None:
        """A stream with the peer is over."""
        if over is self.sending and self.writer is None:
            self.sending = None
            if trio.current_time() - self._sent_at < UNSURE_S:
                self._lost(over.stream.broken or "the peer finished the session")

    async def _write(self, to: Contact) -> None:
        lost: str | None = None
        own = self.writer
        assert own is not None
        with own:
            try:
                # The one sent on before, for as long as it is open, so that frames stay in order.
                self.sending = self.sending or self._session.free_stream()
                self.sending = self.sending or await self._open(to)
                while self._queue:
                    if self._turn.locked():
                        await self._turn.acquire()
                    else:  # which is all but always so, and saves a turn of the loop
                        self._turn.acquire_nowait()
                    try:
                        count, data = self._next()
                        await self.sending.stream.write(data)
                        self._wrote(count)
                    finally:
                        self._turn.release()
            except trio.TooSlowError:
                lost = f"no session within {OPEN_S:.0f} s"
            except (RemoteError, IOException) as error:
                lost = str(error)
                if isinstance(error, StreamStalled) and self.sending is not None:
                    # It would stall whatever is sent next as well.
                    self.sending.connection.abort(lost)
            except Exception as error:
                # Whatever it is, the frames are lost and someone must be told.
                log.exception("writing to %s failed", self._peer)
                lost = repr(error)
        if self.writer is not own:
            return  # told of with what the other lane had
        self.writer = None
        lost = self._overflow or lost
        if lost is None and self.sending is not None:
            lost = self.sending.stream.broken  # it broke under the last frame
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

    async def _open(self, to: Contact) -> WorkStream:
        with trio.fail_after(OPEN_S):
            connection = await self._all.dial(to)
            # A frame that goes out with the proposal stays queued until the peer has agreed.
            opened, written = await self._session.open(connection, self._queue[0])
        if written:
            self._wrote(1)
        if opened.is_relayed and self._all.direct_to(self._peer) is not None:
            self._all.spawn(self.move)  # it has come meanwhile
        return opened

    async def move(self) -> None:
        """From a circuit to the direct connection, between two frames.

        A pong shows that the peer has all that was written before the ping; the peer hands that out
        before what comes directly. So frames stay in order, and none is lost or sent again.
        """
        old, direct = self.sending, self._all.direct_to(self._peer)
        if old is None or not old.is_relayed or direct is None or self._is_moving:
            return
        self._is_moving = True
        try:
            with trio.fail_after(OPEN_S):
                self.moving_to = self._session.free_stream()
                if self.moving_to is None:
                    self.moving_to, _ = await self._session.open(direct)
                while True:
                    if await old.connection.round_trip() <= QUIET_S:
                        break
                    await trio.sleep(QUIET_S)
            await self._settle(old, self.moving_to)
        except (RemoteError, IOException, trio.TooSlowError) as error:
            # Either connection ends, which is told where it matters, or the circuit is too slow.
            log.debug("the work stream with %s stays on its circuit: %s", self._peer, error)
        finally:
            self.moving_to, self._is_moving = None, False
        await self._session.leave(old)

    async def _settle(self, old: WorkStream, new: WorkStream) -> None:
        async with self._turn:
            try:
                with trio.fail_after(SETTLE_S):
                    await old.connection.round_trip()
            except trio.TooSlowError:
                # What was sent may be lost. The end of the connection tells that.
                old.connection.abort("the circuit does not answer any more")
                raise
            if self.sending is old and new.stream.broken is None:
                self.sending = new

    def lost_too(self, reason: str) -> None:
        """The other lane is told to be lost: so is what this one has for a broken stream, or for
        none yet. Told of later, it would take with it what is sent from now on."""
        if self.sending is None or self.sending.stream.broken is not None:
            writer, self.writer = self.writer, None
            self._forget(reason)
            if writer is not None:
                writer.cancel()

    def _lost(self, reason: str) -> None:
        self._forget(reason)
        self._session.lost(reason)

    def _forget(self, reason: str) -> None:
        self._overflow = None
        self._queue.clear()
        self.queued_bytes = 0
        if self.sending is not None:
            self.sending.stream.abort(reason)
            self.sending = None
