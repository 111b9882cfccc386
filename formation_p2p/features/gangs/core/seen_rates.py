"""How fast streams between members were seen to be, of the bytes that workers report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from formation_p2p.features.gangs.core.roster import OWNER
from formation_p2p.features.gangs.core.usage import LeaseUsage

# Reports come every two seconds; where several come at once, what they tell took no less.
LEAST_S: Final = 2.0


class SeenRates:
    """The fastest of each pair of ranks, in both directions together. What was carried in a while
    is less than what could have been: a link is at least so fast."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, dict[int, int]]] = {}
        self._bytes_s: dict[tuple[int, int], int] = {}

    def reported(self, rank: int, usage: LeaseUsage, now_s: float) -> None:
        moved = {
            link.rank: link.sent_bytes + link.received_bytes
            for link in usage.links
            if link.rank != OWNER
        }
        last = self._last.get(rank)
        self._last[rank] = now_s, moved
        if last is None:
            return  # it may have carried them for long
        at_s, before = last
        for other, size_bytes in moved.items():
            rate = int((size_bytes - before.get(other, 0)) / max(now_s - at_s, LEAST_S))
            if rate > self._bytes_s.get((rank, other), 0):
                self._bytes_s[rank, other] = rate

    def forget(self, rank: int) -> None:
        """Another worker has it."""
        self._last.pop(rank, None)
        self._bytes_s = {pair: rate for pair, rate in self._bytes_s.items() if rank not in pair}

    def over(self, assumed_bytes_s: int) -> Mapping[tuple[int, int], int]:
        """What tells more than this assumption. Both ends see the same bytes."""
        return {pair: rate for pair, rate in self._bytes_s.items() if rate > assumed_bytes_s}
