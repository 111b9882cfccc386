"""The results of calls that their owner has not been told of yet: told together, for a message
costs both ends as much as a short call."""

from __future__ import annotations

import math
from typing import Final

from formation_p2p.core.units import KIB

# A result waits so long for others that are told with it.
FLUSH_S: Final = 0.002
FLUSH_BYTES: Final = 1024 * KIB
# ...and so long while there are few of them, and more calls than the next one wait for their turn:
# an owner has calls of 100 ms wait at a worker, and sends more when half of them have ended
# (core/dispatch/parameters.py).
GATHER_S: Final = 0.05
GATHERED: Final = 8


class Unreported:
    """How many there are, and when they are to be told."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._since_s = math.inf
        self._count = self._bytes = 0

    def add(self, size_bytes: int, now_s: float) -> None:
        self._since_s = min(self._since_s, now_s)
        self._count += 1
        self._bytes += size_bytes

    @property
    def is_full(self) -> bool:
        return self._bytes >= FLUSH_BYTES

    def due_s(self, *, calls_wait: bool) -> float:
        """Infinite where there are none."""
        gathers = calls_wait and self._count < GATHERED
        return self._since_s + (GATHER_S if gathers else FLUSH_S)
