"""Finds the depth at which the workers near a key are, from the counts of a few shards."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median_high

from formation_p2p.core.keyspace import MAX_DEPTH, Span
from formation_p2p.dht.core.messages import ShardCount
from formation_p2p.records.core.buckets import ShardParameters


def agreed(counts: Iterable[ShardCount]) -> ShardCount:
    """The median of each number that the peers nearest to a shard's name say of it, so that one in
    three may lie or have come too late to know."""
    each = list(counts) or [ShardCount()]
    depth = median_high([count.depth for count in each if count.deeper or count.beyond] or [0])
    return ShardCount._make(map(median_high, zip(*each, strict=True)))._replace(depth=depth)


def deeper_by(members: int, shards: ShardParameters) -> int:
    """How many levels a shard with so many members is to split: at least one."""
    return max(1, (max(members - 1, 0) // shards.split).bit_length())


def is_left(count: ShardCount, shards: ShardParameters) -> bool:
    """Whether most workers have left a shard for deeper ones, where a quarter of them remain as
    a sample, or are about to. As long as most have not, those who are moving are here as well;
    and a few members who claim to be elsewhere do not send all the others there."""
    return count.deeper > shards.sample * count.settled


class DepthSearch:
    """Along the prefix of one key, from a first guess to the shards with all its workers.

    Read the shard at `depth`, hand its count to `learn`, and go on while that gives another
    depth: it ends, since no depth is read twice. All workers with the key's prefix are then in
    the shards that were read:

    - where most workers are deeper, it goes there. A shard that is splitting or merging has
      all workers either here or there, as all are in both until none is in one alone;
    - where none is on the key's side, or some are shallower too, it goes one up, but not to where,
      as was seen, most are deeper.
    """

    def __init__(self, depth: int, shards: ShardParameters = ShardParameters()) -> None:
        self._shards = shards
        self.depth = depth
        self.read: dict[int, ShardCount] = {}
        self._floor = 0  # no worker belongs above: in the shard there, workers were deeper

    def learn(self, count: ShardCount) -> int | None:
        """What the shard at `depth` holds. Returns the depth to read next, which `depth` then is;
        None at the end."""
        self.read[self.depth] = count
        step: int | None = None
        if is_left(count, self._shards):
            below = min(self.depth + 1, MAX_DEPTH)
            if not count.shallower:
                self._floor = max(self._floor, self.depth if count.members else below)
            step = max(count.depth, below)
        elif self.depth == 0 and count.beyond and not count.settled:
            # None on the key's side, and half of the bucket is deeper: the other may be as well,
            # and its samples missing.
            step = max(count.depth, 1)
        if step is None or step in self.read:
            step = self._up()
        if step in self.read:
            return None
        self.depth = step
        return step

    def _up(self) -> int:
        """The first depth above that is to be read, or one that was."""
        depth = self.depth
        while depth > self._floor and depth in self.read:
            count = self.read[depth]
            if count.settled and not count.shallower:
                break
            depth -= 1
        return depth

    @property
    def reach(self) -> int:
        """All workers that share so many bits with the key are in the shards that were read."""
        deepest = max(self.read)
        return min(deepest + (self.read[deepest].beyond > 0), MAX_DEPTH)

    @property
    def inhabited(self) -> int:
        """Where most workers near the key are: the depth to begin the next search at."""
        return max((d for d, count in self.read.items() if count.members), default=max(self.read))

    def span(self) -> Span:
        """Where a worker with this key belongs, once the search has ended."""
        floor = self._floor
        for depth, count in sorted(self.read.items()):
            if not count.members:
                continue
            below = min(max(count.depth, depth + 1), MAX_DEPTH)
            if is_left(count, self._shards) and count.settled:
                return Span(depth, below)
            if is_left(count, self._shards):
                floor = max(floor, below)
            elif count.members > self._shards.split:
                return Span(depth, min(depth + deeper_by(count.members, self._shards), MAX_DEPTH))
            else:
                return Span(depth, depth)
        return Span(floor, floor)
