"""The nearest of many peers to a key, without measuring the distance to each of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, Key


class Peers:
    """A fixed set of peers, in the order of their keys.

    Sorted keys are a binary trie: those that share a prefix stand side by side. A search takes
    about log n steps; a job of 100,000 tasks and 1,000 workers would otherwise measure 100 million
    distances for each new worker.
    """

    def __init__(self, peers: Iterable[PeerId]) -> None:
        self._peers = {key_of_peer(peer_id): peer_id for peer_id in peers}
        self._keys = sorted(self._peers)
        self._named = frozenset(self._peers.values())

    def __contains__(self, peer_id: object) -> bool:
        return peer_id in self._named

    def nearest(self, target: Key) -> PeerId | None:
        """The peer at the least XOR distance; None where there is none at all."""
        low, high = self._around(target, 1)
        return self._peers[self._keys[low]] if high else None

    def nearest_few(self, target: Key, count: int) -> list[PeerId]:
        """The `count` peers at the least XOR distances, nearest first; or all of fewer."""
        if count < 1:
            return []
        low, high = self._around(target, count)
        near = sorted(self._keys[low:high], key=target.__xor__)
        return [self._peers[Key(key)] for key in near[:count]]

    def _around(self, target: Key, count: int) -> tuple[int, int]:
        """From where to where the keys stand that share the most bits with `target` of all sets
        of so many, at least 1: no other is nearer than one of these."""
        low, high, prefix, bit = 0, len(self._keys), 0, 1 << (KEY_BITS - 1)
        while high - low > count:
            ones = bisect_left(self._keys, prefix | bit, low, high)
            near = high - ones if target & bit else ones - low
            if 0 < near < count:
                break
            if bool(target & bit) == (near > 0):
                low, prefix = ones, prefix | bit
            else:
                high = ones
            bit >>= 1
        return low, high
