"""Routing tables laid out as Kademlia would have them, without the lookups that fill them.

A node knows up to `k` peers for each length of common prefix with its own key: all of those
there are where they are few, else a draw by seed. Sorted keys make each such group a range.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable

from formation_p2p.dht.routing import K
from formation_p2p.effects import Contact
from formation_p2p.identity import key_of_peer
from formation_p2p.keyspace import KEY_BITS, Key


class Layout:
    """Of a fixed set of peers, all of whom can be dialled."""

    def __init__(self, contacts: Iterable[Contact], seed: int, k: int = K) -> None:
        self._seed = seed
        self._k = k
        placed = sorted((key_of_peer(contact.peer_id), contact) for contact in contacts)
        self._keys = [key for key, _ in placed]
        self._contacts = [contact for _, contact in placed]

    def __contains__(self, key: Key) -> bool:
        place = bisect_left(self._keys, key)
        return place < len(self._keys) and self._keys[place] == key

    def known_to(self, own: Key) -> list[Contact]:
        """Whom the node with this key knows, the farthest first."""
        rng = random.Random(f"{self._seed}/table/{own:x}")
        known: list[Contact] = []
        low, high, bit = 0, len(self._keys), 1 << KEY_BITS
        while low < high and (high - low > 1 or self._keys[low] != own):
            bit >>= 1
            # Where keys with this prefix go from 0 to 1 in the next bit.
            ones = bisect_left(self._keys, (own & -bit) | bit, low, high)
            if own & bit:
                others, low = range(low, ones), ones
            else:
                others, high = range(ones, high), ones
            drawn = others if len(others) <= self._k else rng.sample(others, self._k)
            known += [self._contacts[place] for place in drawn]
        return known
