"""A worker's presence in the DHT: its profile in a shard of every bucket that it belongs to.

It is published again well before it expires, sooner when what it says has changed enough to
matter, and withdrawn where it was stored when the worker leaves.

The peers nearest to each name are looked up once. From then on they are written to directly, in
one message to each peer whatever the number of names, and one of them, another one each time,
tells for each name how full the shard is and which peers are nearer by now. So republishing
costs no lookups, and a peer that has failed is replaced by one lookup.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from formation_p2p.core.capability.buckets import buckets_of
from formation_p2p.core.capability.shards import depths_of, places_of, shard_key
from formation_p2p.core.dht.kademlia import Kademlia
from formation_p2p.core.dht.messages import (
    MAX_NAMES,
    AddProvider,
    Provider,
    ProviderQuery,
    PutValue,
    ShardCount,
)
from formation_p2p.core.dht.operations import BETA, Delivery, OperationId, Published, Searched
from formation_p2p.core.dht.records import Write
from formation_p2p.core.dht.routing import K
from formation_p2p.core.dht.store import value_name
from formation_p2p.core.discovery.depth_search import agreed
from formation_p2p.core.discovery.publication_parameters import PublicationParameters
from formation_p2p.core.discovery.shard_membership import Doubt, ShardMembership
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import WHOLE, Span, key_of
from formation_p2p.core.records.profile import Profile, SignedProfile
from formation_p2p.core.resources.capability import Capability, Capacity

# Republishing is spread over this part of its period, so that workers started together part.
JITTER: Final = 0.2
# A change of capacity by less than this share of the machine is not worth the messages...
CHANGE_SHARE: Final = 0.1
# ...nor is one that follows the last so soon...
MIN_INTERVAL_S: Final = 5.0
# ...or that has passed by then: offers hold capacity for a moment, and tasks may be short.
SETTLE_S: Final = 2.0
# With nobody to store it (the node is alone, or its gate is down), it is tried again this soon.
RETRY_S: Final = 2.0
# A worker that has just started announces itself again so soon, then after twice as long, up to
# the rule: its network may be starting as well, and its shards and their holders with it.
FIRST_REPUBLISH_S: Final = 10.0
# What is found to be written is gathered for so long, to go out in fewer messages.
GATHER_S: Final = 0.25
# The first profile waits for so long for all homes to be found: it names them.
START_S: Final = 3.0
# The cause of all that is asked here.
CAUSE: Final = "announce"
# Peers remembered to hold a profile of ours that has not expired. With 50 names at 8 peers each
# there are 400, and those of before the last change; past this the oldest expire unwithdrawn.
MAX_HOLDERS: Final = 1_024

# In these rounds after its start a worker looks whether others have settled in the shard above.
LOOK_ABOVE_ROUNDS: Final = (1, 2, 3, 5)

Why = Literal["look", "store", "full", "sparse", "apart"]


class _Holder(NamedTuple):
    contact: Contact
    until_s: float


@dataclass(slots=True)
class _Publication:
    """A name that we are announced under, and who holds it: the nearest to it that we know of.
    `home` and `depth` are None for the name of our own value record."""

    name: bytes
    home: ShardMembership | None = None
    depth: int = 0
    holders: tuple[Contact, ...] = ()

    @property
    def is_full(self) -> bool:
        return self.home is not None and self.depth in self.home.span


class _Locating(NamedTuple):
    """A lookup of ours: to `look` where a home is, to `store` under a name, or to see whether a
    shard is `full` or `sparse`, as one peer said, or neighbours have settled `apart` from us."""

    why: Why
    name: bytes
    home: ShardMembership | None


class Announcer:
    """`issue` signs a profile as of now, from what the worker then is, with these spans of its
    `buckets`; `withdrawn` makes it the tombstone. Call `start` once, `changed` with every new
    capacity, `tick` when due, `withdraw` to leave, and hand it every Searched and Published of
    the DHT."""

    def __init__(
        self,
        own: Contact,
        dht: Kademlia[SignedProfile],
        network_id: bytes,
        buckets: tuple[str, ...],
        capability: Capability,
        issue: Callable[[Moment, tuple[Span, ...], bool], SignedProfile],
        rng: random.Random,
        terms: PublicationParameters,
    ) -> None:
        self._own = own
        self._key = key_of_peer(own.peer_id)
        self._dht = dht
        self._network_id = network_id
        self._capability = capability
        self._issue = issue
        self._rng = rng
        self._terms = terms
        self._homes = {bucket: ShardMembership(bucket) for bucket in buckets}
        self._shelves: dict[bytes, _Publication] = {}
        self._signed: SignedProfile | None = None
        self._announced: Capacity | None = None
        self._round = 0
        self._last_s = float("-inf")
        self._due_s = float("inf")
        self._changed_s = float("inf")
        self._flush_s = float("inf")
        self._ready: dict[bytes, tuple[Contact, ...]] = {}  # to be written, and to whom
        self._located: dict[bytes, tuple[Contact, ...]] = {}  # found while looking for a home
        self._locating: dict[OperationId, _Locating] = {}
        self._publishing: set[OperationId] = set()
        self._failed: set[PeerId] = set()  # in this round: at most as many as were written to
        self._asks = True  # for counts and closer peers: once in each round, so that it ends
        self._stored = False  # whether anyone else holds the newest profile
        self._holders: dict[PeerId, _Holder] = {}  # who was written to longest ago first
        self._withdrawing: OperationId | None = None

    # -- when -----------------------------------------------------------------------------------

    def start(self, now: Moment) -> None:
        own_name = value_name(self._own.peer_id)
        self._shelves[own_name] = _Publication(own_name)
        self._plan(now)
        self._flush_s = now.mono_s + START_S
        self._locate("store", own_name, None, now)
        for home in self._homes.values():
            self._ask_shard("look", home, 0, now)

    def changed(self, capacity: Capacity, now: Moment) -> None:
        """Publish soon where the change is worth it, and lasts."""
        if self._announced is None or not self._matters(capacity, self._announced):
            self._changed_s = float("inf")
        elif self._changed_s == float("inf"):
            self._changed_s = max(now.mono_s + SETTLE_S, self._last_s + MIN_INTERVAL_S)

    def disconnected(self, peer_id: PeerId, now: Moment) -> None:
        """A peer that holds the profile may come back without it, as a gate that restarts does.
        In a network of fewer than k peers, each of them counts; in a larger one others have it.
        """
        if peer_id in self._holders and len(self._dht.table) < K and self._announced is not None:
            soon_s = max(now.mono_s + SETTLE_S, self._last_s + MIN_INTERVAL_S)
            self._due_s = min(self._due_s, soon_s)

    def tick(self, now: Moment) -> None:
        if now.mono_s >= min(self._due_s, self._changed_s):
            self._publish(now)
        elif now.mono_s >= self._flush_s:
            self._flush(now)

    def next_timeout(self) -> float:
        return min(self._due_s, self._changed_s, self._flush_s)

    def withdraw(self, now: Moment, cause: str) -> None:
        """Tell everyone who stores the profile that it is no more; `published` tells when."""
        self._due_s = self._changed_s = self._flush_s = float("inf")
        self._announced = None
        self._locating.clear()
        for operation in sorted(self._publishing):
            self._held_by(self._dht.abandon(operation), now)
        self._publishing.clear()
        tombstone = self._issue(now, (), True)
        # As a value, which is answered: whoever has answered has it, and the node may go.
        write = PutValue(value_name(self._own.peer_id), tombstone.raw)
        holders = [h.contact for h in self._holders.values() if h.until_s > now.mono_s]
        self._withdrawing = self._dht.deliver(
            ((holder, write) for holder in (self._own, *holders)), now, cause
        )

    # -- what comes of it -----------------------------------------------------------------------

    def searched(self, ended: Searched[SignedProfile], now: Moment) -> bool:
        """Whether the search was ours."""
        locating = self._locating.pop(ended.operation, None)
        if locating is None:
            return False
        why, name, home = locating
        shelf = self._shelves.get(name)
        if why == "store":
            if shelf is not None:
                self._put(shelf, ended.closest, now)
        else:
            assert home is not None, "a shard is of a bucket"
            if why == "look":
                self._located[name] = ended.closest
                self._looked(home, agreed(ended.counts[:BETA]), now)
            else:
                count = agreed(ended.counts)
                span = {
                    "full": home.is_full,
                    "sparse": home.is_sparse,
                    "apart": home.is_apart,
                }[why](count)
                if span is not None:
                    self._settle(home, span, now)
        self._gathered(now)
        return True

    def published(self, ended: Published, now: Moment) -> bool:
        """Whether this was the end of the withdrawal, after which the node may go."""
        if ended.operation == self._withdrawing:
            return True
        if ended.operation in self._publishing:
            self._publishing.discard(ended.operation)
            others = [c for c in ended.stored_at if c.peer_id != self._own.peer_id]
            self._stored = self._stored or bool(others)
            self._held_by(others, now)
            for delivery in ended.deliveries:
                self._delivered(delivery, now)
            for home in self._homes.values():
                span = home.arrived(self._terms.ttl_s, now.mono_s)
                if span is not None:
                    self._settle(home, span, now)
            self._gathered(now)
            if not self._publishing and not self._stored:  # alone, or everyone is out of reach
                self._due_s = min(self._due_s, now.mono_s + RETRY_S)
        return False

    def _delivered(self, delivery: Delivery, now: Moment) -> None:
        write = delivery.write
        names = write.names if isinstance(write, AddProvider) else (write.name,)
        shelves = [self._shelves[name] for name in names if name in self._shelves]
        if not delivery.taken:
            self._failed.add(delivery.to.peer_id)
            for shelf in shelves:
                shelf.holders = tuple(h for h in shelf.holders if h != delivery.to)
                self._locate("store", shelf.name, shelf.home, now)
        elif delivery.added is not None:
            for name, count in zip(names, delivery.added.counts, strict=True):
                told = self._shelves.get(name)
                if told is not None and told.home and told.is_full:
                    self._doubt(told.home, told.home.heard(told.depth, count), now)
            if names[0] in self._shelves:
                self._put(self._shelves[names[0]], delivery.added.closer, now)

    def _doubt(self, home: ShardMembership, doubt: Doubt | None, now: Moment) -> None:
        if doubt is None or any(each.home is home for each in self._locating.values()):
            return
        if home.is_restless(self._terms.ttl_s, now.mono_s):
            return
        depth = home.span.high if doubt == "full" else home.span.high - 1
        self._ask_shard(doubt, home, depth, now)

    # -- where ----------------------------------------------------------------------------------

    def _shard(self, home: ShardMembership, depth: int) -> bytes:
        return shard_key(self._network_id, home.bucket, self._key, depth)

    def _ask_shard(self, why: Why, home: ShardMembership, depth: int, now: Moment) -> None:
        self._locate(why, self._shard(home, depth), home, now)

    def _looked(self, home: ShardMembership, count: ShardCount, now: Moment) -> None:
        assert home.walk is not None, "it looks until it has settled"
        step = home.walk.learn(count)
        if step is None:
            self._settle(home, home.walk.home(), now)
        else:
            self._ask_shard("look", home, step, now)

    def _settle(self, home: ShardMembership, span: Span, now: Moment) -> None:
        """Have shelves where a worker with this span is announced, and no others."""
        if home.settle(span, now.mono_s) and self._signed is not None:
            # The span is in it. Everybody is to have the new one: whoever reads two of them
            # takes the older for a replay.
            self._signed = None
            self._asks = True
            self._flush_s = max(now.mono_s + GATHER_S, self._last_s + MIN_INTERVAL_S)
        depths = {
            self._shard(home, depth): depth
            for depth in depths_of(home.bucket, self._own.peer_id, span)
        }
        for name in [n for n, s in self._shelves.items() if s.home is home and n not in depths]:
            del self._shelves[name]  # what is stored there expires
            self._ready.pop(name, None)
        for name, depth in depths.items():
            shelf = self._shelves.setdefault(name, _Publication(name, home, depth))
            if name in self._located:
                self._put(shelf, self._located.pop(name), now)
            elif not shelf.holders:
                self._locate("store", name, home, now)

    def _locate(self, why: Why, name: bytes, home: ShardMembership | None, now: Moment) -> None:
        if any(each[:2] == (why, name) for each in self._locating.values()):
            return
        width = BETA if why in ("sparse", "apart") else self._terms.replicas
        query = ProviderQuery(self._key, b"", 0)
        operation = self._dht.find_providers(name, query, now, CAUSE, width=width)
        self._locating[operation] = _Locating(why, name, home)

    def _put(self, shelf: _Publication, peers: Iterable[Contact], now: Moment) -> None:
        """Of the holders and these peers the nearest are to hold it, and the new ones are told."""
        before = {holder.peer_id for holder in shelf.holders}
        # Not who has failed in this round: it may answer all who look for it, and take nothing, as
        # this node does once its own grant has expired. And others may not have noticed yet that
        # a peer is gone; we have.
        peers = [peer for peer in peers if peer.peer_id not in self._failed]
        nearest = self._dht.nearest(shelf.name, (*shelf.holders, *peers), self._room(shelf))
        shelf.holders = tuple(
            each for each in nearest if each.peer_id in before or each.peer_id not in self._failed
        )
        new = tuple(holder for holder in shelf.holders if holder.peer_id not in before)
        if new:
            self._ready[shelf.name] = (*self._ready.get(shelf.name, ()), *new)
            if self._flush_s == float("inf"):
                self._flush_s = now.mono_s + GATHER_S

    def _gathered(self, now: Moment) -> None:
        """Nothing more is to come soon: write at once, but for a profile too soon after another."""
        hurried = self._signed is None and now.mono_s < self._last_s + MIN_INTERVAL_S
        if self._ready and not self._locating and not hurried:
            self._flush(now)

    def _room(self, shelf: _Publication) -> int:
        """How many peers are to hold it. Of a sample some may be missing."""
        is_sample = shelf.home is not None and not shelf.is_full
        return max(1, self._terms.replicas // 2) if is_sample else self._terms.replicas

    # -- writing --------------------------------------------------------------------------------

    def _plan(self, now: Moment) -> None:
        spread = 1 + JITTER * (self._rng.random() - 0.5)
        pause_s = min(FIRST_REPUBLISH_S * 2 ** min(self._round, 6), self._terms.republish_s)
        self._due_s = now.mono_s + pause_s * spread

    def _publish(self, now: Moment) -> None:
        """Everything anew: to all holders, and where some are missing they are looked up."""
        self._round += 1
        self._signed = None
        self._stored = False
        self._failed.clear()
        self._asks = True
        self._located.clear()
        self._plan(now)
        for shelf in self._shelves.values():
            # What the table knows by now costs nothing to ask.
            room = self._room(shelf)
            known = self._dht.table.closest(key_of(shelf.name), room)
            nearest = self._dht.nearest(shelf.name, (*shelf.holders, *known), room)
            if nearest != shelf.holders:
                self._locate("store", shelf.name, shelf.home, now)
        if self._round in LOOK_ABOVE_ROUNDS:
            for home in self._homes.values():
                low, high = home.span
                if home.walk is None and low == high > 0:
                    self._ask_shard("apart", home, high - 1, now)
        self._flush(now)

    def _flush(self, now: Moment) -> None:
        """Write what is ready, in one message for each peer."""
        self._flush_s = float("inf")
        if self._signed is None:
            spans = tuple(home.span for home in self._homes.values())
            if not any(span.high for span in spans):
                spans = ()
            self._signed = self._issue(now, spans, False)
            self._ready = {name: shelf.holders for name, shelf in self._shelves.items()}
            self._announced = self._signed.profile.capacity
            self._last_s = now.mono_s
            self._changed_s = float("inf")
        raw = self._signed.raw
        to: dict[PeerId, Contact] = {}
        names: dict[PeerId, list[bytes]] = {}
        asked: set[PeerId] = set()
        writes: list[tuple[Contact, Write]] = []
        for name, holders in self._ready.items():
            shelf = self._shelves[name]
            if shelf.home is None:
                writes += [(holder, PutValue(name, raw)) for holder in holders]
                continue
            others = [holder for holder in holders if holder.peer_id != self._own.peer_id]
            told = others[self._round % len(others)].peer_id if others else None
            for holder in holders:
                to[holder.peer_id] = holder
                listed = names.setdefault(holder.peer_id, [])
                # Closer peers come for the first name alone.
                listed.insert(0 if holder.peer_id == told else len(listed), name)
            if told is not None and self._asks:
                asked.add(told)
        self._ready.clear()
        self._asks = False
        provider = Provider(self._own, raw)
        for peer_id, held in names.items():
            for some in range(0, len(held), MAX_NAMES):
                first, *more = held[some : some + MAX_NAMES]
                add = AddProvider(first, provider, tuple(more), peer_id in asked)
                writes.append((to[peer_id], add))
        if writes:
            self._publishing.add(self._dht.deliver(writes, now, CAUSE))

    def _held_by(self, peers: Iterable[Contact], now: Moment) -> None:
        for contact in peers:
            if contact.peer_id != self._own.peer_id:
                self._holders.pop(contact.peer_id, None)
                self._holders[contact.peer_id] = _Holder(contact, now.mono_s + self._terms.ttl_s)
        while len(self._holders) > MAX_HOLDERS:
            del self._holders[next(iter(self._holders))]

    def _matters(self, new: Capacity, old: Capacity) -> bool:
        """Whether any resource changed by a tenth of what the machine has."""
        whole = self._capability
        amounts = [
            (new.cpu_milli, old.cpu_milli, whole.cpu_milli),
            (new.memory_bytes, old.memory_bytes, whole.memory_bytes),
            (new.storage_bytes, old.storage_bytes, whole.storage_bytes),
            (_share(new), _share(old), 1000 * len(whole.gpus)),
        ]
        return any(
            abs(now - then) >= CHANGE_SHARE * total and now != then for now, then, total in amounts
        )


def _share(capacity: Capacity) -> int:
    return sum(gpu.share_milli for gpu in capacity.gpus)


def names_of(profile: Profile, network_id: bytes) -> Mapping[bytes, tuple[int, Span]]:
    """Every DHT name that a profile belongs under: its shards', and its own. Of each the depth,
    and the author's span there."""
    return _names_of(
        network_id,
        profile.peer_id,
        profile.capability,
        profile.labels,
        profile.drivers,
        profile.spans,
    )


# Two to four names for each of some dozen buckets: 60 us, and every profile of a worker has the
# same until it moves. At 10 KiB for the most that there can be, 40 MiB at the worst.
@lru_cache(maxsize=4096)
def _names_of(
    network_id: bytes,
    peer_id: PeerId,
    capability: Capability,
    labels: tuple[tuple[str, str], ...],
    drivers: tuple[str, ...],
    spans: tuple[Span, ...],
) -> Mapping[bytes, tuple[int, Span]]:
    buckets = buckets_of(capability, dict(labels), drivers)
    by_bucket = dict.fromkeys(buckets, WHOLE)
    by_bucket.update(zip(buckets, spans, strict=False))
    names = places_of(network_id, peer_id, by_bucket)
    names[value_name(peer_id)] = (0, WHOLE)
    return names
