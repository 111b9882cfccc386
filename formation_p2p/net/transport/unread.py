"""What has arrived on a stream and is not read yet.

Most of it lies where it was decrypted, and is copied once, when it is read, or never, where it is
passed on. That keeps the message that it came in: so it is done where it is half of that at least,
and what is kept is at most twice what is counted.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from formation_p2p.core.units import KIB

# Less is copied together: each piece costs a turn where it is passed on.
LEAST_PIECE_BYTES: Final = 4 * KIB


class Unread:
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
