"""Memory that is used again, by whichever connection next reads or writes much: new memory gets its
pages one by one, as they are touched."""

from __future__ import annotations

from collections import deque
from typing import Final

# Of those that wait to be used again. Connections that do so at the same moment are few.
MAX_FREE: Final = 4


class Rooms:
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
