"""One stream of a muxed connection, with the windows of both its directions kept.

Source: hashicorp/yamux specification, "Flow control".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from libp2p.io.abc import ReadWriteCloser
from libp2p.network.stream.exceptions import StreamClosed, StreamEOF, StreamReset

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.units import KIB, MIB

if TYPE_CHECKING:
    from formation_p2p.host.net.transport.yamux import Muxer

# The specification's initial window, and here the only one: what may be under way on a stream.
WINDOW_BYTES: Final = 256 * KIB
# Of a stream that carries much: a round trip of 30 ms at 1 Gbit/s. It may all lie unread.
BULK_WINDOW_BYTES: Final = 4 * MIB
# Data of one frame. Small, so that a small frame waits for little of a large one.
DATA_BYTES: Final = 16 * KIB
# Of a stream that carries much: with its header, one Noise message. These wait for others.
BULK_DATA_BYTES: Final = 65_519 - 12
# A stream closed by us and not by the peer is forgotten after so many ticks of the muxer.
LINGER_TICKS: Final = 4
# The flags of a frame.
SYN, ACK, FIN, RST = 1, 2, 4, 8


class StreamStalled(StreamReset):
    """The peer did not read for `window_stall_s`."""


class MuxedStream(ReadWriteCloser):
    """One stream. One task may read and one may write at a time.

    A read or write that is cancelled half-way leaves the stream in order for yamux, but maybe
    amid a frame of what is spoken on it: then `abort`.
    """

    def __init__(self, carrier: Muxer, stream_id: int, *, inbound: bool) -> None:
        self.carrier = carrier
        self._writer = carrier.writer
        self.stream_id = stream_id
        self.inbound = inbound
        self.broken: str | None = None
        self.unread = bytearray()
        self._into: memoryview | None = None  # where what arrives goes first
        self._bulk = False
        self._unsent = memoryview(b"")  # of a stream that carries much
        self._window_bytes = WINDOW_BYTES
        self.allowed = WINDOW_BYTES  # what the peer may still send
        self._ungranted = 0  # read here and not yet told to the peer
        self._window = WINDOW_BYTES  # what we may still send
        self._finished_here = False
        self.is_finished_there = False
        self._ticks_closed = 0
        self._arrivals = trio.lowlevel.ParkingLot()
        self._credits = trio.lowlevel.ParkingLot()

    async def read(self, n: int | None = None) -> bytes:
        """Up to `n` bytes, whatever is there. Raises StreamEOF, StreamReset."""
        if self.unread:
            await trio.lowlevel.checkpoint()
        while not self.unread:
            await self._arrival()
        return self.read_now(len(self.unread) if n is None or n < 0 else n)

    def read_now(self, n: int) -> bytes:
        """As `read`, of what is there; nothing where it would wait."""
        taken = bytes(self.unread[:n])
        self._took(len(taken))
        return taken

    async def read_into(self, into: memoryview) -> None:
        """Fill all of `into`, without a copy in between. Raises StreamEOF, StreamReset."""
        size = min(len(self.unread), len(into))
        with memoryview(self.unread) as unread:
            into[:size] = unread[:size]
        self._took(size)
        self._into = into[size:]
        try:
            while self._into:
                await self._arrival()
        finally:
            self._into = None

    async def _arrival(self) -> None:
        if self.broken is not None:
            raise StreamReset(self.broken)
        if self.is_finished_there:
            raise StreamEOF("the peer has finished")
        await self._arrivals.park()

    def _took(self, size: int) -> None:
        del self.unread[:size]
        self.carrier.was_read(size)
        self._grant(size)

    def _grant(self, size: int) -> None:
        self._ungranted += size
        # At half a window: fewer updates than reads, and the peer never runs dry.
        if self._ungranted >= self._window_bytes // 2 and not self.is_finished_there:
            self.allowed += self._ungranted
            self.carrier.update(self.stream_id, 0, self._ungranted)
            self._ungranted = 0

    async def write(self, data: bytes | memoryview) -> None:
        """All of `data`. Raises StreamReset, StreamStalled, StreamClosed."""
        view = memoryview(data)
        if self._bulk:
            await self._write_bulk(view)
            return
        while view:
            if self._window == 0:
                await self._wait_for_window()
            await self._writer.room()
            self._check_writable()
            size = min(len(view), self._window, DATA_BYTES)
            if size == 0:
                continue  # the window went while there was no room
            self._window -= size
            self.carrier.send_data(self.stream_id, view[:size])
            view = view[size:]

    async def _write_bulk(self, view: memoryview) -> None:
        """Let the writer take it, which it does in one turn of the loop where it can."""
        self._unsent = view
        try:
            while self._unsent:
                if self._window == 0:
                    await self._wait_for_window()
                self._check_writable()
                self._writer.put_bulk(self)
                await self._credits.park()
        finally:
            self._unsent = memoryview(b"")

    def next_frame(self) -> list[bytes | memoryview]:
        """What the writer takes of a stream that carries much. See BulkSource."""
        size = min(len(self._unsent), self._window, BULK_DATA_BYTES)
        if size == 0 or self.broken is not None:
            return []
        frame = self._unsent[:size]
        self._unsent = self._unsent[size:]
        self._window -= size
        if not (self._unsent and self._window):
            self._credits.unpark_all()
        return [self.carrier.data_header(self.stream_id, size), frame]

    def write_now(self, data: bytes) -> bool:
        """Write all of a short message, or nothing of it: False where `write` would have to wait.

        Raises StreamReset, StreamClosed.
        """
        self._check_writable()
        if len(data) > min(self._window, DATA_BYTES) or not self._writer.has_room:
            return False
        self._window -= len(data)
        self.carrier.send_data(self.stream_id, memoryview(data))
        return True

    async def close(self) -> None:
        """Finish writing. The peer may still write; a while later the stream is reset."""
        await trio.lowlevel.checkpoint()
        if self.broken is None and not self._finished_here:
            self._finished_here = True
            self.carrier.update(self.stream_id, FIN)
            self._forget_if_done()

    def get_remote_address(self) -> tuple[str, int] | None:
        return self.carrier.get_remote_address()

    # -- ours -----------------------------------------------------------------------------

    def send_much(self) -> None:
        """Large data will be written: it waits for all that other streams have to say."""
        self._bulk = True

    def take_much(self) -> None:
        """Large data was asked for: more of it may be under way. Call it once."""
        more = BULK_WINDOW_BYTES - WINDOW_BYTES
        self._window_bytes += more
        self.allowed += more
        self.carrier.widened(more)
        self.carrier.update(self.stream_id, 0, more)

    def abort(self, reason: str) -> None:
        """Reset: both directions end at once, and the peer is told."""
        if self.broken is None:
            if not (self._finished_here and self.is_finished_there):
                self.carrier.update(self.stream_id, RST)
            self.end(reason)

    def _forget_if_done(self) -> None:
        if self.broken is not None or (self._finished_here and self.is_finished_there):
            self.carrier.widened(WINDOW_BYTES - self._window_bytes)
            self._window_bytes = WINDOW_BYTES
            self.carrier.forget(self)

    def _check_writable(self) -> None:
        if self.broken is not None:
            raise StreamReset(self.broken)
        if self._finished_here:
            raise StreamClosed("closed here for writing")

    async def _wait_for_window(self) -> None:
        self._check_writable()
        stall_s = self.carrier.parameters.window_stall_s
        with trio.move_on_after(stall_s) as deadline:
            await self._credits.park()
        if deadline.cancelled_caught:
            self.abort("the peer does not read")
            raise StreamStalled(f"the peer did not read for {stall_s:.0f} s")

    # -- the muxer's side -----------------------------------------------------------------

    def announced(self, size: int) -> None:
        """A data frame of `size` bytes begins. Raises ProtocolViolation past the window."""
        if size and self.is_finished_there:
            raise ProtocolViolation("data on a stream that its sender had finished")
        if size > self.allowed:
            raise ProtocolViolation(f"{size} bytes on a stream with a window of {self.allowed}")
        self.allowed -= size

    def arrived(self, data: memoryview) -> int:
        """Keep what came. Returns how much was kept."""
        if self.broken is not None:
            return 0
        if self._into:
            size = min(len(data), len(self._into))
            self._into[:size] = data[:size]
            self._into = self._into[size:]
            data = data[size:]
            self._grant(size)
            if self._into:
                return 0
        self.unread += data
        self._arrivals.unpark_all()
        return len(data)

    def credited(self, size: int) -> None:
        self._window += size
        self._credits.unpark_all()

    def finish_there(self) -> None:
        self.is_finished_there = True
        self.allowed = 0
        self._arrivals.unpark_all()
        self._forget_if_done()

    def end(self, reason: str, *, drop: bool = True) -> None:
        """Everyone who waits on this stream is told. What was unread is dropped, unless the peer
        ended in good order: then what it sent before it said goodbye can still be read.
        """
        self.broken = reason
        if drop:
            self.carrier.was_read(len(self.unread))
            self.unread.clear()
        self._arrivals.unpark_all()
        self._credits.unpark_all()
        self._forget_if_done()

    def tick(self) -> None:
        """Called every `tick_s`: a peer that never finishes must not keep the stream for ever."""
        self._ticks_closed += self._finished_here
        if self._ticks_closed > LINGER_TICKS:
            self.abort("the peer did not close it")
