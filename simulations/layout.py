"""Routing tables laid out as Kademlia would have them, without the lookups that fill them.

A node knows up to `k` peers for each length of common prefix with its own key: all of those
there are where they are few, else a draw by seed. Sorted keys make each such group a range.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, Key
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.reachability import endpoints, subnets
from formation_p2p.dht.core.routing import RoutingTable, _Bucket, _Seen


class Layout:
    """Of a fixed set of peers, all of whom can be dialled."""

    def __init__(self, contacts: Iterable[Contact], seed: int, k: int = DhtParameters().k) -> None:
        self._seed = seed
        self._k = k
        placed = sorted((key_of_peer(contact.peer_id), contact) for contact in contacts)
        self._keys = [key for key, _ in placed]
        self._contacts = [contact for _, contact in placed]
        self._seens: dict[int, _Seen] = {}

    def __contains__(self, key: Key) -> bool:
        place = bisect_left(self._keys, key)
        return place < len(self._keys) and self._keys[place] == key

    def known_to(self, own: Key) -> list[Contact]:
        """Whom the node with this key knows, the farthest first."""
        return [self._contacts[place] for _, drawn in self._drawn(own) for place in drawn]

    def fill(self, table: RoutingTable, own: Key) -> None:
        """Have an empty table of the node with this key know them, as of the world's beginning.

        As `saw` would for each, but that nothing is refused: their addresses are strewn so far
        that of 20 of them no three are in one subnet. What is kept of a peer is the same in all
        tables, which saves most of their memory.
        """
        for length, drawn in self._drawn(own):
            bucket = table._buckets.setdefault(length, _Bucket())
            for place in drawn:
                table._enter(bucket, self._seen(place))

    def _drawn(self, own: Key) -> Iterator[tuple[int, Sequence[int]]]:
        """The places of those whom it knows at each bit length of the distance, longest first."""
        rng = random.Random(f"{self._seed}/table/{own:x}")
        low, high, length = 0, len(self._keys), KEY_BITS
        while low < high and (high - low > 1 or self._keys[low] != own):
            bit = 1 << (length - 1)
            # Where keys with this prefix go from 0 to 1 in the next bit.
            ones = bisect_left(self._keys, (own & -bit) | bit, low, high)
            if own & bit:
                others, low = range(low, ones), ones
            else:
                others, high = range(ones, high), ones
            yield length, others if len(others) <= self._k else rng.sample(others, self._k)
            length -= 1

    def _seen(self, place: int) -> _Seen:
        seen = self._seens.get(place)
        if seen is None:
            contact = self._contacts[place]
            where = contact.addresses
            seen = self._seens[place] = _Seen(contact, 0.0, subnets(where), endpoints(where))
        return seen
