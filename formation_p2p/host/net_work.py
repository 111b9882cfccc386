"""The work protocol: one long-lived stream with each peer, frames both ways.

Either side opens it. If both do at once both streams are read, and each side sends on its own.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import trio
from libp2p.io.exceptions import IOException

from formation_p2p.effects import Contact
from formation_p2p.errors import RemoteError
from formation_p2p.host.frames import MAX_WORK_FRAME_BYTES, encode_frame
from formation_p2p.host.net_channel import Channel, StreamStalled
from formation_p2p.host.net_connection import Connection
from formation_p2p.host.net_frames import FrameReader
from formation_p2p.host.net_shares import MAX_WORK_STREAMS, Shares
from formation_p2p.identity import PeerId
from formation_p2p.units import MIB

log = logging.getLogger(__name__)

# Four of the largest frames, or the events of some hundred tasks a second for the time that a
# peer may stall.
MAX_QUEUED_BYTES: Final = 64 * MIB
MAX_QUEUED_FRAMES: Final = 4096
# To reach a peer and agree on the protocol, before what is queued for it is given up.
OPEN_S: Final = 20.0
# Nobody acknowledges frames here: those written so shortly before a stream broke may be lost.
UNSURE_S: Final = 30.0

Received = Callable[[Contact, bytes], None]
Undelivered = Callable[[PeerId, str], None]
Spawn = Callable[[Callable[[], Awaitable[None]]], None]


class WorkSessions:
    """The sessions with all peers."""

    def __init__(
        self,
        protocol: str,
        dial: Callable[[Contact], Awaitable[Connection]],
        shares: Shares,
        spawn: Spawn,
        received: Received,
        undelivered: Undelivered,
    ) -> None:
        self.protocol = protocol
        self.dial = dial
        self.shares = shares
        self.spawn = spawn
        self.received = received
        self.undelivered = undelivered
        self.sessions: dict[PeerId, _Session] = {}

    def send(self, to: Contact, frame: bytes) -> None:
        """Queue one frame. If it is lost, `undelivered` is called later, never from in here."""
        self._session(to.peer_id).send(to, frame)

    async def serve(self, channel: Channel, connection: Connection) -> None:
        """Read a stream that the peer opened, until it ends."""
        with self.shares.of(connection.peer).stream("work", MAX_WORK_STREAMS):
            session = self._session(connection.peer)
            session.channels.append(channel)
            await session.read(channel, connection)

    def _session(self, peer: PeerId) -> _Session:
        session = self.sessions.get(peer)
        if session is None:
            session = self.sessions[peer] = _Session(self, peer)
        return session


class _Session:
    """All work streams with one peer, and what waits to be written to it.

    There while a stream is open or a frame is queued. A task writes while there is something to
    write; what ends it early is told once, for all that was queued.
    """

    def __init__(self, sessions: WorkSessions, peer: PeerId) -> None:
        self._all = sessions
        self._peer = peer
        self.channels: list[Channel] = []
        self._sending: Channel | None = None
        self._sent_at = -math.inf
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._writer: trio.CancelScope | None = None
        self._overflow: str | None = None

    # -- writing --------------------------------------------------------------------------

    def send(self, to: Contact, frame: bytes) -> None:
        if self._overflow is not None:
            return  # lost with the others, which is about to be told
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        if len(self._queue) > MAX_QUEUED_FRAMES or self._queued_bytes > MAX_QUEUED_BYTES:
            self._overflow = f"{len(self._queue)} frames, {self._queued_bytes} bytes are queued"
        if self._writer is None:
            self._writer = trio.CancelScope()
            self._all.spawn(lambda: self._write(to))
        if self._overflow is not None:
            self._writer.cancel()

    async def _write(self, to: Contact) -> None:
        lost: str | None = None
        assert self._writer is not None
        with self._writer:
            try:
                channel = self._choose() or await self._open(to)
                while self._queue:
                    await channel.write(encode_frame(self._queue[0]))
                    self._wrote()
            except trio.TooSlowError:
                lost = f"no session within {OPEN_S:.0f} s"
            except (RemoteError, IOException) as error:
                lost = str(error)
                if isinstance(error, StreamStalled):
                    channel.carrier.abort(lost)  # it would stall whatever is sent next as well
            except Exception as error:
                # Whatever it is, the frames are lost and someone must be told.
                log.exception("writing to %s failed", self._peer)
                lost = repr(error)
        self._writer = None
        lost = self._overflow or lost
        if lost is None and self._sending is not None:
            lost = self._sending.broken  # it broke under the last frame
        if lost is not None:
            self._lost(lost)
        self._tidy()

    def _wrote(self) -> None:
        """The first frame of the queue."""
        self._sent_at = trio.current_time()
        self._queued_bytes -= len(self._queue.popleft())

    def _choose(self) -> Channel | None:
        """The stream sent on before, for as long as it is open, so that frames stay in order."""
        if self._sending is None:
            self._sending = next((c for c in self.channels if c.broken is None), None)
        return self._sending

    async def _open(self, to: Contact) -> Channel:
        with trio.fail_after(OPEN_S):
            connection = await self._all.dial(to)
            channel = await connection.offer(self._all.protocol)
            # A small frame goes out with the proposal, and stays queued until the peer has agreed.
            written = channel.write_now(encode_frame(self._queue[0]))
            await connection.confirm(channel, self._all.protocol)
        if written:
            self._wrote()
        self._sending = channel
        self.channels.append(channel)
        self._all.spawn(lambda: self._read_own(channel, connection))
        return channel

    def _lost(self, reason: str) -> None:
        self._overflow = None
        self._queue.clear()
        self._queued_bytes = 0
        if self._sending is not None:
            self._sending.abort(reason)
            self._sending = None
        self._all.undelivered(self._peer, reason)

    # -- reading --------------------------------------------------------------------------

    async def read(self, channel: Channel, connection: Connection) -> None:
        """A stream that is among `channels`. Raises RemoteError, and what `received` raises."""
        try:
            await connection.wait_identified()
            share = self._all.shares.of(self._peer)
            with FrameReader(channel, share, MAX_WORK_FRAME_BYTES) as frames:
                while (frame := await frames.next()) is not None:
                    await share.work_pace.wait()
                    self._all.received(connection.contact, frame)
            channel.abort("the peer finished the session")
        finally:
            self._ended(channel)

    async def _read_own(self, channel: Channel, connection: Connection) -> None:
        try:
            await self.read(channel, connection)
        except RemoteError as error:
            log.debug("the work stream with %s ends: %s", self._peer, error)
            channel.abort(str(error))

    def _ended(self, channel: Channel) -> None:
        self.channels.remove(channel)
        if channel is self._sending and self._writer is None:
            self._sending = None
            if trio.current_time() - self._sent_at < UNSURE_S:
                self._lost(channel.broken or "the peer finished the session")
        self._tidy()

    def _tidy(self) -> None:
        if not self.channels and self._writer is None:
            del self._all.sessions[self._peer]
