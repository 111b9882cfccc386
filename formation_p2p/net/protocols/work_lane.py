"""What waits to be written to a peer in the work protocol: see work.py."""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import RemoteError
from formation_p2p.core.units import KIB
from formation_p2p.net.connection import Connection
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import MAX_LENGTH_BYTES, FrameReader, encode_frame
from formation_p2p.net.transport.stream import DATA_BYTES, MuxedStream, StreamStalled

if TYPE_CHECKING:
    from formation_p2p.net.protocols.work import Session


@dataclass(eq=False)
class WorkStream:
    """One open stream of a work session, as `work.py` has several with a peer. `frames` is there
    while the stream is read."""

    stream: MuxedStream
    connection: Connection
    frames: FrameReader | None = None
    is_handing_out: bool = False

    @property
    def is_relayed(self) -> bool:
        return self.connection.via is not None

    @property
    def is_dry(self) -> bool:
        """Whether all frames that have arrived were handed out."""
        is_read = not self.stream.unread if self.frames is None else self.frames.is_dry
        return is_read and not self.is_handing_out


log = logging.getLogger(__name__)

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


class Lane:
    """What waits to be written to a peer, in order, and the stream it is written to.

    A task writes while there is something to write; what ends it early is told once, for all
    that was queued.
    """

    def __init__(self, session: Session) -> None:
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
        self._held: list[tuple[Contact, bytes]] = []  # for a moment: see `WorkSessions.hold`
        self._held_bytes = 0
        self.writer: trio.CancelScope | None = None
        self._overflow: str | None = None

    def send(self, to: Contact, frame: bytes) -> None:
        if self._overflow is not None:
            return  # lost with the others, which is about to be told
        holding, size = self._all.holding, len(frame) + MAX_LENGTH_BYTES
        if self._held_bytes + size > DATA_BYTES or not self._is_free:
            self.send_held()
        if size > DATA_BYTES or holding is None or not self._is_free:
            if not (self._is_free and self._written([frame])):
                self._put(to, frame)
            return
        if not self._held:
            holding.append(self)
        self._held.append((to, frame))
        self._held_bytes += size

    def send_held(self) -> None:
        """Those that were held back, in one message."""
        held, self._held, self._held_bytes = self._held, [], 0
        if held and not (self._is_free and self._written([frame for _, frame in held])):
            for to, frame in held:
                self._put(to, frame)

    @property
    def _is_free(self) -> bool:
        """Whether the stream waits for nothing: no task is needed to write a small frame."""
        return self.writer is None and self.sending is not None and not self._turn.locked()

    def _written(self, frames: list[bytes]) -> bool:
        """Small ones, at once."""
        assert self.sending is not None
        try:
            written = self.sending.stream.write_now(b"".join(map(encode_frame, frames)))
        except IOException:
            return False  # it has just broken, which is about to be told of all that was sent
        if written:
            self._sent_at = trio.current_time()
        return written

    def _put(self, to: Contact, frame: bytes) -> None:
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
        self._held.clear()
        self.queued_bytes = self._held_bytes = 0
        if self.sending is not None:
            self.sending.stream.abort(reason)
            self.sending = None
