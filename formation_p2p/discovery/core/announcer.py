"""A worker's presence in the DHT: its profile in a shard of every bucket that it belongs to.

It is published again well before it expires, sooner when what it says has changed enough to
matter, and withdrawn where it was stored when the worker leaves.

The peers nearest to each name are looked up once, where they are not known. From then on they are
written to directly (`shard_membership.py`), and some of them tell how full each shard is and which
peers are nearer. So republishing costs no lookups, and a peer that has failed is replaced by one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, NamedTuple

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import Span, key_of
from formation_p2p.core.latest import Latest
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.dht.core.operations import Delivery, OperationId, Published, Searched
from formation_p2p.dht.core.store import value_name
from formation_p2p.discovery.core.depth_search import agreed
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.discovery.core.shard_membership import (
    Doubt,
    MembershipState,
    Publication,
    ShardMembership,
)
from formation_p2p.machine.core.capability import Capability, Capacity
from formation_p2p.records.core.buckets import depths_of, shard_key
from formation_p2p.records.core.profile import SignedProfile

# How soon a worker may publish itself again.


class Pace:
    """Call `published` with each profile. Times are on the monotonic clock."""

    def __init__(self, parameters: DiscoveryParameters) -> None:
        self._parameters = parameters
        self._last_s = float("-inf")
        self._moves: deque[float] = deque(maxlen=parameters.max_quick_moves)

    def published(self, now: Moment) -> None:
        self._last_s = now.mono_s

    def after(self, wait_s: float, now: Moment) -> float:
        """When `wait_s` is over, and the least interval since the last profile."""
        return max(now.mono_s + wait_s, self._last_s + self._parameters.min_interval_s)

    def moved(self, now: Moment, due_s: float) -> float:
        """When to tell of new addresses, where something is to be told at `due_s`: at once, unless
        they change all the time."""
        ours = self._parameters
        quick_s = max(now.mono_s + ours.move_settle_s, self._last_s + ours.move_interval_s)
        if due_s <= quick_s:
            return due_s
        oldest_s = self._moves[0] if len(self._moves) == ours.max_quick_moves else float("-inf")
        if oldest_s > now.mono_s - ours.ttl_s:
            return min(due_s, self.after(ours.settle_s, now))
        self._moves.append(now.mono_s)
        return quick_s


# The cause of all requests made here.
CAUSE: Final = "announce"

Why = Literal["look", "store"] | Doubt


class _Locating(NamedTuple):
    """A lookup of ours: to `look` for a membership, to `store` under a name, or to see whether a
    shard is in `Doubt`, as one peer said, or where neighbours may have settled `apart` from us."""

    why: Why
    name: bytes
    membership: ShardMembership | None


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
        parameters: DiscoveryParameters = DiscoveryParameters(),
    ) -> None:
        self._own = own
        self._key = key_of_peer(own.peer_id)
        self._dht = dht
        self._network_id = network_id
        self._capability = capability
        self._issue = issue
        self._rng = rng
        self._parameters = parameters
        self._beta = dht.parameters.beta
        self.buckets = tuple(buckets)
        self._memberships: dict[str, ShardMembership] = {}
        self.publications: dict[bytes, Publication] = {}
        self._signed: SignedProfile | None = None
        self._announced: Capacity | None = None
        self._round = 0
        self._pace = Pace(parameters)
        self._due_s = self._changed_s = self._flush_s = float("inf")
        self._altered = False
        self._ready: dict[bytes, tuple[Contact, ...]] = {}  # by name: the peers to write to
        self._located: dict[bytes, tuple[Contact, ...]] = {}  # found while looking for a shard
        self._locating: dict[OperationId, _Locating] = {}
        self._publishing: set[OperationId] = set()
        self._failed: set[PeerId] = set()  # in this round: at most as many as were written to
        self._acknowledged = True  # counts and closer peers come once a round, so that it ends
        self._stored = False  # whether any other peer holds the newest profile
        # Who holds a profile of ours, and until when.
        self._written = Latest[PeerId, tuple[Contact, float]](parameters.max_written)
        self._withdrawing: OperationId | None = None

    def start(self, now: Moment) -> None:
        own_name, self._signed = value_name(self._own.peer_id), None
        self.publications = {own_name: Publication(own_name)}
        self._memberships = {x: ShardMembership(x, self._parameters) for x in self.buckets}
        self._plan(now)
        self._flush_s = now.mono_s + self._parameters.start_s
        self._locate("store", own_name, None, now)
        for membership in self._memberships.values():
            self._ask_shard("look", membership, 0, now)

    def altered(self) -> None:
        """Something else than the capacity, of which the next `changed` is to tell."""
        self._altered = True

    def changed(self, capacity: Capacity, now: Moment) -> None:
        """Publish soon where the change is worth it, and lasts."""
        announced = self._announced
        if announced is None or not (self._altered or self._matters(capacity, announced)):
            self._changed_s = float("inf")
        elif self._changed_s == float("inf"):
            self._changed_s = self._pace.after(self._parameters.settle_s, now)

    def moved(self, own: Contact, now: Moment) -> None:
        """This machine is reached elsewhere: publish that at once, with what follows closely."""
        self._own = own
        if self._announced is not None:  # or the first profile says so
            self._altered = True
            self._changed_s = self._pace.moved(now, self._changed_s)

    def disconnected(self, peer_id: PeerId, now: Moment) -> None:
        """A peer that holds the profile may come back without it, as a gate that restarts does.
        In a network of fewer than k peers, each of them counts; in a larger one others have it.
        """
        is_small = len(self._dht.table) < self._dht.parameters.k
        if peer_id in self._written and is_small and self._announced is not None:
            self._due_s = min(self._due_s, self._pace.after(self._parameters.settle_s, now))

    def met(self, gate: Contact, now: Moment) -> None:
        """A gate that was gone answers: it may have restarted, and newcomers ask it. It gets, at
        once, what it is to hold."""
        if self._announced is None:
            return
        self._failed.discard(gate.peer_id)
        for publication in self.publications.values():
            if any(each.peer_id == gate.peer_id for each in self._ready.get(publication.name, ())):
                continue  # it is about to be written to
            others = (each for each in publication.replicas if each.peer_id != gate.peer_id)
            publication.replicas = tuple(others)
            self._put(publication, (gate,), now)

    def tick(self, now: Moment) -> None:
        if now.mono_s >= min(self._due_s, self._changed_s):
            self._publish(now)
        elif now.mono_s >= self._flush_s:
            self._flush(now)

    def next_timeout(self) -> float:
        return min(self._due_s, self._changed_s, self._flush_s)

    def withdraw(self, now: Moment, cause: str) -> None:
        """Tell all replicas that the profile is withdrawn. `published` tells when they know."""
        self.pause(now)
        # As a value, which is answered: a peer that has answered has it, and the node may go.
        write = kad.PutValue(value_name(self._own.peer_id), self._issue(now, (), True).raw)
        replicas = [peer for peer, until_s in self._written.values() if until_s > now.mono_s]
        self._withdrawing = self._dht.operations.deliver(
            ((replica, write) for replica in (self._own, *replicas)), now, cause
        )

    def pause(self, now: Moment) -> None:
        """Publish nothing until `start`: peers store no profile of a worker without a grant."""
        self._due_s = self._changed_s = self._flush_s = float("inf")
        self._announced, self._ready = None, {}
        self._locating.clear()
        for operation in sorted(self._publishing):
            self._note_written(self._dht.operations.abandon(operation), now)
        self._publishing.clear()

    def searched(self, ended: Searched[SignedProfile], now: Moment) -> bool:
        """Whether the search was ours."""
        locating = self._locating.pop(ended.operation, None)
        if locating is None:
            return False
        why, name, membership = locating
        if why == "store":
            if name in self.publications:
                self._put(self.publications[name], ended.closest, now)
        else:
            assert membership is not None, "a shard is of a bucket"
            if why == "look":
                self._located[name] = ended.closest
                step = membership.search.learn(agreed(ended.counts[: self._beta]))
                if step is not None:
                    self._ask_shard("look", membership, step, now)
                span = membership.search.span() if step is None else None
            else:
                span = membership.confirmed(why, agreed(ended.counts))
            if span is not None:
                self._settle(membership, span, now)
        self._gathered(now)
        return True

    def published(self, ended: Published, now: Moment) -> bool:
        """Whether this was the end of the withdrawal, after which the node may go."""
        if ended.operation == self._withdrawing:
            return True
        if ended.operation in self._publishing:
            self._publishing.discard(ended.operation)
            self._stored |= any(c.peer_id != self._own.peer_id for c in ended.stored_at)
            self._note_written(ended.stored_at, now)
            for delivery in ended.deliveries:
                self._delivered(delivery, now)
            for membership in self._memberships.values():
                span = membership.arrived(now.mono_s)
                if span is not None:
                    self._settle(membership, span, now)
            self._gathered(now)
            if not self._publishing and not self._stored:  # alone, or all are out of reach
                self._due_s = min(self._due_s, now.mono_s + self._parameters.retry_s)
        return False

    def _delivered(self, delivery: Delivery, now: Moment) -> None:
        write = delivery.write
        names = write.names if isinstance(write, kad.AddProvider) else (write.name,)
        known = self.publications
        if not delivery.taken:
            self._failed.add(delivery.to.peer_id)
            for publication in [known[name] for name in names if name in known]:
                publication.replicas = tuple(r for r in publication.replicas if r != delivery.to)
                self._locate("store", publication.name, publication.membership, now)
        elif delivery.added is not None:
            for name, count in zip(names, delivery.added.counts, strict=True):
                shard = known.get(name)
                if shard is not None and shard.membership and shard.is_full:
                    self._doubt(shard.membership, shard.membership.heard(shard.depth, count), now)
            if names[0] in known:
                self._put(known[names[0]], delivery.added.closer, now)

    def _doubt(self, membership: ShardMembership, doubt: Doubt | None, now: Moment) -> None:
        if doubt is None or any(each.membership is membership for each in self._locating.values()):
            return
        if not membership.is_restless(now.mono_s):
            self._ask_shard(doubt, membership, membership.doubted(doubt), now)

    def _shard(self, membership: ShardMembership, depth: int) -> bytes:
        return shard_key(self._network_id, membership.bucket, self._key, depth)

    def _ask_shard(self, why: Why, membership: ShardMembership, depth: int, now: Moment) -> None:
        self._locate(why, self._shard(membership, depth), membership, now)

    def _settle(self, membership: ShardMembership, span: Span, now: Moment) -> None:
        """Have publications where a worker with this span is announced, and no others."""
        if membership.settle(span, now.mono_s) and self._signed is not None:
            # The span is in it. All replicas are to have the new one: a reader of two profiles
            # takes the older for a replay.
            self._signed = None
            self._acknowledged = True
            self._flush_s = self._pace.after(self._parameters.gather_s, now)
        own, shards = self._own.peer_id, self._parameters.shards
        depths = {
            self._shard(membership, depth): depth
            for depth in depths_of(membership.bucket, own, span, shards)
        }
        for name, publication in list(self.publications.items()):
            if publication.membership is membership and name not in depths:
                del self.publications[name]  # what is stored there expires
                self._ready.pop(name, None)
        for name, depth in depths.items():
            publication = self.publications.setdefault(name, Publication(name, membership, depth))
            if name in self._located:
                self._put(publication, self._located.pop(name), now)
            elif not publication.replicas:
                self._locate("store", name, membership, now)

    def _locate(
        self, why: Why, name: bytes, membership: ShardMembership | None, now: Moment
    ) -> None:
        if any(each[:2] == (why, name) for each in self._locating.values()):
            return
        replicas = self._parameters.replicas
        if why == "store" and (known := self._dht.surely_nearest(name, replicas, now)):
            self._put(self.publications[name], known, now)
            return
        width = self._beta if why in ("sparse", "apart") else replicas
        request = kad.GetProviders(name, kad.ProviderQuery(self._key, b"", 0))
        operation = self._dht.search(request, now, CAUSE, width=width)
        self._locating[operation] = _Locating(why, name, membership)

    def _put(self, publication: Publication, peers: Iterable[Contact], now: Moment) -> None:
        """Have the nearest of the replicas and these peers hold it; new ones are written to."""
        before = {replica.peer_id for replica in publication.replicas}
        # Without those that failed in this round: one may answer lookups and store nothing, as
        # this node does once its own grant has expired; and one that is gone may still be named.
        peers = [peer for peer in peers if peer.peer_id not in self._failed]
        name, room = publication.name, self._room(publication)
        nearest = self._dht.nearest(name, (*publication.replicas, *peers), room)
        publication.replicas = tuple(
            each for each in nearest if each.peer_id in before or each.peer_id not in self._failed
        )
        new = tuple(replica for replica in publication.replicas if replica.peer_id not in before)
        if new:
            ready = (*self._ready.get(name, ()), *new)  # maybe again: it failed meanwhile
            self._ready[name] = tuple({each.peer_id: each for each in ready}.values())
            if self._flush_s == float("inf"):
                self._flush_s = now.mono_s + self._parameters.gather_s

    def _gathered(self, now: Moment) -> None:
        """Write at once where no lookup is in flight, but no profile too soon after another."""
        is_soon = self._signed is None and now.mono_s < self._pace.after(0.0, now)
        if self._ready and not self._locating and not is_soon:
            self._flush(now)

    def _room(self, publication: Publication) -> int:
        """How many peers are to hold it. Of a sample some may be missing."""
        is_sample = publication.membership is not None and not publication.is_full
        return max(1, self._parameters.replicas // 2) if is_sample else self._parameters.replicas

    def _plan(self, now: Moment) -> None:
        spread = 1 + self._parameters.jitter * (self._rng.random() - 0.5)
        first_s = self._parameters.first_republish_s * 2 ** min(self._round, 6)
        self._due_s = now.mono_s + min(first_s, self._parameters.republish_s) * spread

    def _publish(self, now: Moment) -> None:
        """Everything anew: to all replicas, and where some are missing they are looked up."""
        self._round += 1
        self._signed = None
        self._stored = False
        self._failed.clear()
        self._acknowledged = True
        self._located.clear()
        self._plan(now)
        for publication in self.publications.values():
            # What the table knows by now costs nothing to ask.
            room = self._room(publication)
            known = self._dht.table.closest(key_of(publication.name), room)
            nearest = self._dht.nearest(publication.name, (*publication.replicas, *known), room)
            if nearest != publication.replicas:
                self._locate("store", publication.name, publication.membership, now)
        if self._round in self._parameters.look_above_rounds:
            for membership in self._memberships.values():
                low, high = membership.span
                if membership.state is MembershipState.SETTLED and low == high > 0:
                    self._ask_shard("apart", membership, high - 1, now)
        self._flush(now)

    def _flush(self, now: Moment) -> None:
        """Write what is ready, in one message for each peer."""
        self._flush_s = float("inf")
        if self._signed is None:
            spans = tuple(membership.span for membership in self._memberships.values())
            if not any(span.high for span in spans):
                spans = ()
            self._signed = self._issue(now, spans, False)
            self._ready = {name: each.replicas for name, each in self.publications.items()}
            self._announced = self._signed.profile.capacity
            self._pace.published(now)
            self._altered = False
            self._changed_s = float("inf")
            if self._dht.is_client:  # where no gate answers, connected members ask this node
                name, *more = self.publications
                own = kad.AddProvider(name, kad.Provider(self._own, self._signed.raw), tuple(more))
                self._dht.records.keep(self._own, own, now)
        writes = list(self._writes(kad.Provider(self._own, self._signed.raw)))
        self._ready.clear()
        self._acknowledged = False
        if writes:
            self._publishing.add(self._dht.operations.deliver(writes, now, CAUSE))

    def _writes(self, provider: kad.Provider) -> Iterator[tuple[Contact, kad.Write]]:
        """What is ready. One peer of each name, another one each time, gets that name first, and
        reports on it where the writes are acknowledged."""
        to: dict[PeerId, Contact] = {}
        names: dict[PeerId, list[bytes]] = {}
        asked: set[PeerId] = set()
        for name, replicas in self._ready.items():
            if self.publications[name].membership is None:
                yield from ((each, kad.PutValue(name, provider.profile)) for each in replicas)
                continue
            others = [each.peer_id for each in replicas if each.peer_id != self._own.peer_id]
            first_of = others[self._round % len(others)] if others else None
            for replica in replicas:
                to[replica.peer_id] = replica
                listed = names.setdefault(replica.peer_id, [])
                # Closer peers come for the first name alone.
                listed.insert(0 if replica.peer_id == first_of else len(listed), name)
            if first_of is not None and self._acknowledged:
                asked.add(first_of)
        most = self._parameters.max_names
        for peer_id, stored in names.items():
            for some in range(0, len(stored), most):
                first, *more = stored[some : some + most]
                yield to[peer_id], kad.AddProvider(first, provider, tuple(more), peer_id in asked)

    def _note_written(self, peers: Iterable[Contact], now: Moment) -> None:
        for contact in peers:
            if contact.peer_id != self._own.peer_id:
                self._written[contact.peer_id] = (contact, now.mono_s + self._parameters.ttl_s)

    def _matters(self, new: Capacity, old: Capacity) -> bool:
        """Whether any resource changed by a tenth of what the machine has."""
        whole, least = self._capability, self._parameters.change_share
        changes = [
            (new.cpu_milli - old.cpu_milli, whole.cpu_milli),
            (new.memory_bytes - old.memory_bytes, whole.memory_bytes),
            (new.storage_bytes - old.storage_bytes, whole.storage_bytes),
            (new.gpu_share_milli - old.gpu_share_milli, 1000 * len(whole.gpus)),
        ]
        return any(change and abs(change) >= least * total for change, total in changes)
