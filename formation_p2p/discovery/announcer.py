"""A worker's presence in the DHT: its profile under every bucket that it belongs to.

It is published again at half its life, sooner when what it says has changed enough to matter,
and withdrawn where it was stored when the worker leaves.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from formation_p2p.capability.buckets import bucket_key, buckets_of
from formation_p2p.dht.kademlia import Kademlia
from formation_p2p.dht.messages import Provider, PutValue
from formation_p2p.dht.operations import OperationId, Published
from formation_p2p.dht.routing import K
from formation_p2p.dht.store import value_name
from formation_p2p.effects import Contact, Moment
from formation_p2p.identity import PeerId
from formation_p2p.records.profile import Profile, SignedProfile
from formation_p2p.resources.capability import Capability, Capacity

# How long a profile counts, and when it is published again. A worker that dies without a word
# is offered for at most this long.
TTL_S: Final = 120.0
REPUBLISH_S: Final = TTL_S / 2
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
# Peers remembered to hold a profile of ours that has not expired. With 32 names at 20 peers each
# there are 640, and those of before the last change; past this the oldest expire unwithdrawn.
MAX_HOLDERS: Final = 1_024


class _Holder(NamedTuple):
    contact: Contact
    until_s: float


class Announcer:
    """`issue` signs a profile as of now, from what the worker then is; `withdrawn` makes it the
    tombstone. Call `start` once, `changed` with every new capacity, `tick` when due, `withdraw`
    to leave, and hand it every Published of the DHT."""

    def __init__(
        self,
        own: Contact,
        dht: Kademlia,
        network_id: bytes,
        capability: Capability,
        issue: Callable[[Moment, bool], SignedProfile],
        rng: random.Random,
    ) -> None:
        self._own = own
        self._dht = dht
        self._network_id = network_id
        self._capability = capability
        self._issue = issue
        self._rng = rng
        self._announced: Capacity | None = None
        self._last_s = float("-inf")
        self._due_s = float("inf")
        self._changed_s = float("inf")
        self._publishing: set[OperationId] = set()
        self._stored = False  # whether anyone else holds the newest profile
        self._holders: dict[PeerId, _Holder] = {}  # who was written to longest ago first
        self._withdrawing: OperationId | None = None

    def start(self, now: Moment, cause: str) -> None:
        self._publish(now, cause)

    def changed(self, capacity: Capacity, now: Moment) -> None:
        """Publish soon where the change is worth it, and lasts."""
        if self._announced is None or not self._matters(capacity, self._announced):
            self._changed_s = float("inf")
        elif self._changed_s == float("inf"):
            self._changed_s = max(now.mono_s + SETTLE_S, self._last_s + MIN_INTERVAL_S)

    def disconnected(self, peer_id: PeerId, now: Moment) -> None:
        """A peer that holds the profile may come back without it, as a gate that restarts does.
        In a network of fewer than k peers, each of them counts; in a larger one k others have it.
        """
        if peer_id in self._holders and len(self._dht.table) < K and self._announced is not None:
            soon_s = max(now.mono_s + SETTLE_S, self._last_s + MIN_INTERVAL_S)
            self._due_s = min(self._due_s, soon_s)

    def tick(self, now: Moment) -> None:
        if now.mono_s >= self.next_timeout():
            self._publish(now, "republish")

    def next_timeout(self) -> float:
        return min(self._due_s, self._changed_s)

    def published(self, ended: Published, now: Moment) -> bool:
        """Whether this was the end of the withdrawal, after which the node may go."""
        if ended.operation == self._withdrawing:
            return True
        if ended.operation in self._publishing:
            self._publishing.discard(ended.operation)
            others = [c for c in ended.stored_at if c.peer_id != self._own.peer_id]
            self._stored = self._stored or bool(others)
            self._held_by(others, now)
            if not self._publishing and not self._stored:  # alone, or everyone is out of reach
                self._due_s = min(self._due_s, now.mono_s + RETRY_S)
        return False

    def withdraw(self, now: Moment, cause: str) -> None:
        """Tell everyone who stores the profile that it is no more; `published` tells when."""
        self._due_s = self._changed_s = float("inf")
        self._announced = None
        for operation in sorted(self._publishing):
            self._held_by(self._dht.abandon(operation), now)
        self._publishing.clear()
        tombstone = self._issue(now, True)
        name = value_name(self._own.peer_id)
        # As a value, which is answered: whoever has answered has it, and the node may go.
        write = PutValue(name, tombstone.raw)
        holders = [h.contact for h in self._holders.values() if h.until_s > now.mono_s]
        self._withdrawing = self._dht.tell(holders, write, now, cause)

    def _publish(self, now: Moment, cause: str) -> None:
        signed = self._issue(now, False)
        self._announced = signed.profile.capacity
        self._last_s = now.mono_s
        self._changed_s = float("inf")
        spread = 1 + JITTER * (self._rng.random() - 0.5)
        self._due_s = now.mono_s + REPUBLISH_S * spread
        provider = Provider(self._own, signed.raw)
        own_name = value_name(self._own.peer_id)
        self._stored = False
        for name in sorted(names_of(signed.profile, self._network_id) - {own_name}):
            self._publishing.add(self._dht.provide(name, provider, now, cause))
        self._publishing.add(self._dht.put_value(own_name, signed.raw, now, cause))

    def _held_by(self, peers: Iterable[Contact], now: Moment) -> None:
        for contact in peers:
            if contact.peer_id != self._own.peer_id:
                self._holders.pop(contact.peer_id, None)
                self._holders[contact.peer_id] = _Holder(contact, now.mono_s + TTL_S)
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


def names_of(profile: Profile, network_id: bytes) -> frozenset[bytes]:
    """Every DHT name that a profile belongs under: its buckets', and its own."""
    buckets = _bucket_keys(network_id, profile.capability, profile.labels, profile.drivers)
    return buckets | {value_name(profile.peer_id)}


@lru_cache(maxsize=1024)  # machines come in few shapes; 30 hashes cost 30 us for every record
def _bucket_keys(
    network_id: bytes,
    capability: Capability,
    labels: tuple[tuple[str, str], ...],
    drivers: tuple[str, ...],
) -> frozenset[bytes]:
    buckets = buckets_of(capability, dict(labels), drivers)
    return frozenset(bucket_key(network_id, bucket) for bucket in buckets)
