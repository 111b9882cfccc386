"""One stream of a muxed connection, with the windows of both its directions kept.

Source: hashicorp/yamux specification, "Flow control".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.units import KIB, MIB
from formation_p2p.net.transport.errors import StreamClosed, StreamEOF, StreamReset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from formation_p2p.net.transport.yamux import Muxer

# What is sure to come next on a stream: bodies that were asked for, each behind a known head.
#
# The muxer puts each where it is to lie, whether or not its reader waits for it at that moment:
# bulk data is decrypted there, and the reader is woken once for each body.


class Expected:
    """The bodies in the order in which they come. The owner of the stream bounds how many."""

    def __init__(self) -> None:
        self.whole: deque[memoryview] = deque()
        """Those that have come, the first one first."""
        self.is_wrong = False
        """Something else came: nothing is expected any more."""
        self._next: deque[tuple[bytes, Callable[[], memoryview]]] = deque()
        self._head_bytes = 0  # that have come of the next head
        self._body: memoryview | None = None  # that has begun
        self._body_bytes = 0  # that have come of it

    def add(self, head: bytes, room: Callable[[], memoryview]) -> None:
        """`room` is asked where the body goes once its head has come."""
        if not self.is_wrong:
            self._next.append((head, room))
            self._begin()

    def clear(self) -> None:
        """Expect nothing, and write no more into a body."""
        self._next.clear()
        self._head_bytes = 0
        self._body = None

    @property
    def rest(self) -> memoryview | None:
        """Where what comes next goes; None where that is no body."""
        return None if self._body is None else self._body[self._body_bytes :]

    def filled(self, size: int) -> None:
        """So many bytes of `rest` have come."""
        assert self._body is not None, "a body has begun"
        self._body_bytes += size
        if self._body_bytes == len(self._body):
            self.whole.append(self._body)
            self._body = None
            self._begin()

    def take(self, data: memoryview) -> memoryview:
        """What has come. Returns what is not expected, with what was taken for a head before it."""
        while data and not self.is_wrong:
            if (rest := self.rest) is not None:
                piece = data[: len(rest)]
                rest[: len(piece)] = piece
                self.filled(len(piece))
            elif self._next:
                head, _ = self._next[0]
                piece = data[: len(head) - self._head_bytes]
                if piece != head[self._head_bytes : self._head_bytes + len(piece)]:
                    data = memoryview(head[: self._head_bytes] + data)
                    self.clear()
                    self.is_wrong = True
                    break
                self._head_bytes += len(piece)
                self._begin()
            else:
                break
            data = data[len(piece) :]
        return data

    def _begin(self) -> None:
        """With the next body, where its head has come."""
        while self._body is None and self._next and self._head_bytes == len(self._next[0][0]):
            _, room = self._next.popleft()
            self._head_bytes = self._body_bytes = 0
            self._body = room()
            if not self._body:
                self.filled(0)


# The specification's initial window, and here the only one: what may be under way on a stream.
WINDOW_BYTES: Final = 256 * KIB
# Of a stream that carries much: a round trip of 30 ms at 1 Gbit/s. It may all lie unread.
BULK_WINDOW_BYTES: Final = 4 * MIB
# The most of a tunnel: a round trip of 30 ms at 270 Mbit/s. Less than of blobs, since a pair of
# members has up to 64 tunnels, and any of them may be left unread.
TUNNEL_WINDOW_BYTES: Final = MIB
# The window of a tunnel or a circuit is too small where half of it, or all, is read in fewer round
# trips than these: its sender waits. On a link that is near it never is, and what is under way
# there delays others.
NARROW_ROUND_TRIPS: Final = 3
# Data of one frame. Small, so that a small frame waits for little of a large one.
DATA_BYTES: Final = 16 * KIB
# Of the header before it.
HEADER_BYTES: Final = 12
# Of a stream that carries much: with its header, one Noise message. These wait for others.
BULK_DATA_BYTES: Final = 65_519 - HEADER_BYTES
# A stream closed by us and not by the peer is forgotten after so many ticks of the muxer.
LINGER_TICKS: Final = 4
# The flags of a frame.
SYN, ACK, FIN, RST = 1, 2, 4, 8


class StreamStalled(StreamReset):
    """The peer did not read for `window_stall_s`."""


class MuxedStream:
    """One stream. One task may read and one may write at a time.

    A read or write that is cancelled half-way leaves the stream in order for yamux, but maybe
    amid a frame of what is spoken on it: then `abort`.
    """

    def __init__(self, carrier: Muxer, stream_id: int, *, inbound: bool) -> None:
        self.carrier = carrier
        self._writer = carrier.writer
        self.stream_id = stream_id
        self.inbound = inbound
        self.is_counted = inbound  # among those that the peer may have open
        self.broken: str | None = None
        self.unread = Unread()
        self._expected = Expected()
        self._bulk = False
        self._unsent: deque[memoryview] = deque()  # of a stream that carries much
        self.window_bytes = WINDOW_BYTES
        self.allowed = WINDOW_BYTES  # what the peer may still send
        self._ungranted = 0  # read here and not yet told to the peer
        self._window = WINDOW_BYTES  # what we may still send
        self.arrived_bytes = 0
        self._own_room = False
        self._is_tunnel = False
        self._granted_s = -math.inf
        self.on_over: Callable[[], None] = lambda: None
        """Is called once, when it is over in both directions. Must not raise."""
        self._discards = False
        self._finished_here = False
        self.is_finished_there = False
        self._ticks_closed = 0
        self._arrivals = trio.lowlevel.ParkingLot()
        self._credits = trio.lowlevel.ParkingLot()

    async def read(self, n: int | None = None) -> bytes:
        """Up to `n` bytes, whatever is there. Raises StreamEOF, StreamReset."""
        await self._any()
        return self.read_now(len(self.unread) if n is None or n < 0 else n)

    def read_now(self, n: int) -> bytes:
        """As `read`, of what is there; nothing where it would wait."""
        taken = self.unread.take(n)
        self._took(len(taken))
        return taken

    async def read_pieces(self, n: int) -> list[memoryview]:
        """As `read`, where it lies: to be passed on."""
        await self._any()
        pieces = self.unread.take_pieces(n)
        self._took(sum(map(len, pieces)))
        return pieces

    async def read_into(self, into: memoryview) -> None:
        """Fill all of `into`, without a copy in between. Raises StreamEOF, StreamReset."""
        there = self.unread.take(len(into))
        into[: len(there)] = there
        self._took(len(there))
        if rest := into[len(there) :]:
            self._expected.add(b"", lambda: rest)
            try:
                await self.next_expected()
            finally:
                self._expected.clear()
                self._expected.whole.clear()  # it may have come in the moment of a cancellation

    def expect(self, head: bytes, room: Callable[[], memoryview]) -> None:
        """Have what comes next put into `room`, if that is `head` and then a body of that size.
        Several are expected in their order."""
        if self.unread:
            self._expected.is_wrong = True  # it came before it was asked for
        self._expected.add(head, room)

    async def next_expected(self) -> memoryview | None:
        """The next body that is expected, whole; None where the peer says something else, which is
        to be read. Raises StreamEOF, StreamReset."""
        expected = self._expected
        while not expected.whole:
            if expected.is_wrong or self.unread:
                return None
            await self.arrival()
        return expected.whole.popleft()

    async def _any(self) -> None:
        """Until something is there."""
        if self.unread:
            await trio.lowlevel.checkpoint()
        while not self.unread:
            await self.arrival()

    async def arrival(self) -> None:
        """Wait for something new. Raises StreamEOF, StreamReset."""
        if self.broken is not None:
            raise StreamReset(self.broken)
        if self.is_finished_there:
            raise StreamEOF("the peer has finished")
        await self._arrivals.park()

    def _took(self, size: int) -> None:
        self.carrier.was_read(size)
        self._grant(size)

    def _grant(self, size: int) -> None:
        self._ungranted += size
        # At half a window: fewer updates than reads, and the peer never runs dry.
        if self._ungranted >= self.window_bytes // 2 and not self.is_finished_there:
            self._widen_tunnel()
            self.allowed += self._ungranted
            self.carrier.update(self.stream_id, 0, self._ungranted)
            self._ungranted = 0

    def _widen_tunnel(self) -> None:
        """Where its sender waits for the far end of the link, and not for our reader."""
        if not self._is_tunnel or self.window_bytes >= TUNNEL_WINDOW_BYTES:
            return
        now_s, rtt_s = trio.current_time(), self.carrier.pings.least_rtt_s
        if now_s - self._granted_s < NARROW_ROUND_TRIPS * rtt_s:
            self._ungranted += self.window_bytes
            self.carrier.widened(self.window_bytes)
            self.window_bytes *= 2
        self._granted_s = now_s

    async def write(self, data: bytes | memoryview) -> None:
        """All of `data`. Raises StreamReset, StreamStalled, StreamClosed."""
        view = memoryview(data)
        if self._bulk:
            await self.write_pieces([view])
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

    async def write_pieces(self, pieces: Sequence[memoryview]) -> None:
        """As `write`, of a stream that carries much. The writer takes all in one turn of the loop
        where it can."""
        self._unsent.extend(filter(None, pieces))
        try:
            while self._unsent:
                if self._window == 0:
                    await self._wait_for_window()
                    continue  # the writer may have taken the rest by then
                self._check_writable()
                self._writer.put_bulk(self)
                await self._credits.park()
        finally:
            self._unsent.clear()

    def next_frame(self, most_bytes: int) -> tuple[bytes, list[memoryview]] | None:
        """What the writer takes of a stream that carries much. See BulkSource."""
        if self.broken is not None:
            return None
        room = min(self._window, most_bytes - HEADER_BYTES)
        pieces: list[memoryview] = []
        while self._unsent and room:
            piece = self._unsent.popleft()
            if len(piece) > room:
                self._unsent.appendleft(piece[room:])
                piece = piece[:room]
            room -= len(piece)
            pieces.append(piece)
        if not pieces:
            return None
        size = sum(map(len, pieces))
        self._window -= size
        if not (self._unsent and self._window):
            self._credits.unpark_all()
        return self.carrier.data_header(self.stream_id, size), pieces

    def write_now(self, data: bytes | memoryview) -> bool:
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
        self._finish()

    def get_remote_address(self) -> tuple[str, int] | None:
        return self.carrier.get_remote_address()

    # -- ours -----------------------------------------------------------------------------

    def send_much(self) -> None:
        """Large data will be written: it waits for all that other streams have to say."""
        self._bulk = True

    def own_room(self) -> None:
        """What lies unread here does not count with that of the other streams: the owner of this
        one waits for somebody else, for whom they need not wait. Call it once."""
        if self.stream_id in self.carrier.streams:  # else it is over
            self._own_room = True
            self.carrier.widened(WINDOW_BYTES)

    def leave(self) -> None:
        """As `close`, at once, and nothing more is read: what still comes is thrown away."""
        self._discards = True
        self._expected.clear()
        self.carrier.was_read(len(self.unread))
        self.unread.clear()
        self._finish()

    def take_much(self) -> None:
        """Large data was asked for: more of it may be under way. Call it once."""
        self.widen(BULK_WINDOW_BYTES)

    def widen(self, window_bytes: int) -> None:
        """So much may be under way."""
        more = window_bytes - self.window_bytes
        self.window_bytes += more
        self.allowed += more
        self.carrier.widened(more)
        self.carrier.update(self.stream_id, 0, more)

    def become_tunnel(self) -> None:
        """What two programs say to each other, for as long as they like: what lies unread has room
        of its own, a reader may pause for ever, one direction may end long before the other, and
        it takes none of the places of other streams. Its owner ends it. Call it once."""
        if self.stream_id in self.carrier.streams:
            self._is_tunnel = True
            self.own_room()
            self.send_much()
            self.carrier.carries_tunnels()
            self.carrier.count_no_more(self)

    @property
    def is_tunnel(self) -> bool:
        return self._is_tunnel

    @property
    def takes_much(self) -> bool:
        """Whether large data was asked for on it, which can be asked for again."""
        return self.window_bytes > WINDOW_BYTES and not self._is_tunnel

    def abort(self, reason: str) -> None:
        """Reset: both directions end at once, and the peer is told."""
        if self.broken is None:
            if not (self._finished_here and self.is_finished_there):
                self.carrier.update(self.stream_id, RST)
            self.end(reason)

    def _finish(self) -> None:
        if self.broken is None and not self._finished_here:
            self._finished_here = True
            self.carrier.update(self.stream_id, FIN)
            self._forget_if_done()

    def _forget_if_done(self) -> None:
        if self.broken is not None or (self._finished_here and self.is_finished_there):
            self.carrier.widened(WINDOW_BYTES - self.window_bytes)
            self.window_bytes = WINDOW_BYTES
            if self._own_room:
                self._own_room = False
                self.carrier.widened(-WINDOW_BYTES)
            self.carrier.forget(self)

    def _check_writable(self) -> None:
        if self.broken is not None:
            raise StreamReset(self.broken)
        if self._finished_here:
            raise StreamClosed("closed here for writing")

    async def _wait_for_window(self) -> None:
        self._check_writable()
        stall_s = math.inf if self._is_tunnel else self.carrier.parameters.window_stall_s
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
        self.arrived_bytes += size

    def arrived(self, data: memoryview) -> int:
        """Keep what came. Returns how much was kept."""
        if self.broken is not None or self._discards:
            return 0
        self._ticks_closed = 0  # the peer has more to say
        kept = self._expected.take(data)
        if len(kept) != len(data):  # more, where it was taken for a head before
            self._grant(len(data) - len(kept))
        if kept:
            self.unread.append(kept)
        if kept or self._expected.whole:
            self._arrivals.unpark_all()
        return len(kept)

    def room(self, most_bytes: int) -> memoryview | None:
        """Where what comes next goes, of that much: for the muxer to put it there."""
        if self.broken is not None or self._discards or (rest := self._expected.rest) is None:
            return None
        return rest[:most_bytes]

    def filled(self, size: int) -> None:
        """So much of `room` was."""
        self._ticks_closed = 0
        self._expected.filled(size)
        self._grant(size)
        if self._expected.whole:
            self._arrivals.unpark_all()

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
        self._expected.clear()
        if drop:
            self.carrier.was_read(len(self.unread))
            self.unread.clear()
        self._arrivals.unpark_all()
        self._credits.unpark_all()
        self._forget_if_done()

    def tick(self) -> None:
        """Called every `tick_s`: a peer that never finishes must not keep the stream for ever."""
        self._ticks_closed += self._finished_here and not self._is_tunnel
        if self._ticks_closed > LINGER_TICKS:
            self.abort("the peer did not close it")


# Less is copied together: each piece costs a turn where it is passed on.
LEAST_PIECE_BYTES: Final = 4 * KIB


class Unread:
    """What has arrived on a stream and is not read yet.

    Most of it lies where it was decrypted, and is copied once, when it is read, or never, where it
    is passed on. That keeps the message that it came in: so it is done where it is half of that at
    least, and what is kept is at most twice what is counted.
    """

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self._small = bytearray()  # after the pieces
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, data: memoryview) -> None:
        self._size += len(data)
        if len(data) < LEAST_PIECE_BYTES or 2 * len(data) < _held_bytes(data):
            self._small += data
            return
        self._gather()
        self._pieces.append(data)

    def take_pieces(self, most_bytes: int) -> list[memoryview]:
        """The first so many bytes, or all that are there, where they lie."""
        if self._small:
            self._gather()
        taken: list[memoryview] = []
        left = min(most_bytes, self._size)
        self._size -= left
        while left:
            piece = self._pieces.popleft()
            if rest := piece[left:]:
                is_held = 2 * len(rest) >= _held_bytes(rest)
                self._pieces.appendleft(rest if is_held else memoryview(bytes(rest)))
                piece = piece[:left]
            left -= len(piece)
            taken.append(piece)
        return taken

    def take(self, most_bytes: int) -> bytes:
        """As `take_pieces`, in one."""
        if self._pieces:
            return b"".join(self.take_pieces(most_bytes))
        taken = bytes(self._small[:most_bytes])
        del self._small[:most_bytes]
        self._size -= len(taken)
        return taken

    def clear(self) -> None:
        self._pieces.clear()
        self._small.clear()
        self._size = 0

    def _gather(self) -> None:
        if self._small:
            self._pieces.append(memoryview(bytes(self._small)))
            self._small.clear()


def _held_bytes(piece: memoryview) -> int:
    """Of what lies under it."""
    return len(piece.obj) if isinstance(piece.obj, bytes) else len(piece)
