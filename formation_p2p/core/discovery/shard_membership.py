"""Where in one bucket a worker is at home, and when that changes.

    looking   -> settled     the walk down its prefix has ended
    settled   -> moving      its shard is full, or most others have left it: both shards, for now
    settled   -> moving      its shard has few, and the one above has room: both, for now
    moving    -> settled     after a TTL, in which all others have heard of it and moved as well

Nobody leaves a shard before everybody is in the other one as well, so that a reader who reads
both, as `depth_search.py` does where it sees either, finds everybody at any time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal

from formation_p2p.core.capability.shards import MERGE, SPLIT
from formation_p2p.core.dht.messages import ShardCount
from formation_p2p.core.discovery.depth_search import DepthSearch, deeper_by, is_left
from formation_p2p.core.keyspace import MAX_DEPTH, WHOLE, Span

Doubt = Literal["full", "sparse"]
"""What one peer's count suggests, to be confirmed by asking all that hold the shard."""

# A move that others do not follow ends after so many TTLs: one worker that stands still must not
# make its whole shard announce twice for ever.
MAX_MOVE_TTLS: Final = 3
# Moves begun in one TTL: those of a shard that fills while its workers still move. All that is
# announced is announced anew with each, and liars could call for one every five seconds.
MAX_MOVES: Final = 3


@dataclass(slots=True)
class ShardMembership:
    """`counts` are the latest of the shards that the worker is a member of, by depth."""

    bucket: str
    walk: DepthSearch | None = field(default_factory=lambda: DepthSearch(0))
    span: Span = WHOLE
    moves_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_MOVES))
    counts: dict[int, ShardCount] = field(default_factory=dict)

    @property
    def moved_s(self) -> float:
        return self.moves_s[-1] if self.moves_s else 0.0

    def settle(self, span: Span, now_s: float) -> bool:
        """Be announced at `span` from now on. Whether that is a change."""
        changed = span != self.span
        self.walk = None
        if changed:
            self.span = span
            self.moves_s.append(now_s)
            self.counts.clear()
        return changed

    def is_restless(self, ttl_s: float, now_s: float) -> bool:
        """Whether it has moved so often that it stays where it is for now, whatever it hears."""
        return len(self.moves_s) == MAX_MOVES and now_s < self.moves_s[0] + ttl_s

    def heard(self, depth: int, count: ShardCount) -> Doubt | None:
        """What one of the peers that hold our shard at `depth` says of it. Our own entry is in
        the count."""
        self.counts[depth] = count
        low, high = self.span
        if depth == high and (_is_to_be_left(count) or count.members > SPLIT):
            return "full"
        if low == high == depth > 0 and count.members < MERGE:
            return "sparse"
        return None

    def is_full(self, count: ShardCount) -> Span | None:
        """Where to move, if our deepest shard, as all say who hold it, is full or being left."""
        high = self.span.high
        if _is_to_be_left(count):
            return Span(high, min(max(count.depth, high + 1), MAX_DEPTH))
        if count.members > SPLIT and high < MAX_DEPTH:
            return Span(high, min(high + deeper_by(count.members), MAX_DEPTH))
        return None

    def is_sparse(self, above: ShardCount) -> Span | None:
        """Where to move, if our shard has few, and the one above has room for them."""
        low, high = self.span
        own = self.counts.get(high)
        if low != high or own is None or own.members >= MERGE:
            return None
        room = SPLIT - MERGE - above.members
        return Span(high - 1, high) if own.members <= room else None

    def is_apart(self, above: ShardCount) -> Span | None:
        """Where to move, if neighbours have settled in the shard above ours: we came at the same
        time, and did not see each other. `arrived` will tell who follows whom."""
        low, high = self.span
        return Span(high - 1, high) if low == high > 0 and above.settled else None

    def arrived(self, ttl_s: float, now_s: float) -> Span | None:
        """Where to stay, if a move is over."""
        low, high = self.span
        above, below = self.counts.get(low), self.counts.get(high)
        if low == high or now_s < self.moved_s + ttl_s or above is None or below is None:
            return None
        # Whoever is moving is a member of both shards. A move that most do not make is given up:
        # readers stay where most are.
        goes_up = below.members <= above.settled
        goes_up = goes_up or (below.members < MERGE and above.members <= SPLIT)
        left_behind = below.settled if goes_up else above.settled
        if left_behind and now_s < self.moved_s + MAX_MOVE_TTLS * ttl_s:
            return None
        return Span(low, low) if goes_up else Span(high, high)


def _is_to_be_left(count: ShardCount) -> bool:
    """Whether to follow those who are deeper as well. They may be on their way up: then there is
    room here, and nobody has left already, of whom there would be samples."""
    is_crowded = count.members > SPLIT - MERGE
    has_samples = count.deeper > count.members - count.settled - count.shallower
    return is_left(count) and (is_crowded or has_samples)
