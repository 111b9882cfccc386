"""What a muxed connection has to write, in which order, and the one task that writes it.

Frames wait here. Streams that carry much keep theirs, and are asked for one at a time when no frame
waits. Only the writer touches the socket and nothing cancels it but the end of the connection, so
nothing is ever written by halves.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import trio
from libp2p.io.exceptions import ConnectionClosedError

from formation_p2p.core.units import KIB
from formation_p2p.host.net.transport.tcp import FAST_UNSENT_BYTES, UNSENT_BYTES

if TYPE_CHECKING:
    from formation_p2p.host.net.transport.upgrade import NoiseStream

log = logging.getLogger(__name__)

# What may wait for the socket before writers wait too: a few Noise messages.
OUTBOX_BYTES: Final = 128 * KIB
# Handed to the kernel at once. What is said meanwhile waits for that: 2 s at 1 Mbit/s.
WRITTEN_MESSAGES: Final = 2
# The same on a link that has shown that it is fast: each time costs a turn of the loop.
FAST_WRITTEN_MESSAGES: Final = 8
# The kernel takes longer to take them: the link is slow. One of 1 Gbit/s is fast.
SLOW_S: Final = 0.005
# So often in a row it took less: more than the kernel has room for, so that the link carried it.
FAST_WRITES: Final = 16
# One Noise message holds 65,519 bytes.
BATCH_BYTES: Final = 65_519
# A frame up to here goes out at once where nothing waits before it: a request must not wait for
# a task to be scheduled. Larger ones are worth to be put together.
NOW_BYTES: Final = 4 * KIB


class BulkSource(Protocol):
    """A stream that carries much."""

    def next_frame(self) -> list[bytes | memoryview]:
        """Its next frame, in pieces that stay as they are until the caller waits for something;
        empty where there is none now. It fits into one Noise message."""


class Writer:
    """`run` it until the connection ends; `stalled` is called where the peer takes nothing for
    `stall_s`."""

    def __init__(
        self, connection: NoiseStream, stall_s: float, stalled: Callable[[], None]
    ) -> None:
        self.queued_bytes = 0
        self._connection = connection
        self._stall_s = stall_s
        self._stalled = stalled
        self._closed = False
        self._queue: deque[bytes] = deque()
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
        return self.queued_bytes < OUTBOX_BYTES or self._closed

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
        self._queue.append(frame)
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
            if not (self._owes_rest or self._queue or self._bulk):
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
            if not self._queue:
                self._flushed.unpark_all()
            if self.has_room:
                self._emptied.unpark_all()
            if self._bulk:
                # It may be taken as fast as it comes, and others have their turn.
                await trio.lowlevel.checkpoint()

    @property
    def _at_once(self) -> int:
        return FAST_WRITTEN_MESSAGES if self._fast_writes >= FAST_WRITES else WRITTEN_MESSAGES

    def _took(self, messages: int, took_s: float) -> None:
        """The kernel took so many, in so long."""
        before = self._at_once
        if took_s > SLOW_S:
            self._fast_writes = 0
        elif messages >= WRITTEN_MESSAGES:
            self._fast_writes += 1
        if self._at_once != before:
            fast = self._at_once == FAST_WRITTEN_MESSAGES
            self._connection.hold_unsent(FAST_UNSENT_BYTES if fast else UNSENT_BYTES)

    def next_messages(self) -> list[bytes]:
        """What is written next, in pieces that each fit into one Noise message."""
        messages: list[bytes] = []
        at_once = self._at_once
        while self._queue and len(messages) < at_once:
            batch = [self._queue.popleft()]
            size = len(batch[0])
            while self._queue and size + len(self._queue[0]) <= BATCH_BYTES:
                size += len(self._queue[0])
                batch.append(self._queue.popleft())
            messages.append(b"".join(batch))
            self.queued_bytes -= size
        while self._bulk and len(messages) < at_once:
            if frame := self._bulk[0].next_frame():
                messages.append(b"".join(frame))
                self._bulk.rotate(-1)
            else:
                self._bulk.popleft()
        return messages
