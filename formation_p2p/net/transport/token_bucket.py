"""A rate that is kept to."""

from __future__ import annotations

from typing import Final

import trio

# What a frame costs as a rule.
FRAME_CPU_S: Final = 0.001
# What may come at once after a pause, in seconds of the rate.
BURST_S: Final = 4


class TokenBucket:
    """`per_s` a second, and BURST_S seconds' worth at once after a pause."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._tokens = float(per_s * BURST_S)
        self._filled_at = trio.current_time()

    async def wait(self) -> None:
        """Take one. A peer ahead of its rate waits, so that frames stay with the peer."""
        self._fill()
        self._tokens -= 1
        if self._tokens < 0:
            # The number of a peer's streams limits the debt, and each waits for its own place.
            await trio.sleep(-self._tokens / self._per_s)

    def take(self) -> bool:
        """Take one, where there is one."""
        self._fill()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def charge(self, cpu_s: float) -> None:
        """What came took so long to deal with: beyond the millisecond that each has, it counts
        as so many more."""
        self._tokens -= max(cpu_s - FRAME_CPU_S, 0.0) / FRAME_CPU_S

    def _fill(self) -> None:
        now = trio.current_time()
        self._tokens += (now - self._filled_at) * self._per_s
        self._tokens = min(self._tokens, self._per_s * BURST_S)
        self._filled_at = now
