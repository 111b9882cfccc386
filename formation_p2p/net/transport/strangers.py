"""How much of this node's memory the peers may hold that it shares no lease with: all of them
together, so that hundreds that each hold the most cost little more than one.

Each has a part of its own, which an honest one rarely passes, and draws beyond it on a pool.
"""

from __future__ import annotations

import math
from typing import Final

from formation_p2p.core.units import KIB, MIB

# Bytes that arrived on one connection and are not read yet, and those of a peer's unfinished
# frames: a request of the DHT has at most as many.
OWN_BYTES: Final = 16 * KIB
# Beyond those, of all: fifty connections with all that one may have.
POOL_BYTES: Final = 16 * MIB
# Streams of one connection. Each takes 4 KiB, most of it for the task that serves it.
OWN_STREAMS: Final = 8
# Beyond those, of all. A foreign implementation opens one for each request, for a moment.
POOL_STREAMS: Final = 1024


class Pool:
    """What is left of it. Less than nothing where more had arrived than was left."""

    __slots__ = ("free",)

    def __init__(self, size: int) -> None:
        self.free = size


class Share:
    """What one peer, or one connection, holds: `own` of it, and the rest out of the pool."""

    __slots__ = ("_drawn", "_held", "_own", "_pool")

    def __init__(self, pool: Pool, own: int) -> None:
        self._pool = pool
        self._own: float = own
        self._held = 0
        self._drawn = 0

    @property
    def is_over(self) -> bool:
        """Whether it holds some of a pool that is overdrawn."""
        return self._drawn > 0 and self._pool.free < 0

    def fits(self, more: int) -> bool:
        return self._held + more - self._own - self._drawn <= max(self._pool.free, 0)

    def take(self, more: int) -> None:
        self._held += more
        self._settle()

    def give_back(self, less: int) -> None:
        self._held -= less
        self._settle()

    def widen(self, more: float) -> None:
        """It may hold so much more of its own; of fewer than none, less."""
        self._own += more
        self._settle()

    def exempt(self) -> None:
        """Its holder is no stranger any more, or is gone: it draws nothing from now on."""
        self.widen(math.inf)

    def _settle(self) -> None:
        drawn = int(max(self._held - self._own, 0))
        self._pool.free -= drawn - self._drawn
        self._drawn = drawn


class Strangers:
    """The pools of one node."""

    def __init__(self) -> None:
        self.bytes = Pool(POOL_BYTES)
        self.streams = Pool(POOL_STREAMS)
