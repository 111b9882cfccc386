"""What a muxed connection has to write, in which order, and the one task that writes it.

Frames of streams that carry much wait behind all others. Only the writer touches the socket and
nothing cancels it but the end of the connection, so nothing is ever written by halves.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio
from libp2p.io.exceptions import ConnectionClosedError

from formation_p2p.core.units import KIB

if TYPE_CHECKING:
    from formation_p2p.host.net.transport.upgrade import NoiseStream

log = logging.getLogger(__name__)

# What may wait for the socket before writers wait too: a few Noise messages.
OUTBOX_BYTES: Final = 128 * KIB
# The same of streams that carry much, which nothing else waits for. Each time that it is filled
# costs two turns of the loop.
BULK_OUTBOX_BYTES: Final = 512 * KIB
# Handed to the kernel at once. What is said meanwhile waits for that: 2 s at 1 Mbit/s.
WRITTEN_MESSAGES: Final = 2
# One Noise message holds 65,519 bytes.
BATCH_BYTES: Final = 65_519
# A frame up to here goes out at once where nothing waits before it: a request must not wait for
# a task to be scheduled. Larger ones are worth to be put together.
NOW_BYTES: Final = 4 * KIB


class Writer:
    """`run` it until the connection ends; `stalled` is called where the peer takes nothing for
    `stall_s`."""

    def __init__(
        self, connection: NoiseStream, stall_s: float, stalled: Callable[[], None]
    ) -> None:
        self.queued_bytes = 0
        self.bulk_bytes = 0
        self._connection = connection
        self._stall_s = stall_s
        self._stalled = stalled
        self._closed = False
        self._queue: deque[bytes] = deque()
        self._bulk: deque[bytes] = deque()  # of streams that carry much
        self._writing = False
        self._owes_rest = False  # of a frame that was written at once, and not taken whole
        self._filled = trio.lowlevel.ParkingLot()
        self._emptied = trio.lowlevel.ParkingLot()
        self._bulk_emptied = trio.lowlevel.ParkingLot()
        self._flushed = trio.lowlevel.ParkingLot()

    async def room(self, *, bulk: bool) -> None:
        """Wait until another frame may be put. The stall of the peer bounds the wait."""
        while not self.has_room(bulk=bulk):
            await (self._bulk_emptied if bulk else self._emptied).park()

    def has_room(self, *, bulk: bool) -> bool:
        """Whether `room` would return at once."""
        if bulk:
            return self.bulk_bytes < BULK_OUTBOX_BYTES or self._closed
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

    def put(self, frame: bytes, *, bulk: bool = False) -> None:
        if bulk:
            self._bulk.append(frame)
            self.bulk_bytes += len(frame)
        else:
            self._queue.append(frame)
            self.queued_bytes += len(frame)
        self._filled.unpark()

    async def flushed(self) -> None:
        """Wait until what is not bulk is written, or the connection over."""
        while self._is_busy and not self._closed:
            await self._flushed.park()

    def close(self) -> None:
        self._closed = True
        self._queue.clear()
        self._bulk.clear()
        for lot in (self._emptied, self._bulk_emptied, self._flushed):
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
            with trio.move_on_after(self._stall_s) as deadline:
                if self._owes_rest or not self._connection.write_now(*self.next_messages()):
                    await self._connection.flush()
                self._owes_rest = False
            if deadline.cancelled_caught:
                self._stalled()
                return
            self._writing = False
            if not self._queue:
                self._flushed.unpark_all()
            if self.queued_bytes < OUTBOX_BYTES:
                self._emptied.unpark_all()
            if self.bulk_bytes < BULK_OUTBOX_BYTES // 4:
                self._bulk_emptied.unpark_all()

    def next_messages(self) -> list[bytes]:
        """What is written next, in pieces that each fit into one Noise message."""
        messages: list[bytes] = []
        for queue in (self._queue, self._bulk):
            while queue and len(messages) < WRITTEN_MESSAGES:
                batch = [queue.popleft()]
                size = len(batch[0])
                while queue and size + len(queue[0]) <= BATCH_BYTES:
                    size += len(queue[0])
                    batch.append(queue.popleft())
                messages.append(b"".join(batch))
                if queue is self._queue:
                    self.queued_bytes -= size
                else:
                    self.bulk_bytes -= size
        return messages
