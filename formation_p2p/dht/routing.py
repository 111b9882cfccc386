"""The routing table: k-buckets of peers that have answered us, by distance from our own key.

Source: Kademlia, sections 2.2 and 2.4 (least-recently-seen eviction); libp2p kad-dht
specification, "Kademlia routing table" (k = 20).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from formation_p2p.effects import Contact
from formation_p2p.identity import PeerId, key_of_peer
from formation_p2p.keyspace import KEY_BITS, Key, common_prefix, distance

K: Final = 20
# Candidates kept for a full bucket. As many as the bucket: one for each that might die.
MAX_REPLACEMENTS: Final = K


@dataclass(slots=True)
class _Bucket:
    """Both dicts are ordered: the least recently seen first."""

    live: dict[PeerId, Contact] = field(default_factory=dict)
    replacements: dict[PeerId, Contact] = field(default_factory=dict)


class RoutingTable:
    """At most `k` peers for each length of common prefix with our key.

    Call `saw` for a peer that answered, `lost` for one that did not. The table never asks
    anybody itself: `saw` returns the peer that should be asked whether it is still there.
    """

    def __init__(
        self,
        own: Key,
        *,
        k: int = K,
        bits: int = KEY_BITS,
        key_of: Callable[[PeerId], Key] = key_of_peer,
    ) -> None:
        self._own = own
        self._k = k
        self._bits = bits
        self._key_of = key_of
        self._buckets: dict[int, _Bucket] = {}

    def saw(self, contact: Contact) -> Contact | None:
        """A peer answered. Returns the one to ping where its bucket is full, else None.

        The newcomer then waits as a replacement: if the pinged one is `lost` it moves up, and
        if it is seen instead, it stays (long-lived peers are likelier to stay, section 2.2).
        A contact without addresses keeps those that were known.
        """
        key = self._key_of(contact.peer_id)
        if key == self._own:
            return None
        bucket = self._buckets.setdefault(common_prefix(self._own, key, self._bits), _Bucket())
        known = bucket.live.pop(contact.peer_id, None)
        if known is not None:
            bucket.live[contact.peer_id] = contact if contact.addresses else known
            return None
        if not contact.addresses:
            return None  # nobody could dial it, so nobody may be sent to it
        if len(bucket.live) < self._k:
            bucket.replacements.pop(contact.peer_id, None)
            bucket.live[contact.peer_id] = contact
            return None
        bucket.replacements.pop(contact.peer_id, None)
        bucket.replacements[contact.peer_id] = contact
        if len(bucket.replacements) > MAX_REPLACEMENTS:
            del bucket.replacements[next(iter(bucket.replacements))]
        return next(iter(bucket.live.values()))

    def lost(self, peer_id: PeerId) -> None:
        """A peer did not answer: it goes, and the newest replacement takes its place."""
        prefix = common_prefix(self._own, self._key_of(peer_id), self._bits)
        bucket = self._buckets.get(prefix)
        if bucket is None:
            return
        bucket.replacements.pop(peer_id, None)
        if bucket.live.pop(peer_id, None) is not None and bucket.replacements:
            newest, contact = bucket.replacements.popitem()
            bucket.live[newest] = contact

    def closest(self, key: Key, count: int) -> tuple[Contact, ...]:
        """The `count` known peers nearest to a key, nearest first."""
        return tuple(
            heapq.nsmallest(count, self, key=lambda c: distance(self._key_of(c.peer_id), key))
        )

    def get(self, peer_id: PeerId) -> Contact | None:
        prefix = common_prefix(self._own, self._key_of(peer_id), self._bits)
        bucket = self._buckets.get(prefix)
        return None if bucket is None else bucket.live.get(peer_id)

    def __iter__(self) -> Iterator[Contact]:
        for bucket in self._buckets.values():
            yield from bucket.live.values()

    def __len__(self) -> int:
        return sum(len(bucket.live) for bucket in self._buckets.values())
