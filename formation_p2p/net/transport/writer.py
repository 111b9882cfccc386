"""What a muxed connection has to write, in which order, and the one task that writes it.

Frames wait here. Streams that carry much keep theirs, and are asked for one at a time when no frame
waits. Only the writer touches the socket and nothing cancels it but the end of the connection, so
nothing is ever written by halves.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

import trio

from formation_p2p.core.units import KIB, MIB
from formation_p2p.net.transport.errors import ConnectionClosedError
from formation_p2p.net.transport.tcp import (
    FAST_UNSENT_BYTES,
    MOST_UNSENT_BYTES,
    UNSENT_BYTES,
)

if TYPE_CHECKING:
    from formation_p2p.net.transport.upgrade import NoiseStream

log = logging.getLogger(__name__)

# What may wait for the socket before writers wait too: a few Noise messages, where a lease is
# shared with the peer.
OUTBOX_BYTES: Final = 128 * KIB
STRANGERS_OUTBOX_BYTES: Final = 32 * KIB
# Handed to the kernel at once. What is said meanwhile waits for that: 2 s at 1 Mbit/s.
WRITTEN_MESSAGES: Final = 2
# The kernel takes longer to take them: the link is slow. One of 1 Gbit/s is fast. A machine that is
# busy with other work pauses for as long now and then: it takes two such writes in a row, or one
# that takes four times as long.
SLOW_S: Final = 0.005
VERY_SLOW_S: Final = 4 * SLOW_S
# So often in a row it took less: more than the kernel has room for, so that the link carried it.
FAST_WRITES: Final = 16
# Of a link that has shown that it is fast: each time costs a turn of the loop. A chunk of a blob
# goes in two.
FAST_WRITTEN_MESSAGES: Final = 9
# Those were taken in less than this: at 2 Gbit/s.
VERY_FAST_S: Final = SLOW_S / 2
# Of a link that has shown this as often. A chunk goes in one.
MOST_WRITTEN_MESSAGES: Final = 18
# One Noise message holds 65,519 bytes.
BATCH_BYTES: Final = 65_519
# A frame up to here goes out at once where nothing waits before it: a request must not wait for
# a task to be scheduled. Larger ones are worth to be put together. Small ones that wait are kept
# in pieces of this size: many have twelve bytes, and one by one would take five times as much.
NOW_BYTES: Final = 4 * KIB


# Of what streams carry that carry much, written and not read by the peer, where programs speak to
# each other beside it and the link is near: kernels hold some MiB, and a small frame waits for all
# of it, 20 ms where 200 MB/s are read. Less leaves the link idle between two turns of the loops.
MOST_AHEAD_BYTES: Final = MIB
# After so much of it the peer is asked whether it has read it, by a ping.
MARK_EVERY_BYTES: Final = 256 * KIB


class BulkSource(Protocol):
    """A stream that carries much."""

    def next_frame(self, most_bytes: int) -> tuple[bytes, list[memoryview]] | None:
        """The header and the data of its next frame, of at most so many bytes in all, which stay as
        they are until the caller waits for something; None where there is none now."""


class Writer:
    """`run` it until the connection ends; `stalled` is called where the peer takes nothing for
    `stall_s`."""

    def __init__(
        self, connection: NoiseStream, stall_s: float, stalled: Callable[[], None]
    ) -> None:
        self.queued_bytes = 0
        self.most_ahead_bytes: Callable[[], int | None] = lambda: None
        """How much of what streams carry that carry much may be ahead of the peer's reader."""
        self.mark: Callable[[Callable[[], None]], None] = lambda passed: None
        """Has `passed` called once the peer has read what is written by now. Must not raise."""
        self._ahead_bytes = 0
        self._unmarked_bytes = 0
        self.most_bytes = STRANGERS_OUTBOX_BYTES
        self._connection = connection
        self._stall_s = stall_s
        self._stalled = stalled
        self._closed = False
        self._queue: deque[bytes | bytearray] = deque()
        self._bulk: deque[BulkSource] = deque()  # in turn
        self._fast_writes = 0  # in a row
        self._writing = False
        self._owes_rest = False  # of a frame that was written at once, and not taken whole
        self._filled = trio.lowlevel.ParkingLot()
        self._emptied = trio.lowlevel.ParkingLot()
        self._flushed = trio.lowlevel.ParkingLot()

    async def room(self) -> None:
        """Wait until another frame may be put. The stall of the peer bounds the wait."""
        while not self.has_room:
            await self._emptied.park()

    @property
    def has_room(self) -> bool:
        """Whether `room` would return at once."""
        return self.queued_bytes < self.most_bytes or self._closed

    def send(self, frame: bytes) -> None:
        """Write a short frame at once where it can be, and put others."""
        if len(frame) > NOW_BYTES or self._is_busy:
            self.put(frame)
            return
        try:
            self._owes_rest = not self._connection.write_now(frame)
        except ConnectionClosedError as error:
            # For `run` to find: the sender does not expect the connection to end here.
            log.debug("a connection ends: %r", error)
            self.put(frame)
            return
        if self._owes_rest:
            self._filled.unpark()

    def put(self, frame: bytes) -> None:
        last = self._queue[-1] if self._queue else None
        if isinstance(last, bytearray) and len(last) + len(frame) <= NOW_BYTES:
            last += frame
        else:
            self._queue.append(frame if len(frame) > NOW_BYTES else bytearray(frame))
        self.queued_bytes += len(frame)
        self._filled.unpark()

    def put_bulk(self, source: BulkSource) -> None:
        """Ask it for frames until it has none."""
        if source not in self._bulk:
            self._bulk.append(source)
            self._filled.unpark()

    async def flushed(self) -> None:
        """Wait until what is not bulk is written, or the connection over."""
        while self._is_busy and not self._closed:
            await self._flushed.park()

    def close(self) -> None:
        self._closed = True
        self._queue.clear()
        self._bulk.clear()
        for lot in (self._emptied, self._flushed):
            lot.unpark_all()

    @property
    def _is_busy(self) -> bool:
        """Whether something has to be written before anything else is."""
        return self._writing or self._owes_rest or bool(self._queue)

    async def run(self) -> None:
        while not self._closed:
            if not (self._owes_rest or self._queue or self._next_bulk()):
                await self._filled.park()
                continue
            self._writing = True
            messages = [] if self._owes_rest else self.next_messages()
            began_s = trio.current_time()
            taken = not self._owes_rest and self._connection.write_now(*messages)
            while not taken:
                with trio.move_on_after(self._stall_s) as deadline:
                    taken = await self._connection.flush()
                if deadline.cancelled_caught:
                    self._stalled()
                    return
            self._took(len(messages), trio.current_time() - began_s)
            self._owes_rest = False
            self._writing = False
            if self._flushed and not self._queue:
                self._flushed.unpark_all()
            if self._emptied and self.has_room:
                self._emptied.unpark_all()
            if self._next_bulk():
                # It may be taken as fast as it comes, and others have their turn.
                await trio.lowlevel.checkpoint()

    @property
    def _pace(self) -> tuple[int, int]:
        """How many messages are handed over at once, and how much may lie in the kernel unsent."""
        if self._fast_writes < FAST_WRITES:
            return WRITTEN_MESSAGES, UNSENT_BYTES
        if self._fast_writes < 2 * FAST_WRITES:
            return FAST_WRITTEN_MESSAGES, FAST_UNSENT_BYTES
        return MOST_WRITTEN_MESSAGES, MOST_UNSENT_BYTES

    def _took(self, messages: int, took_s: float) -> None:
        """The kernel took so many, in so long."""
        before = self._pace
        if took_s > VERY_SLOW_S:
            self._fast_writes = 0
        elif took_s > SLOW_S:
            self._fast_writes //= 2
        elif messages >= WRITTEN_MESSAGES and (
            self._fast_writes < 2 * FAST_WRITES - 1 or took_s < VERY_FAST_S
        ):
            self._fast_writes = min(self._fast_writes + 1, 3 * FAST_WRITES)
        if self._pace != before:
            self._connection.hold_unsent(self._pace[1])

    def next_messages(self) -> list[bytes | memoryview]:
        """What is written next, in pieces that each fit into one Noise message. On a fast link a
        frame of a stream that carries much has as many of them as are handed over at once: one
        header for all, and all but the first are sealed from where they lie."""
        messages: list[bytes | memoryview] = []
        at_once, _ = self._pace
        while self._queue and len(messages) < at_once:
            batch = [self._queue.popleft()]
            size = len(batch[0])
            while self._queue and size + len(self._queue[0]) <= BATCH_BYTES:
                size += len(self._queue[0])
                batch.append(self._queue.popleft())
            messages.append(b"".join(batch))
            self.queued_bytes -= size
        while self._next_bulk() and len(messages) < at_once:
            left = at_once - len(messages) if at_once > WRITTEN_MESSAGES else 1
            if (frame := self._bulk[0].next_frame(left * BATCH_BYTES)) is None:
                self._bulk.popleft()
                continue
            messages += _messages(*frame)
            self._bulk.rotate(-1)
            self._went(sum(map(len, frame[1])))
        return messages

    def _next_bulk(self) -> bool:
        """Whether a stream that carries much has its turn now."""
        if not self._bulk:
            return False
        most = self.most_ahead_bytes()
        return most is None or self._ahead_bytes < most

    def _went(self, size: int) -> None:
        if self.most_ahead_bytes() is None:
            return
        self._ahead_bytes += size
        self._unmarked_bytes += size
        if self._unmarked_bytes >= MARK_EVERY_BYTES:
            marked, self._unmarked_bytes = self._unmarked_bytes, 0

            def passed() -> None:
                self._ahead_bytes -= marked
                self._filled.unpark()

            self.mark(passed)


def _messages(header: bytes, pieces: list[memoryview]) -> Iterator[bytes | memoryview]:
    """What is over goes with the header, so that the others of a large piece are full."""
    over = min(sum(map(len, pieces)) % BATCH_BYTES, BATCH_BYTES - len(header))
    first: list[bytes | memoryview] = [header]
    rest: list[memoryview] = []
    for piece in pieces:
        first.append(piece[:over])
        rest.append(piece[over:])
        over -= len(first[-1])
    yield b"".join(first)
    for piece in rest:
        yield from (piece[at : at + BATCH_BYTES] for at in range(0, len(piece), BATCH_BYTES))
