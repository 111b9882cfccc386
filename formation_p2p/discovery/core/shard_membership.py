"""The shards of one bucket that a worker is a member of, and when that changes.

LOOKING -> SETTLED   the search along its key's prefix has ended
LOOKING -> MOVING    it has ended at a shard that is full, or that most others have left
SETTLED -> MOVING    its shard is full, most others have left it, or it has few and the one above
                     has room: the worker is a member of both shards, for now
MOVING  -> SETTLED   after a TTL, in which all others have heard of it and moved as well
MOVING  -> MOVING    the deeper of the two is full already, or most of those who leave the
                     shallower one go to another depth

No worker leaves a shard before all others are in the other one as well, so that a reader who
reads both, as `depth_search.py` does where it sees either, finds all of them at any time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, Literal

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import MAX_DEPTH, WHOLE, Span
from formation_p2p.dht.core.messages import ShardCount
from formation_p2p.dht.core.store import value_name
from formation_p2p.discovery.core.depth_search import DepthSearch, deeper_by, is_left
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.machine.core.capability import Capability
from formation_p2p.records.core.buckets import ShardParameters, buckets_of, places_of
from formation_p2p.records.core.profile import Profile

Doubt = Literal["full", "sparse", "astray", "apart"]
"""What one peer's count suggests, to be confirmed by asking all that hold the shard; or, `apart`,
what is asked now and then: whether neighbours have settled in the shard above. `astray`: the
others leave the same shard for another depth than we do."""


class MembershipState(StrEnum):
    LOOKING = "looking"
    SETTLED = "settled"
    MOVING = "moving"


TRANSITIONS: Final = {
    MembershipState.LOOKING: {"settle": MembershipState.SETTLED, "move": MembershipState.MOVING},
    MembershipState.SETTLED: {"move": MembershipState.MOVING},
    MembershipState.MOVING: {"settle": MembershipState.SETTLED, "move": MembershipState.MOVING},
}


class ShardMembership:
    """`span` is where the worker is announced. `search` looks for it, while it is LOOKING."""

    def __init__(
        self, bucket: str, parameters: DiscoveryParameters = DiscoveryParameters()
    ) -> None:
        self.bucket = bucket
        self.state = MembershipState.LOOKING
        self.search = DepthSearch(0, parameters.shards)
        self.span = WHOLE
        self.counts: dict[int, ShardCount] = {}  # the latest of its shards, by depth
        self._parameters = parameters
        self._split, self._merge = parameters.shards.split, parameters.shards.merge
        self.moved_s = 0.0
        self._moves_s: deque[float] = deque(maxlen=parameters.max_moves)

    def settle(self, span: Span, now_s: float) -> bool:
        """Be announced at `span` from now on. Whether that is a change."""
        changed = span != self.span
        if changed or self.state is MembershipState.LOOKING:
            event = "settle" if span.low == span.high else "move"
            self.state = TRANSITIONS[self.state][event]
        if changed:
            self.span = span
            self.moved_s = now_s
            self._moves_s.append(now_s)
            self.counts.clear()
        return changed

    def is_restless(self, now_s: float) -> bool:
        """Whether it has moved so often that it stays where it is for now, whatever it hears."""
        moves_s = self._moves_s
        return len(moves_s) == moves_s.maxlen and now_s < moves_s[0] + self._parameters.ttl_s

    def heard(self, depth: int, count: ShardCount) -> Doubt | None:
        """What one of the peers that hold our shard at `depth` says of it. Our own entry is in
        the count."""
        self.counts[depth] = count
        low, high = self.span
        if depth == low and self._is_astray(count):
            return "astray"
        if depth == high and (self._is_to_be_left(count) or count.members > self._split):
            return "full"
        if low == high == depth > 0 and count.members < self._merge:
            return "sparse"
        return None

    def doubted(self, doubt: Doubt) -> int:
        """The depth of the shard whose holders `confirmed` is to hear."""
        low, high = self.span
        return {"full": high, "astray": low}.get(doubt, high - 1)

    def confirmed(self, doubt: Doubt, count: ShardCount) -> Span | None:
        """Where to move, by what all say who hold the shard `doubted`."""
        low, high = self.span
        match doubt:
            case "full" if self._is_to_be_left(count):
                return Span(high, min(max(count.depth, high + 1), MAX_DEPTH))
            case "full" if count.members > self._split and high < MAX_DEPTH:
                deeper = deeper_by(count.members, self._parameters.shards)
                return Span(high, min(high + deeper, MAX_DEPTH))
            case "sparse" if low == high and high in self.counts:
                # Ours has few, and the one above has room for them.
                own, room = self.counts[high].members, self._split - self._merge - count.members
                return Span(high - 1, high) if own < self._merge and own <= room else None
            case "astray" if self._is_astray(count):
                return Span(low, min(count.depth, MAX_DEPTH))
            case "apart" if low == high > 0 and count.settled:
                # We came at the same time, and did not see each other. `arrived` will tell which
                # of the two shards the members leave.
                return Span(high - 1, high)
            case _:
                return None

    def arrived(self, now_s: float) -> Span | None:
        """Where to stay, if a move is over."""
        low, high = self.span
        ttl_s = self._parameters.ttl_s
        above, below = self.counts.get(low), self.counts.get(high)
        if low == high or now_s < self.moved_s + ttl_s or above is None or below is None:
            return None
        # Workers that are moving are members of both shards. A move that most do not make is given
        # up: readers stay where most are.
        goes_up = below.members <= above.settled
        goes_up = goes_up or (below.members < self._merge and above.members <= self._split)
        left_behind = below.settled if goes_up else above.settled
        if left_behind and now_s < self.moved_s + self._parameters.max_move_ttls * ttl_s:
            return None
        return Span(low, low) if goes_up else Span(high, high)

    def _is_astray(self, count: ShardCount) -> bool:
        """While it moves: whether most of those who leave the shallower shard, for which `count`
        is, go elsewhere. Workers who start at the same moment see different numbers of members,
        and split by one level or by two. Once all have left, the fewer would be in a shard that
        the others, and readers, do not look at. If where they meet is full, all split again."""
        low, high = self.span
        return low < high and count.deeper > 0 and count.depth > low and count.depth != high

    def _is_to_be_left(self, count: ShardCount) -> bool:
        """Whether to follow the members that are deeper as well. They may be on their way up: then
        there is room here, and no samples of members that have left already."""
        is_crowded = count.members > self._split - self._merge
        has_samples = count.deeper > count.members - count.settled - count.shallower
        return is_left(count, self._parameters.shards) and (is_crowded or has_samples)


# The names that a worker's profile belongs under, and the replicas of each.


@dataclass(slots=True)
class Publication:
    """A name that we are announced under, and its replicas: the nearest peers that we know of.
    `membership` and `depth` are None for the name of our own value record."""

    name: bytes
    membership: ShardMembership | None = None
    depth: int = 0
    replicas: tuple[Contact, ...] = ()

    @property
    def is_full(self) -> bool:
        return self.membership is not None and self.depth in self.membership.span


def names_of(
    profile: Profile, network_id: bytes, shards: ShardParameters = ShardParameters()
) -> Mapping[bytes, tuple[int, Span]]:
    """Those of its shards, and its own. Of each the depth, and the author's span there."""
    machine = profile.capability, profile.labels, profile.drivers
    return _names_of(network_id, profile.peer_id, machine, profile.spans, shards)


# Two to four names for each of some dozen buckets: 60 us, and every profile of a worker has the
# same until it moves. At 10 KiB for the most that there can be, 40 MiB at the worst.
@lru_cache(maxsize=4096)
def _names_of(
    network_id: bytes,
    peer_id: PeerId,
    machine: tuple[Capability, tuple[tuple[str, str], ...], tuple[str, ...]],
    spans: tuple[Span, ...],
    shards: ShardParameters,
) -> Mapping[bytes, tuple[int, Span]]:
    capability, labels, drivers = machine
    buckets = buckets_of(capability, dict(labels), drivers)
    by_bucket = dict.fromkeys(buckets, WHOLE)
    by_bucket.update(zip(buckets, spans, strict=False))
    names = places_of(network_id, peer_id, by_bucket, shards)
    names[value_name(peer_id)] = (0, WHOLE)
    return names
