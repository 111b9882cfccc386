"""The truth that queries are held against: who is there, and can be found."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from formation_p2p.core.keyspace import KEY_BITS, Key, distance


class Register:
    """The keys of the live members of one bucket, sorted: those that share a prefix stand side
    by side, so that the nearest to a key are found without measuring all distances."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = sorted(keys)

    def add(self, key: Key) -> None:
        insort(self._keys, key)

    def remove(self, key: Key) -> None:
        del self._keys[bisect_left(self._keys, key)]

    def __len__(self) -> int:
        return len(self._keys)

    def nearest(self, target: Key, count: int) -> list[Key]:
        """The `count` nearest to a key by XOR, nearest first."""
        low, high = 0, len(self._keys)
        for depth in range(KEY_BITS):
            bit = 1 << (KEY_BITS - 1 - depth)
            ones = bisect_left(self._keys, (target & -bit) | bit, low, high)
            deeper = (ones, high) if target & bit else (low, ones)
            if deeper[1] - deeper[0] < count:
                break
            low, high = deeper
        return sorted(self._keys[low:high], key=lambda key: distance(key, target))[:count]
