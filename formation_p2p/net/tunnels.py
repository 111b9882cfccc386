"""Streams that carry the bytes of two programs, both ways: between nodes those of a connection,
and on one node a pair in memory, whose ends have what a tunnel uses of a MuxedStream and raise the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Final, Protocol

import trio

from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB, MIB
from formation_p2p.net.transport.errors import StreamClosed, StreamEOF, StreamReset

# As much as on the way between two nodes: what one end writes and the other does not read.
PIPE_BYTES: Final = MIB
# Written at once where nothing waits before it, ahead of what is larger.
SMALL_BYTES: Final = 4 * KIB
# Until the peer has read what a stream is for, it takes one of the places that the peer has for
# streams of all protocols (MAX_INBOUND_STREAMS of transport/yamux.py).
MAX_OPENING: Final = 16


class TunnelStream(Protocol):
    """A stream of a connection, or a LocalStream."""

    broken: str | None
    on_over: Callable[[], None]

    @property
    def unread(self) -> Sized: ...
    async def read(self, n: int, /) -> bytes: ...
    def read_now(self, n: int, /) -> bytes: ...
    async def read_pieces(self, n: int, /) -> list[memoryview]: ...
    async def write(self, data: bytes | memoryview, /) -> None: ...
    def write_now(self, data: bytes, /) -> bool: ...
    async def write_pieces(self, pieces: Sequence[memoryview], /) -> None: ...
    async def close(self) -> None: ...
    def abort(self, reason: str, /) -> None: ...


class LocalStream:
    """One end. One task may read and one may write at a time."""

    def __init__(self) -> None:
        self.unread = bytearray()
        self.broken: str | None = None
        self.on_over: Callable[[], None] = lambda: None
        self._other: LocalStream = self
        self._finished_here = False
        self._changed = trio.lowlevel.ParkingLot()

    @classmethod
    def pair(cls) -> tuple[LocalStream, LocalStream]:
        here, there = cls(), cls()
        here._other, there._other = there, here
        return here, there

    async def read(self, n: int | None = None) -> bytes:
        """Up to `n` bytes, whatever is there. Raises StreamEOF, StreamReset."""
        await trio.lowlevel.checkpoint()
        while not self.unread:
            if self.broken is not None:
                raise StreamReset(self.broken)
            if self._other._finished_here:
                raise StreamEOF("the other end has finished")
            await self._changed.park()
        return self.read_now(len(self.unread) if n is None else n)

    def read_now(self, n: int) -> bytes:
        """As `read`, of what is there; nothing where it would wait."""
        taken = bytes(self.unread[:n])
        del self.unread[:n]
        self._other._changed.unpark_all()
        return taken

    async def read_pieces(self, n: int) -> list[memoryview]:
        """As `read`."""
        return [memoryview(await self.read(n))]

    async def write_pieces(self, pieces: Sequence[memoryview]) -> None:
        """As `write`, one after the other."""
        for piece in pieces:
            await self.write(piece)

    async def write(self, data: bytes | memoryview) -> None:
        """All of it. Raises StreamReset, StreamClosed."""
        await trio.lowlevel.checkpoint()
        view, into = memoryview(data), self._other.unread
        while True:
            if self.broken is not None:
                raise StreamReset(self.broken)
            if self._finished_here:
                raise StreamClosed("closed here for writing")
            if room := PIPE_BYTES - len(into):
                into += view[:room]
                view = view[room:]
                self._other._changed.unpark_all()
            if not view:
                return
            await self._changed.park()

    def write_now(self, data: bytes) -> bool:
        """Write all of a short message, or nothing of it. Raises as `write`."""
        if self.broken is not None:
            raise StreamReset(self.broken)
        if self._finished_here:
            raise StreamClosed("closed here for writing")
        if len(self._other.unread) + len(data) > PIPE_BYTES:
            return False
        self._other.unread += data
        self._other._changed.unpark_all()
        return True

    async def close(self) -> None:
        """Finish writing. The other end may still write."""
        await trio.lowlevel.checkpoint()
        if self.broken is None and not self._finished_here:
            self._finished_here = True
            self._other._changed.unpark_all()
            if self._other._finished_here:
                self._end()
                self._other._end()

    def abort(self, reason: str) -> None:
        """Both directions end at once, at both ends."""
        if self.broken is None and not (self._finished_here and self._other._finished_here):
            for end, why in ((self, reason), (self._other, "reset by the other end")):
                end.broken = why
                end.unread.clear()
                end._end()

    def _end(self) -> None:
        self._changed.unpark_all()
        self.on_over()


class Openings:
    """A limiter for each peer that streams are being opened with."""

    def __init__(self) -> None:
        self._limiters: dict[PeerId, trio.CapacityLimiter] = {}

    def of(self, peer: PeerId) -> trio.CapacityLimiter:
        """To be held while a stream is opened with the peer."""
        limiter = self._limiters.get(peer)
        if limiter is None:
            for each, one in list(self._limiters.items()):
                if not one.borrowed_tokens:  # so that there are no more than are in use
                    del self._limiters[each]
            limiter = self._limiters[peer] = trio.CapacityLimiter(MAX_OPENING)
        return limiter
