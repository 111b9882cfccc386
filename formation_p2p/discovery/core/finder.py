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
from itertools import zip_longest
from typing import Final, NamedTuple, NewType

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, Key, prefix
from formation_p2p.core.latest import Remembered
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.dht.core.messages import GetProviders, ProviderQuery, ShardCount
from formation_p2p.dht.core.operations import OperationId, Searched
from formation_p2p.discovery.core.depth_search import DepthSearch, agreed
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.discovery.core.trace import Step, Trace
from formation_p2p.machine.core.fits import fits, fits_now
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.buckets import ANY, shard_key, widening
from formation_p2p.records.core.codec import Malformed
from formation_p2p.records.core.profile import Profile, SignedProfile
from formation_p2p.records.core.resources import decode_requirements, encode_requirements

FindId = NewType("FindId", int)

# Before the requirements of a query, which are CBOR and begin otherwise: of those with room now.
ROOMY: Final = b"\x00"


@dataclass(frozen=True, slots=True)
class Found:
    """`profiles` are verified and fresh. `suited` is False for the workers that were looked up
    only to say why they do not suit. `complete` says that there are no others. `heard` is False
    where peers were asked and none answered: then nothing is known of who is there. `holders` keep
    the profiles of the shards that were read: some of each shard, those of the last one first."""

    find: FindId
    profiles: tuple[Profile, ...]
    trace: Trace
    suited: bool
    complete: bool
    heard: bool = True
    holders: tuple[Contact, ...] = ()


class _Answer(NamedTuple):
    """All that suits in a shard, whatever the target; `asked` is 0 for one that is remembered."""

    found: tuple[SignedProfile, ...]
    held: ShardCount
    asked: int
    heard: bool
    holders: tuple[Contact, ...]


@dataclass(slots=True)
class _Find:
    """`region` is a key in the shard being read: the target, or one in a neighbouring shard."""

    find: FindId
    target: Key
    requirements: bytes
    buckets: list[str]  # still to be tried, the most selective first
    cause: str
    fresh: bool
    roomy: bool
    suited: bool
    wanted: int
    max_steps: int
    bucket: str = field(init=False)
    region: Key = field(init=False)
    search: DepthSearch = field(init=False)
    tried: dict[str, int] = field(default_factory=dict)  # how deep each of them is
    found: dict[PeerId, SignedProfile] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    heard: bool = False
    holders: list[tuple[Contact, ...]] = field(default_factory=list)


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
        self.labels = frozenset(labels)
        self._finds: dict[OperationId, _Find] = {}
        # How deep the workers of a bucket were found to be.
        self.depths = Remembered[str, int](parameters.max_depths, parameters.depth_s)
        # By shard and needs.
        self._answers = Remembered[tuple[bytes, bytes], _Answer](
            parameters.max_answers, parameters.answer_s
        )
        self._ended: list[Found] = []
        self._count = 0

    def find(
        self,
        needs: Requirements | None,
        target: Key,
        now: Moment,
        cause: str,
        *,
        fresh: bool = False,
        roomy: bool = False,
        least: int = 0,
    ) -> FindId | None:
        """The workers nearest to a key that could meet the needs; without needs all of them, as
        many as a search can see. None while too many finds are in flight. A `fresh` one uses no
        remembered answers. A `roomy` one looks for workers with room now, as far as announced, or
        else for all that suit. It is not content with fewer than `least`, where there are more."""
        requirements, buckets, ours = b"", [ANY], self._parameters
        if needs is not None:
            needs, requirements = self._narrowed(needs)
            buckets = list(widening(needs))
        if len(self._finds) >= ours.max_finds:
            return None
        first = buckets[0]
        if self.depths.get(first, now) is not None:
            # The rule of thumb said so; of those whose size is known, another one may be smaller.
            depths = {b: d for b in buckets if (d := self.depths.get(b, now)) is not None}
            first = min(depths, key=depths.__getitem__)
        buckets.remove(first)
        self._count += 1
        wanted = ours.wanted_roomy if roomy else ours.wanted
        find = _Find(
            FindId(self._count),
            target,
            ROOMY + requirements if roomy else requirements,
            buckets,
            cause,
            fresh,
            roomy,
            suited=needs is not None,
            wanted=ours.max_steps * ours.max_providers if needs is None else max(wanted, least),
            max_steps=ours.max_steps,
        )
        self._enter(find, first, now)
        self._proceed(find, self._search(find, now), now)
        return find.find

    def searched(self, ended: Searched[SignedProfile], now: Moment) -> None:
        """A search has ended; only those that this asked for are looked at."""
        find = self._finds.pop(ended.operation, None)
        if find is None:
            return
        heard = not ended.asked or bool(ended.closest)
        held = agreed(ended.counts[: self._dht.parameters.beta])
        answer = _Answer(ended.found, held, ended.asked, heard, ended.closest)
        if ended.found and len(ended.found) < self._parameters.max_providers:
            self._answers.learn((self._shard(find), find.requirements), answer, now)
        self._proceed(find, answer, now)

    def take(self) -> list[Found]:
        ended, self._ended = self._ended, []
        return ended

    def _narrowed(self, needs: Requirements) -> tuple[Requirements, bytes]:
        """With the labels that our grant demands of workers, where the query has room for them:
        else all that one search sees may be others."""
        named = {key for key, _ in needs.labels}
        ours = tuple(label for label in sorted(self.labels) if label[0] not in named)
        with suppress(InvalidInput):
            narrowed = replace(needs, labels=needs.labels + ours)
            return narrowed, encode_requirements(narrowed)
        return needs, encode_requirements(needs)

    def _proceed(self, find: _Find, answer: _Answer | None, now: Moment) -> None:
        """Go on with what a shard has answered, for as long as the answers are known."""
        while answer is not None:
            answer = self._search(find, now) if self._goes_on(find, answer, now) else None

    def _goes_on(self, find: _Find, answer: _Answer, now: Moment) -> bool:
        """Take in an answer. Whether there is another shard to read; else the find has ended."""
        bits, held, found = prefix(find.region, find.search.depth), answer.held, len(answer.found)
        step = Step(find.bucket, bits, answer.asked, held.members, held.deeper, found)
        find.steps.append(step)
        find.heard |= answer.heard
        find.holders.append(answer.holders)
        find.found |= {signed.profile.peer_id: signed for signed in answer.found}
        more = find.search.learn(answer.held) is not None or self._next_region(find, now)
        to_room = find.roomy and not find.found
        max_steps = self._parameters.max_steps_to_room if to_room else find.max_steps
        if more and len(find.steps) < max_steps:
            return True
        if to_room:
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
        ended = find.find, profiles, trace, find.suited, complete, find.heard
        self._ended.append(Found(*ended, _some_of_each(find.holders)))
        return False

    def _begin_again(self, find: _Find, bucket: str, now: Moment) -> None:
        find.max_steps = len(find.steps) + self._parameters.max_steps
        find.tried.clear()
        self._enter(find, bucket, now)

    def _enter(self, find: _Find, bucket: str, now: Moment) -> None:
        """Begin at the shard of the target's prefix."""
        find.bucket, find.region = bucket, find.target
        find.search = DepthSearch(self.depths.get(bucket, now) or 0, self._parameters.shards)

    def _next_region(self, find: _Find, now: Moment) -> bool:
        """After a depth search: whether, and where, to go on."""
        depth = find.search.reach
        self.depths.learn(find.bucket, find.search.inhabited, now)
        find.tried.setdefault(find.bucket, depth)
        # Samples of workers farther away do not count: between them and here there may be others.
        read = (find.region ^ find.target) >> (KEY_BITS - depth)
        places = ((key_of_peer(p) ^ find.target) >> (KEY_BITS - depth) for p in find.found)
        if depth == 0 or sum(place <= read for place in places) >= find.wanted:
            return False  # these are all that there are, or enough
        is_first, most = find.region == find.target, self._parameters.max_buckets_tried
        if find.buckets and is_first and len(find.tried) < most:
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
        known = None if find.fresh else self._answers.get((name, find.requirements), now)
        if known is not None:
            return known._replace(asked=0)
        # In the order of a shard's members its key and the target agree: they differ in its prefix.
        query = ProviderQuery(find.region, find.requirements, self._parameters.max_providers)
        self._finds[self._dht.search(GetProviders(name, query), now, find.cause)] = find
        return None

    def _shard(self, find: _Find) -> bytes:
        return shard_key(self._network_id, find.bucket, find.region, find.search.depth)


def _some_of_each(holders: Iterable[tuple[Contact, ...]]) -> tuple[Contact, ...]:
    """Those nearest to one name keep much the same profiles: others know other workers."""
    rows = zip_longest(*reversed(list(holders)))
    merged = {each.peer_id: each for row in rows for each in row if each is not None}
    return tuple(merged.values())


def suits(requirements: bytes) -> Callable[[Profile], bool]:
    """The test that a storing peer filters by. Bytes that do not parse suit no profile."""
    if requirements == b"":
        return lambda profile: True
    try:
        needs = decode_requirements(requirements.removeprefix(ROOMY))
    except Malformed:
        return lambda profile: False
    roomy = requirements.startswith(ROOMY)

    def suit(profile: Profile) -> bool:
        machine = needs, profile.capability, dict(profile.labels), profile.drivers
        refusal = fits_now(*machine, profile.capacity) if roomy else fits(*machine)
        return refusal is None

    return suit
