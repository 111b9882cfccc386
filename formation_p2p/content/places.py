"""What others may have take as long as they like, such as a fetch whose sources they name: so many
at once, and so many of them for one peer, who has nobody else wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from formation_p2p.core.identity import PeerId

# Where it is not said for whom something is fetched.
UNKNOWN: Final = PeerId("")


class Places:
    def __init__(self, total: int, of_peer: int) -> None:
        self._all = trio.CapacityLimiter(total)
        self._of_peer = of_peer
        self._own: dict[PeerId, trio.CapacityLimiter] = {}  # of those that have or want one

    @property
    def taken(self) -> int:
        return self._all.borrowed_tokens

    @asynccontextmanager
    async def of(self, peer: PeerId) -> AsyncIterator[None]:
        own = self._own.setdefault(peer, trio.CapacityLimiter(self._of_peer))
        try:
            await _take(own)
            try:
                await _take(self._all)
                try:
                    yield
                finally:
                    self._all.release()
            finally:
                own.release()
        finally:
            if not own.borrowed_tokens and not own.statistics().tasks_waiting:
                self._own.pop(peer, None)


async def _take(limiter: trio.CapacityLimiter) -> None:
    """`acquire` has all other tasks run first, also where there is a place."""
    try:
        limiter.acquire_nowait()
    except trio.WouldBlock:
        await limiter.acquire()
