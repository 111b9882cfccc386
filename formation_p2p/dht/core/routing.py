"""The routing table: k-buckets of peers that have answered us, by distance from our own key.

Source: Kademlia, sections 2.2 and 2.4 (least-recently-seen eviction) and 4.1 (probe rarely);
libp2p kad-dht specification, "Kademlia routing table" (k = 20). The caps are of `subnets.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import Key, distance
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.reachability import Subnet, endpoints, subnets

# Keys whose nearest peers are kept: a few names are asked for again and again.
MAX_KEPT: Final = 256


class _Seen(NamedTuple):
    contact: Contact
    at_s: float
    subnets: frozenset[Subnet]
    endpoints: frozenset[str]


@dataclass(slots=True)
class _Bucket:
    """Both dicts are ordered: the least recently seen first."""

    live: dict[PeerId, _Seen] = field(default_factory=dict)
    replacements: dict[PeerId, _Seen] = field(default_factory=dict)


class RoutingTable:
    """At most `k` peers for each length of common prefix with our key, and of those only a few
    of one subnet (which waits for its turn as well), and only one at a host and port.

    Call `saw` for a peer that answered, `lost` for one that did not. The table sends nothing:
    `saw` returns the peer to ping.
    """

    def __init__(
        self,
        own: Key,
        *,
        parameters: DhtParameters = DhtParameters(),
        key_of: Callable[[PeerId], Key] = key_of_peer,
    ) -> None:
        self._own = own
        self._parameters = parameters
        self._k = parameters.k
        self._key_of = key_of
        # By the bit length of the distance from us: the longer, the shorter the common prefix.
        self._buckets: dict[int, _Bucket] = {}
        self._live = 0  # in all of them
        self._in_subnet: Counter[Subnet] = Counter()
        self._at: dict[str, PeerId] = {}
        self._ours: frozenset[Subnet] = frozenset()
        self._looked_s: dict[int, float] = {}  # into which bucket; 0 for our own key
        self._closest: dict[tuple[Key, int], tuple[Contact, ...]] = {}  # while none comes or goes

    def moved(self, addresses: tuple[str, ...]) -> None:
        """Our own addresses. Our subnets are not capped: a campus with public addresses is one,
        and its machines must know each other. Of 300 in one /24, lookups find all of the nearest
        so, and with the caps a fifth."""
        self._ours = subnets(addresses)

    def saw(self, contact: Contact, now_s: float) -> Contact | None:
        """A peer answered. Returns the peer to ping, if one is in its way.

        The newcomer then waits as a replacement: if the pinged one is `lost` it moves up, and
        if it is seen instead, it stays (long-lived peers are likelier to stay, section 2.2).
        A contact without addresses keeps those that were known.
        """
        length = self._length(contact.peer_id)
        if length == 0:
            return None  # ourselves
        bucket = self._buckets.setdefault(length, _Bucket())
        known = bucket.live.get(contact.peer_id)
        if known is not None and contact.addresses in ((), known.contact.addresses):
            del bucket.live[contact.peer_id]
            bucket.live[contact.peer_id] = known._replace(at_s=now_s)
            return None
        if not contact.addresses:
            return None  # others could not dial it
        if known is not None:
            self._remove(bucket, contact.peer_id)  # it moved: it has to find room once more
        waited = bucket.replacements.pop(contact.peer_id, None)
        if waited is not None and waited.contact == contact:
            return self._wait(bucket, waited._replace(at_s=now_s))
        seen = _Seen(contact, now_s, subnets(contact.addresses), endpoints(contact.addresses))
        suspect = self._place(bucket, seen)
        if known is not None:
            self._promote()
        return suspect

    def lost(self, peer_id: PeerId) -> None:
        """A peer did not answer: it goes, and the newest replacement that may takes its place."""
        bucket = self._buckets.get(self._length(peer_id))
        if bucket is None:
            return
        bucket.replacements.pop(peer_id, None)
        if peer_id in bucket.live:
            self._remove(bucket, peer_id)
            self._promote()

    def is_at(self, contact: Contact) -> bool:
        """Whether a peer is known at one of these addresses."""
        seen = self._seen(contact.peer_id)
        return seen is not None and not set(seen.contact.addresses).isdisjoint(contact.addresses)

    def _seen(self, peer_id: PeerId) -> _Seen | None:
        """What is known of a peer, whether it waits or not."""
        bucket = self._buckets.get(self._length(peer_id), _Bucket())
        return bucket.live.get(peer_id) or bucket.replacements.get(peer_id)

    def contact(self, peer_id: PeerId) -> Contact | None:
        """Where a peer of the table is."""
        bucket = self._buckets.get(self._length(peer_id))
        seen = None if bucket is None else bucket.live.get(peer_id)
        return None if seen is None else seen.contact

    def has_room_for(self, contact: Contact) -> bool:
        """Whether a peer would enter if it answered: it is new, and nothing is full."""
        length = self._length(contact.peer_id)
        bucket = self._buckets.get(length, _Bucket())
        if length == 0 or contact.peer_id in bucket.live or len(bucket.live) >= self._k:
            return False
        seen = _Seen(contact, 0.0, subnets(contact.addresses), endpoints(contact.addresses))
        return self._may_wait(bucket, seen) and self._may_enter(seen)

    def closest(self, key: Key, count: int) -> tuple[Contact, ...]:
        """The `count` known peers nearest to a key, nearest first."""
        known = self._closest.get((key, count))
        if known is None:
            if len(self._closest) >= MAX_KEPT:
                self._closest.clear()
            known = self._closest[key, count] = self._sorted_closest(key, count)
        return known

    def known(self, key: Key, count: int) -> tuple[Contact, ...]:
        """As `closest`, with those that wait, which this node asks as well: in a network of a
        thousand it knows most peers so, of which the buckets hold a tenth."""
        return self._sorted_closest(key, count, waiting=True)

    def is_whole(self, key: Key, contacts: Sequence[Contact]) -> bool:
        """Whether these seem to be the nearest to a key of all that there are: they lie as near to
        it as others do to us, of whom we know all. Twice as many do: the places are by chance."""
        around = self.closest(self._own, 2 * len(contacts))
        return len(self) < self._k or max(
            (distance(self._key_of(each.peer_id), key) for each in contacts), default=0
        ) <= distance(self._key_of(around[-1].peer_id), self._own)

    def there(self, contacts: Iterable[Contact], now_s: float) -> frozenset[PeerId]:
        """Those of them that answered lately, and did not break off since."""
        since_s = now_s - self._parameters.suspect_after_s
        return frozenset(
            each.peer_id
            for each in contacts
            if (seen := self._seen(each.peer_id)) is not None and seen.at_s > since_s
        )

    def doubt(self, peer_id: PeerId) -> None:
        """Its connection broke: it may be gone."""
        bucket = self._buckets.get(self._length(peer_id), _Bucket())
        for held in (bucket.live, bucket.replacements):
            if peer_id in held:
                held[peer_id] = held[peer_id]._replace(at_s=-inf)

    def _sorted_closest(
        self, key: Key, count: int, *, waiting: bool = False
    ) -> tuple[Contact, ...]:
        # Whole buckets lie nearer to the key than others. Where the key differs from ours in a
        # bucket's first bit, its peers are nearer than those of all that share more with us;
        # where it does not, they are farther.
        away = distance(self._own, key)
        nearest_first = sorted(
            self._buckets, key=lambda length: -length if away >> (length - 1) & 1 else length
        )
        found: list[Contact] = []
        for length in nearest_first:
            if len(found) >= count:
                break
            bucket = self._buckets[length]
            contacts = [seen.contact for seen in bucket.live.values()]
            if waiting:
                contacts += [seen.contact for seen in bucket.replacements.values()]
            contacts.sort(key=lambda contact: distance(self._key_of(contact.peer_id), key))
            found += contacts
        return tuple(found[:count])

    def __contains__(self, peer_id: PeerId) -> bool:
        return self.contact(peer_id) is not None

    def __iter__(self) -> Iterator[Contact]:
        """The least recently seen of each bucket first."""
        for bucket in self._buckets.values():
            for seen in bucket.live.values():
                yield seen.contact

    def __len__(self) -> int:
        return self._live

    def looked_into(self, key: Key, now_s: float) -> None:
        """A lookup of this key found a peer: its bucket is fresh."""
        self._looked_s[distance(self._own, key).bit_length()] = now_s

    def looks(self) -> list[tuple[float, int]]:
        """What has to be refreshed, and when that was last done; the stalest first.

        As bit lengths of the distance from us: 0 stands for our own key, whose lookup finds the
        k peers nearest to us, and with them the nearest buckets. The others are all other buckets.
        """
        lengths, nearer = [0], 0
        for length in range(1, max(self._buckets, default=0) + 1):
            bucket = self._buckets.get(length)
            nearer += 0 if bucket is None else len(bucket.live)
            if nearer > self._k:
                lengths.append(length)
        return sorted((self._looked_s.get(length, float("-inf")), length) for length in lengths)

    def _place(self, bucket: _Bucket, seen: _Seen) -> Contact | None:
        if not self._may_wait(bucket, seen):
            return None
        if len(bucket.live) < self._k and self._may_enter(seen):
            self._enter(bucket, seen)
            return None
        return self._wait(bucket, seen)

    def _wait(self, bucket: _Bucket, seen: _Seen) -> Contact | None:
        """Returns the peer to ping, if one is in its way."""
        bucket.replacements[seen.contact.peer_id] = seen
        waiting = [each.replacements for each in self._buckets.values()]
        if sum(map(len, waiting)) > self._parameters.max_waiting:
            most = max(waiting, key=len)
            del most[next(iter(most))]
        return self._in_the_way(bucket, seen)

    def _in_the_way(self, bucket: _Bucket, seen: _Seen) -> Contact | None:
        for endpoint in sorted(seen.endpoints & self._at.keys()):
            holder = self._buckets[self._length(self._at[endpoint])].live[self._at[endpoint]]
            waits_s = self._parameters.contested_after_s
            return holder.contact if seen.at_s - holder.at_s >= waits_s else None
        if len(bucket.live) < self._k:
            return None
        oldest = next(iter(bucket.live.values()))
        waits_s = self._parameters.suspect_after_s
        return oldest.contact if seen.at_s - oldest.at_s >= waits_s else None

    def _may_wait(self, bucket: _Bucket, seen: _Seen) -> bool:
        """Whether its bucket has few enough of its subnets, those that wait included: they must
        not crowd out the others that wait."""
        others = [*bucket.live.values(), *bucket.replacements.values()]
        return all(
            sum(subnet in other.subnets for other in others) < subnet.width.in_bucket
            for subnet in seen.subnets - self._ours
        )

    def _may_enter(self, seen: _Seen) -> bool:
        """Whether the table has few enough of its subnets, and none at its host and port."""
        return (
            len(self) < self._parameters.max_peers
            and self._at.keys().isdisjoint(seen.endpoints)
            and all(self._in_subnet[s] < s.width.in_table for s in seen.subnets - self._ours)
        )

    def _enter(self, bucket: _Bucket, seen: _Seen) -> None:
        self._closest.clear()
        bucket.live[seen.contact.peer_id] = seen
        self._live += 1
        self._in_subnet.update(seen.subnets)
        self._at.update(dict.fromkeys(seen.endpoints, seen.contact.peer_id))

    def _remove(self, bucket: _Bucket, peer_id: PeerId) -> None:
        self._closest.clear()
        gone = bucket.live.pop(peer_id)
        self._live -= 1
        for subnet in gone.subnets:
            self._in_subnet[subnet] -= 1
            if not self._in_subnet[subnet]:
                del self._in_subnet[subnet]
        for endpoint in gone.endpoints:
            del self._at[endpoint]

    def _promote(self) -> None:
        """A peer went: the newest of those that wait, and may enter now, take the place."""
        for bucket in self._buckets.values():
            if not bucket.replacements or len(bucket.live) >= self._k:
                continue
            for peer_id in list(reversed(bucket.replacements)):
                if len(bucket.live) < self._k and self._may_enter(bucket.replacements[peer_id]):
                    self._enter(bucket, bucket.replacements.pop(peer_id))

    def _length(self, peer_id: PeerId) -> int:
        return distance(self._own, self._key_of(peer_id)).bit_length()
