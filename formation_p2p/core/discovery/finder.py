"""Finds the workers that could meet requirements.

The most selective bucket that the requirements imply is asked for the workers nearest to the
task's key: its root shard first, which tells how deep to go, then the shard of the key's prefix;
that depth is remembered, so that the next search asks one shard. The storing peers filter and
rank. Where too few suit, the next selective bucket is tried, and then the neighbouring shards,
in the order of their distance from the key. Where no worker suits, all near the key are looked
at, so that a person can be told why each one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, NewType, TypeVar

from formation_p2p.core.capability.buckets import ANY, widening
from formation_p2p.core.capability.shards import shard_key
from formation_p2p.core.dht.kademlia import Kademlia
from formation_p2p.core.dht.messages import ProviderQuery, ShardCount
from formation_p2p.core.dht.operations import OperationId, Searched
from formation_p2p.core.discovery.depth_search import DepthSearch, agreed
from formation_p2p.core.discovery.parameters import DiscoveryParameters
from formation_p2p.core.discovery.trace import Step, Trace
from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, Key, prefix
from formation_p2p.core.records.codec import Malformed
from formation_p2p.core.records.profile import Profile, SignedProfile
from formation_p2p.core.records.resources import decode_requirements, encode_requirements
from formation_p2p.core.resources.fits import fits, fits_now
from formation_p2p.core.resources.requirements import Requirements

FindId = NewType("FindId", int)

_K = TypeVar("_K")
_V = TypeVar("_V")

# Before the requirements of a query, which are CBOR and begin otherwise: of those with room now.
ROOMY: Final = b"\x00"


@dataclass(frozen=True, slots=True)
class Found:
    """`profiles` are verified and fresh. `suited` is False for the workers that were looked up
    only to say why they do not suit. `complete` says that there are no others. `heard` is False
    where peers were asked and none answered: then nothing is known of who is there."""

    find: FindId
    profiles: tuple[Profile, ...]
    trace: Trace
    suited: bool
    complete: bool
    heard: bool = True


class _Depth(NamedTuple):
    depth: int
    until_s: float


class _Answer(NamedTuple):
    """All that suits in a shard, whatever the target; `asked` is 0 for one that is remembered."""

    found: tuple[SignedProfile, ...]
    held: ShardCount
    asked: int
    heard: bool
    until_s: float = 0.0


@dataclass(slots=True)
class _Find:
    """`region` is a key in the shard being read: the target, or one in a neighbouring shard."""

    find: FindId
    target: Key
    requirements: bytes
    wanted: int
    max_steps: int
    cause: str
    buckets: list[str]  # still to be tried, the most selective first
    bucket: str
    region: Key
    search: DepthSearch
    fresh: bool
    suited: bool = True
    roomy: bool = False
    tried: dict[str, int] = field(default_factory=dict)  # how deep each of them is
    found: dict[PeerId, SignedProfile] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    heard: bool = False


class Finder:
    """Call `find`, hand every Searched of the DHT to `searched`, and `take` what has ended after
    either. `labels` are those of the workers that our grant is for."""

    def __init__(
        self,
        dht: Kademlia[SignedProfile],
        network_id: bytes,
        labels: Iterable[tuple[str, str]] = (),
        parameters: DiscoveryParameters = DiscoveryParameters(),
    ) -> None:
        self._parameters = parameters
        self._dht = dht
        self._network_id = network_id
        self._labels = tuple(sorted(labels))
        self._finds: dict[OperationId, _Find] = {}
        self._depths: dict[str, _Depth] = {}  # what was learnt longest ago first
        self._answers: dict[tuple[bytes, bytes], _Answer] = {}  # by shard and needs
        self._ended: list[Found] = []
        self._count = 0

    def find(
        self,
        needs: Requirements,
        target: Key,
        now: Moment,
        cause: str,
        *,
        fresh: bool = False,
        roomy: bool = False,
    ) -> FindId | None:
        """None while too many finds are in flight. A `fresh` one uses no remembered answers. A
        `roomy` one looks for workers with room now, as far as announced, or else for all that
        suit."""
        needs, requirements = self._narrowed(needs)
        buckets = list(widening(needs))
        first = buckets[0]
        if self.depth_of(first, now) is not None:
            # The rule of thumb said so; of those whose size is known, another one may be smaller.
            known = [bucket for bucket in buckets if self.depth_of(bucket, now) is not None]
            first = min(known, key=lambda bucket: self.depth_of(bucket, now) or 0)
        buckets.remove(first)
        return self._start(first, buckets, requirements, target, now, cause, fresh, roomy)

    def everyone(self, target: Key, now: Moment, cause: str) -> FindId | None:
        """The workers nearest to a key, whatever they can do, as many as a search can see. None
        as with `find`."""
        return self._start(ANY, [], b"", target, now, cause, True)

    def searched(self, ended: Searched[SignedProfile], now: Moment) -> bool:
        """Whether the search was ours."""
        find = self._finds.pop(ended.operation, None)
        if find is None:
            return False
        heard = not ended.asked or bool(ended.closest)
        answer = _Answer(
            ended.found, agreed(ended.counts[: self._dht.parameters.beta]), ended.asked, heard
        )
        if ended.found and len(ended.found) < self._parameters.max_providers:
            shard = (self._shard(find), find.requirements)
            known = answer._replace(until_s=now.mono_s + self._parameters.answer_s)
            _remember(self._answers, shard, known, self._parameters.max_answers)
        self._proceed(find, answer, now)
        return True

    def take(self) -> list[Found]:
        ended, self._ended = self._ended, []
        return ended

    def _narrowed(self, needs: Requirements) -> tuple[Requirements, bytes]:
        """With the labels that our grant demands of workers, where the query has room for them:
        else all that one search sees may be others."""
        named = {key for key, _ in needs.labels}
        ours = tuple(label for label in self._labels if label[0] not in named)
        with suppress(InvalidInput):
            narrowed = replace(needs, labels=needs.labels + ours)
            return narrowed, encode_requirements(narrowed)
        return needs, encode_requirements(needs)

    def _start(
        self,
        bucket: str,
        others: list[str],
        requirements: bytes,
        target: Key,
        now: Moment,
        cause: str,
        fresh: bool,
        roomy: bool = False,
    ) -> FindId | None:
        if len(self._finds) >= self._parameters.max_finds:
            return None
        self._count += 1
        find = _Find(
            FindId(self._count),
            target,
            ROOMY + requirements if roomy else requirements,
            self._wanted(requirements, roomy),
            self._parameters.max_steps,
            cause,
            others,
            bucket,
            target,
            DepthSearch(0, self._parameters.shards),
            fresh,
            suited=bool(requirements),
            roomy=roomy,
        )
        self._enter(find, bucket, now)
        self._proceed(find, self._search(find, now), now)
        return find.find

    def _proceed(self, find: _Find, answer: _Answer | None, now: Moment) -> None:
        """Go on with what a shard has answered, for as long as the answers are known."""
        while answer is not None:
            answer = self._search(find, now) if self._goes_on(find, answer, now) else None

    def _goes_on(self, find: _Find, answer: _Answer, now: Moment) -> bool:
        """Take in an answer. Whether there is another shard to read; else the find has ended."""
        step = Step(
            find.bucket,
            prefix(find.region, find.search.depth),
            answer.asked,
            answer.held.members,
            answer.held.deeper,
            len(answer.found),
        )
        find.steps.append(step)
        find.heard |= answer.heard
        for signed in answer.found:
            find.found[signed.profile.peer_id] = signed
        more = find.search.learn(answer.held) is not None or self._next_region(find, now)
        to_room = find.roomy and not find.found
        max_steps = self._parameters.max_steps_to_room if to_room else find.max_steps
        if more and len(find.steps) < max_steps:
            return True
        if find.roomy and not find.found:
            find.roomy, find.requirements = False, find.requirements.removeprefix(ROOMY)
            self._begin_again(find, next(iter(find.tried)), now)
            return True
        if find.suited and not find.found:
            find.suited, find.requirements, find.wanted = False, b"", self._parameters.max_providers
            find.buckets, find.fresh = [], True
            self._begin_again(find, ANY, now)
            return True
        profiles = tuple(signed.profile for signed in find.found.values())
        complete = not more and len(profiles) < find.wanted
        trace = Trace(tuple(find.steps))
        self._ended.append(Found(find.find, profiles, trace, find.suited, complete, find.heard))
        return False

    def _begin_again(self, find: _Find, bucket: str, now: Moment) -> None:
        find.max_steps = len(find.steps) + self._parameters.max_steps
        find.tried.clear()
        self._enter(find, bucket, now)

    def _enter(self, find: _Find, bucket: str, now: Moment) -> None:
        """Begin at the shard of the target's prefix."""
        find.bucket, find.region = bucket, find.target
        find.search = DepthSearch(self.depth_of(bucket, now) or 0, self._parameters.shards)

    def _next_region(self, find: _Find, now: Moment) -> bool:
        """After a depth search: whether, and where, to go on."""
        depth = find.search.reach
        self.learn(find.bucket, find.search.inhabited, now)
        find.tried.setdefault(find.bucket, depth)
        # Samples of workers farther away do not count: between them and here there may be others.
        read = (find.region ^ find.target) >> (KEY_BITS - depth)
        places = ((key_of_peer(p) ^ find.target) >> (KEY_BITS - depth) for p in find.found)
        if depth == 0 or sum(place <= read for place in places) >= find.wanted:
            return False  # these are all that there are, or enough
        if (
            find.buckets
            and len(find.tried) < self._parameters.max_buckets_tried
            and find.region == find.target
        ):
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
        find.search = DepthSearch(depth, self._parameters.shards)
        return True

    def _search(self, find: _Find, now: Moment) -> _Answer | None:
        """Ask for the shard, or give the answer that is remembered."""
        name = self._shard(find)
        known = self._answers.get((name, find.requirements))
        if known is not None and known.until_s > now.mono_s and not find.fresh:
            return known._replace(asked=0)
        # In the order of a shard's members its key and the target agree: they differ in its prefix.
        query = ProviderQuery(find.region, find.requirements, self._parameters.max_providers)
        operation = self._dht.find_providers(name, query, now, find.cause)
        self._finds[operation] = find
        return None

    def _wanted(self, requirements: bytes, roomy: bool) -> int:
        if not requirements:
            return self._parameters.max_steps * self._parameters.max_providers
        return self._parameters.wanted_roomy if roomy else self._parameters.wanted

    def _shard(self, find: _Find) -> bytes:
        return shard_key(self._network_id, find.bucket, find.region, find.search.depth)

    def depth_of(self, bucket: str, now: Moment) -> int | None:
        """How deep its workers were found to be, a while ago at most."""
        known = self._depths.get(bucket)
        return known.depth if known is not None and known.until_s > now.mono_s else None

    def learn(self, bucket: str, depth: int, now: Moment) -> None:
        """Workers of this bucket are so deep."""
        _remember(
            self._depths,
            bucket,
            _Depth(depth, now.mono_s + self._parameters.depth_s),
            self._parameters.max_depths,
        )


def _remember(table: dict[_K, _V], key: _K, value: _V, most: int) -> None:
    """The oldest entry makes room."""
    table.pop(key, None)
    table[key] = value
    if len(table) > most:
        del table[next(iter(table))]


def suits(requirements: bytes) -> Callable[[Profile], bool]:
    """The test that a storing peer filters by. Bytes that do not parse suit no profile."""
    if requirements == b"":
        return lambda profile: True
    try:
        needs = decode_requirements(requirements.removeprefix(ROOMY))
    except Malformed:
        return lambda profile: False
    if requirements.startswith(ROOMY):
        return lambda profile: (
            fits_now(
                needs, profile.capability, dict(profile.labels), profile.drivers, profile.capacity
            )
            is None
        )
    return lambda profile: (
        fits(needs, profile.capability, dict(profile.labels), profile.drivers) is None
    )
