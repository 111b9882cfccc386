"""A circuit as what carries a connection, and how much of it may be under way."""

from __future__ import annotations

from typing import Final

import trio

from formation_p2p.core.units import MIB
from formation_p2p.net.transport.errors import ConnectionClosedError, IOException
from formation_p2p.net.transport.raw import MAX_READ_BYTES, RawStream
from formation_p2p.net.transport.stream import (
    BULK_DATA_BYTES,
    BULK_WINDOW_BYTES,
    NARROW_ROUND_TRIPS,
    MuxedStream,
)

# Taken at a time of what has arrived.
READ_BYTES: Final = 4 * BULK_DATA_BYTES
# A stream that carried so much in such a time gets a wide window: it is no slow link, on which a
# small frame would wait behind all that the window holds. One whose sender waits for the far end of
# a long link gets a window of twice the size.
FAST_BYTES: Final = MIB
FAST_S: Final = 0.5
# Wide ones at once, of 4 MiB each.
MAX_WIDE: Final = 64


class Widening:
    """Which streams of circuits have wide windows: the first that are fast."""

    def __init__(self) -> None:
        self.wide = 0


class Width:
    """That of one stream. `narrow` it at the end."""

    def __init__(self, stream: MuxedStream, all_streams: Widening) -> None:
        self._stream = stream
        self._all = all_streams
        self._is_wide = False
        self._bytes = 0
        self._since_s = trio.current_time()

    def carried(self, size: int) -> None:
        """So much was read from it."""
        self._bytes += size
        window_bytes = self._stream.window_bytes
        if self._bytes < window_bytes or window_bytes >= BULK_WINDOW_BYTES:
            return
        now_s = trio.current_time()
        took_s, windows = now_s - self._since_s, self._bytes / window_bytes
        if self._bytes >= FAST_BYTES and took_s <= FAST_S:
            self._widen(BULK_WINDOW_BYTES)
        elif took_s < windows * NARROW_ROUND_TRIPS * self._stream.carrier.pings.least_rtt_s:
            self._widen(2 * window_bytes)
        elif self._bytes < FAST_BYTES:
            return
        self._bytes, self._since_s = 0, now_s

    def _widen(self, window_bytes: int) -> None:
        if not self._is_wide and self._all.wide >= MAX_WIDE:
            return
        self._all.wide += not self._is_wide
        self._is_wide = True
        if self._stream.broken is None:
            self._stream.widen(window_bytes)

    def narrow(self) -> None:
        self._all.wide -= self._is_wide
        self._is_wide = False


class CircuitStream(RawStream):
    """A stream to a relay, which copies it, as what carries a connection."""

    def __init__(self, stream: MuxedStream, widening: Widening) -> None:
        super().__init__()
        self._stream = stream
        self._width = Width(stream, widening)
        self._length: int | None = None  # of the next message, once it is known
        self._turn_bytes = 0  # taken in this turn of the loop
        self._unsent = memoryview(b"")
        self._torn = False
        stream.own_room()
        stream.send_much()

    async def fill(self) -> None:
        """Wait for more bytes. They stay in the stream until they are taken, which copies them
        once; others have their turn as well."""
        if self._turn_bytes >= READ_BYTES:
            self._turn_bytes = 0
            await trio.lowlevel.checkpoint()
            return
        try:
            await self._stream.arrival()
        except IOException as error:
            raise ConnectionClosedError(f"the circuit ends: {error}") from error
        self._turn_bytes = 0

    async def read(self, n: int | None = None) -> bytes:
        there = self._stream.unread
        while len(there) < (1 if n is None else min(n, MAX_READ_BYTES)):
            await self.fill()
        return self._take(len(there) if n is None else min(n, MAX_READ_BYTES))

    def take_prefixed(self, size: int, most_bytes: int) -> memoryview | None:
        there = self._stream.unread
        if self._turn_bytes >= READ_BYTES:
            return None
        if self._length is None and len(there) >= size:
            self._length = int.from_bytes(self._take(size), "big")
        if self._length is None or self._length > min(len(there), most_bytes):
            return None
        length, self._length = self._length, None
        return memoryview(self._take(length))

    def _take(self, size: int) -> bytes:
        self._turn_bytes += size
        self._width.carried(size)
        return self._stream.read_now(size)

    def write_now(self, *parts: bytes | memoryview) -> bool:
        if self._torn or self._unsent:
            raise ConnectionClosedError("an earlier write was cut short")
        data = b"".join(parts)
        try:
            if self._stream.write_now(data):
                return True
        except IOException as error:
            raise ConnectionClosedError(f"the circuit ends: {error}") from error
        self._unsent = memoryview(data)
        return False

    async def flush(self) -> bool:
        self._torn = True
        piece = self._unsent[:READ_BYTES]
        try:
            await self._stream.write(piece)
        except IOException as error:
            raise ConnectionClosedError(f"the circuit ends: {error}") from error
        self._unsent = self._unsent[len(piece) :]
        self._torn = False
        return not self._unsent

    def expect(self, size: int) -> None:
        """The reader has what is there in each turn of the loop."""

    def settle(self) -> None:
        """It holds no more as it is."""

    def hurry(self) -> None:
        """It never waits for more."""

    def hold_unsent(self, size: int) -> None:
        """The windows of the stream bound it."""

    async def close(self) -> None:
        """At once, even when cancelled."""
        self._width.narrow()
        self._stream.leave()

    def abort(self) -> None:
        """The relay gives up the circuit, whatever the other end still sends."""
        self._stream.abort("no connection comes of it")

    def get_remote_address(self) -> tuple[str, int] | None:
        """None: that of the relay says nothing of the peer."""
        return None
