"""What carries a connection before it is made secure: a socket, or a circuit through a gate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Final, Protocol

from formation_p2p.core.units import KIB


class ByteStream(Protocol):
    """What a protocol is spoken on: a socket, a Noise session, one stream of a muxer. Bytes go in
    both directions, in order. Both methods raise IOException."""

    async def read(self, n: int | None = None) -> bytes:
        """Some bytes, at most `n`; waits for the first."""

    async def write(self, data: bytes) -> None:
        """All of `data`."""


# One Noise message and its length (65,537 bytes) is the most that anyone above reads at once.
MAX_READ_BYTES: Final = 64 * KIB + 1


class RawStream(ABC):
    """Bytes both ways. One task may read and one may write at a time."""

    def __init__(self) -> None:
        self._buffer = memoryview(b"")  # arrived, and not taken yet

    @abstractmethod
    async def close(self) -> None:
        """At once, even when cancelled."""

    @abstractmethod
    def get_remote_address(self) -> tuple[str, int] | None:
        """Where the peer is; None where that is not known."""

    @abstractmethod
    async def fill(self) -> None:
        """Wait for more bytes, and keep them to be taken. Raises ConnectionClosedError."""

    @abstractmethod
    def write_now(self, *parts: bytes | memoryview) -> bool:
        """Whether all of them were taken. If not, `flush` before the next write.

        Raises ConnectionClosedError.
        """

    @abstractmethod
    async def flush(self) -> bool:
        """Wait until more is taken of what `write_now` left over. Returns whether that is all of
        it. Raises ConnectionClosedError."""

    # Hints, for a stream that can make use of them.
    # ruff: noqa: B027

    def hold_unsent(self, size: int) -> None:
        """Let so much be taken ahead of what the link carries."""

    def expect(self, size: int) -> None:
        """So many bytes are sure to come, with those that have and are not taken: `fill` may wait
        for some of them together."""

    def settle(self) -> None:
        """Nothing is read for a while: hold no more than what has come and was not taken."""

    def hurry(self) -> None:
        """`fill` is to wait for whatever comes next."""

    async def read(self, n: int | None = None) -> bytes:
        """Exactly `n` bytes (at most MAX_READ_BYTES), or whatever is there for None.

        Raises ConnectionClosedError where the stream ends before.
        """
        wanted = 1 if n is None else min(n, MAX_READ_BYTES)
        while len(self._buffer) < wanted:
            await self.fill()
        if n is None:
            wanted = len(self._buffer)
        taken = bytes(self._buffer[:wanted])
        self._buffer = self._buffer[wanted:]
        return taken

    def take_prefixed(self, size: int, most_bytes: int) -> memoryview | None:
        """The next message that has its length before it, in `size` bytes; None while it is not
        whole, and where it has more than `most_bytes`."""
        end = size + int.from_bytes(self._buffer[:size], "big")
        if not size <= end <= len(self._buffer) or end > size + most_bytes:
            return None
        message = self._buffer[size:end]
        self._buffer = self._buffer[end:]
        return message

    async def write(self, data: bytes) -> None:
        """Raises ConnectionClosedError; also for every write after one that was cancelled."""
        taken = self.write_now(data)
        while not taken:
            taken = await self.flush()


# Of those that wait to be used again. Connections that do so at the same moment are few.
MAX_FREE: Final = 4


class Rooms:
    """Memory that is used again, by whichever connection next reads or writes much: new memory gets
    its pages one by one, as they are touched."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._free: deque[memoryview] = deque(maxlen=MAX_FREE)

    def take(self) -> memoryview:
        """Nobody else has it until `give_back`. It contains what was in it before."""
        try:
            return self._free.pop()  # nodes of one process, each in its thread, share them
        except IndexError:
            return memoryview(bytearray(self._size_bytes))

    def give_back(self, room: memoryview) -> None:
        """Nothing that lies there is looked at any more."""
        self._free.append(room)
