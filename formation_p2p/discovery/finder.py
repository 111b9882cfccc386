"""From requirements to the workers that could meet them.

The most selective bucket that the requirements imply is asked for the workers nearest to the
task's key: its root shard first, which tells how deep to go, then the shard of the key's prefix;
that depth is remembered, so that the next search asks one shard. The storing peers filter and
rank. Where too few suit, the next selective bucket is tried, and then the neighbouring shards,
in the order of their distance from the key. Where nobody suits at all, all workers near the key
are looked at, so that a person can be told why each one does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NewType

from formation_p2p.capability.buckets import ANY, widening
from formation_p2p.capability.shards import shard_key
from formation_p2p.dht.kademlia import Kademlia
from formation_p2p.dht.messages import MAX_PROVIDERS, ProviderQuery
from formation_p2p.dht.operations import BETA, OperationId, Searched
from formation_p2p.discovery.trace import Step, Trace
from formation_p2p.discovery.walk import Walk, agreed
from formation_p2p.effects import Moment
from formation_p2p.identity import PeerId
from formation_p2p.keyspace import KEY_BITS, Key, prefix
from formation_p2p.records.codec import Malformed
from formation_p2p.records.profile import Profile, SignedProfile
from formation_p2p.records.resources import decode_requirements, encode_requirements
from formation_p2p.resources.fits import fits
from formation_p2p.resources.requirements import Requirements

FindId = NewType("FindId", int)

# Searches under way at once; each costs a lookup or two. Who has as many waits for its turn.
MAX_FINDS: Final = 64
# A search is content with so many workers. Half a shard's members are twice as many, so that one
# shard is enough wherever most of its members suit.
WANTED: Final = 8
# Lookups for one search. Two are the rule; with so many it has seen 200 workers.
MAX_STEPS: Final = 12
# Other buckets tried where the first has too few that suit.
MAX_BUCKETS_TRIED: Final = 3
# How deep a bucket is changes when it doubles. Wrong by one, it costs a lookup and no worker.
DEPTH_S: Final = 600.0
# A scheduler asks for a few dozen kinds of machines.
MAX_DEPTHS: Final = 256


@dataclass(frozen=True, slots=True)
class Found:
    """`profiles` are verified and fresh. `suited` is False for the workers that were looked up
    only to say why they do not suit. `complete` says that there are no others."""

    find: FindId
    profiles: tuple[Profile, ...]
    trace: Trace
    suited: bool
    complete: bool


class _Depth(NamedTuple):
    depth: int
    until_s: float


@dataclass(slots=True)
class _Find:
    """`region` is a key in the shard being read: the target, or one in a neighbouring shard."""

    find: FindId
    target: Key
    requirements: bytes
    wanted: int
    cause: str
    buckets: list[str]  # still to be tried, the most selective first
    bucket: str
    region: Key
    walk: Walk
    suited: bool = True
    tried: dict[str, int] = field(default_factory=dict)  # how deep each of them is
    found: dict[PeerId, SignedProfile] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


class Finder:
    """Call `find`, hand every Searched of the DHT to `searched`; it returns Found in the end."""

    def __init__(self, dht: Kademlia[SignedProfile], network_id: bytes) -> None:
        self._dht = dht
        self._network_id = network_id
        self._finds: dict[OperationId, _Find] = {}
        self._depths: dict[str, _Depth] = {}  # what was learnt longest ago first
        self._count = 0

    def find(self, needs: Requirements, target: Key, now: Moment, cause: str) -> FindId | None:
        """None while too many finds are under way."""
        raw = encode_requirements(needs)
        return self._start(list(widening(needs)), raw, target, WANTED, now, cause)

    def everyone(self, target: Key, now: Moment, cause: str) -> FindId | None:
        """The workers nearest to a key, whatever they can do, as many as a search can see. None
        as with `find`."""
        find_id = self._start([ANY], b"", target, MAX_STEPS * MAX_PROVIDERS, now, cause)
        if find_id is not None:
            find = next(f for f in self._finds.values() if f.find == find_id)
            find.suited = False
        return find_id

    def searched(self, ended: Searched[SignedProfile], now: Moment) -> Found | None:
        """None where the search was not ours, or where another one was needed."""
        find = self._finds.pop(ended.operation, None)
        if find is None:
            return None
        count = agreed(ended.counts[:BETA])
        find.steps.append(
            Step(
                find.bucket,
                prefix(find.region, find.walk.depth),
                ended.asked,
                count.members,
                count.deeper,
                len(ended.found),
            )
        )
        for signed in ended.found:
            find.found[signed.profile.peer_id] = signed
        more = find.walk.learn(count) is not None or self._next_region(find, now)
        if len(find.steps) < MAX_STEPS and more:
            self._search(find, now)
            return None
        if find.suited and not find.found:
            find.suited, find.requirements, find.wanted = False, b"", MAX_PROVIDERS
            find.buckets = []
            self._enter(find, ANY, now)
            self._search(find, now)
            return None
        return self._ended(find, more)

    def _start(
        self,
        buckets: list[str],
        requirements: bytes,
        target: Key,
        wanted: int,
        now: Moment,
        cause: str,
    ) -> FindId | None:
        if len(self._finds) >= MAX_FINDS:
            return None
        self._count += 1
        # Those whose size is known first, the smallest of them; the others by the rule of thumb.
        known = [bucket for bucket in buckets if self._depth(bucket, now) is not None]
        first = min(known, key=lambda b: self._depth(b, now) or 0, default=buckets[0])
        buckets.remove(first)
        walk = Walk(0)
        find_id = FindId(self._count)
        find = _Find(find_id, target, requirements, wanted, cause, buckets, first, target, walk)
        self._enter(find, first, now)
        self._search(find, now)
        return find_id

    def _enter(self, find: _Find, bucket: str, now: Moment) -> None:
        """Begin at the shard of the target's prefix."""
        find.bucket, find.region = bucket, find.target
        find.walk = Walk(self._depth(bucket, now) or 0)

    def _next_region(self, find: _Find, now: Moment) -> bool:
        """After a walk: whether, and where, to go on."""
        depth = find.walk.reach
        self._learn(find.bucket, find.walk.inhabited, now)
        find.tried.setdefault(find.bucket, depth)
        if depth == 0 or len(find.found) >= find.wanted:
            return False  # these are all that there are, or enough
        if find.buckets and len(find.tried) < MAX_BUCKETS_TRIED and find.region == find.target:
            self._enter(find, find.buckets.pop(0), now)
            return True
        smallest = min(find.tried, key=lambda bucket: find.tried[bucket])
        if find.bucket != smallest:  # only where its own first shard was read just now
            find.bucket, find.region, depth = smallest, find.target, find.tried[smallest]
        # Shards of one depth, in the order of their distance from the target: the target's own
        # prefix with 1 added, 2 added, and so on, by XOR.
        ahead = ((find.region ^ find.target) >> (KEY_BITS - depth)) + 1
        if ahead >> depth:
            return False
        find.region = Key(find.target ^ (ahead << (KEY_BITS - depth)))
        find.walk = Walk(depth)
        return True

    def _search(self, find: _Find, now: Moment) -> None:
        name = shard_key(self._network_id, find.bucket, find.region, find.walk.depth)
        query = ProviderQuery(find.target, find.requirements, MAX_PROVIDERS)
        operation = self._dht.find_providers(name, query, now, find.cause)
        self._finds[operation] = find

    def _ended(self, find: _Find, more: bool) -> Found:
        profiles = tuple(signed.profile for signed in find.found.values())
        complete = not more and len(profiles) < find.wanted
        return Found(find.find, profiles, Trace(tuple(find.steps)), find.suited, complete)

    def _depth(self, bucket: str, now: Moment) -> int | None:
        known = self._depths.get(bucket)
        return known.depth if known is not None and known.until_s > now.mono_s else None

    def _learn(self, bucket: str, depth: int, now: Moment) -> None:
        self._depths.pop(bucket, None)
        self._depths[bucket] = _Depth(depth, now.mono_s + DEPTH_S)
        if len(self._depths) > MAX_DEPTHS:
            del self._depths[next(iter(self._depths))]


def suits(requirements: bytes) -> Callable[[Profile], bool]:
    """The test that a storing peer filters by. Bytes that do not parse suit nobody."""
    if requirements == b"":
        return lambda profile: True
    try:
        needs = decode_requirements(requirements)
    except Malformed:
        return lambda profile: False
    return lambda profile: (
        fits(needs, profile.capability, dict(profile.labels), profile.drivers) is None
    )
