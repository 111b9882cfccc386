"""The work protocol: one long-lived stream with each peer, frames both ways.

Either side opens it. If both do at once both streams are read, and each side sends on its own.
A second one is opened for what is urgent, when that would wait behind large frames.

What waits to be written is in two lanes: see work_lane.py. From a circuit they move to a direct
connection as soon as there is one: see `Lane.move`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import RemoteError, Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB
from formation_p2p.net.connection import Connection
from formation_p2p.net.limits import MAX_WORK_STREAMS, PeerLimitsTable
from formation_p2p.net.protocols.work_lane import Lane, WorkStream
from formation_p2p.net.transport.frames import MAX_WORK_FRAME_BYTES, FrameReader, encode_frame
from formation_p2p.net.transport.stream import MuxedStream

log = logging.getLogger(__name__)

# What is urgent does not wait behind more than this: on a stream of its own it is there at once,
# where a slow uplink takes longer for it than a lease lasts.
BACKLOG_BYTES: Final = 256 * KIB
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
    sessions: dict[PeerId, Session] = field(default_factory=dict, init=False)
    # Those that hold frames back, for a moment; None while all are sent at once.
    holding: list[Lane] | None = field(default=None, init=False)

    def hold(self) -> None:
        """What is sent until `send_held`, without a wait in between, is written together."""
        if self.holding is None:
            self.holding = []

    def send_held(self) -> None:
        lanes, self.holding = self.holding, None
        for lane in lanes or ():
            lane.send_held()

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

    def _session(self, peer: PeerId) -> Session:
        session = self.sessions.get(peer)
        if session is None:
            session = self.sessions[peer] = Session(self, peer)
        return session


class Session:
    """All work streams with one peer. There while a stream is open or a frame is queued."""

    def __init__(self, sessions: WorkSessions, peer: PeerId) -> None:
        self.all = sessions
        self.peer = peer
        self.streams: list[WorkStream] = []
        self.common, self.urgent = self._lanes = Lane(self), Lane(self)
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
                    began_s = time.thread_time()
                    self.all.received(connection.contact, frame)
                    bucket.charge(time.thread_time() - began_s)  # a thousand entries take 5 ms
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
