"""Keys in a binary trie, for whoever wants those nearest to any key, nearest first.

Those that share a prefix stand together, as in Kademlia's buckets: the half that shares the next
bit with the target is nearer than the other half, whatever follows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from formation_p2p.core.keyspace import KEY_BITS, Key

# A leaf with more is split, which takes 20 us; a walk takes a step for each leaf.
LEAF_SLOTS: Final = 128
# Siblings that hold no more together become one again: half, so that they do not flutter.
_MERGED_SLOTS: Final = LEAF_SLOTS // 2

Leaf: TypeAlias = "array[int]"
_Node: TypeAlias = "Leaf | list[_Node]"


class KeyTrie:
    """Holds slots, which are indices into `keys`; the owner of `keys` keeps a key in its place for
    as long as its slot is held. Adding and removing take a step for each level, of which there are
    as many as bits that keys share: 13 among a million honest ones, 256 at the worst.
    """

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = keys
        self._top: list[_Node] = [array("q")]

    def add(self, slot: int) -> None:
        forks, leaf = self._descend(self._keys[slot])
        leaf.append(slot)
        parent, side = forks[-1]
        parent[side] = self._split(leaf, len(forks) - 1)

    def remove(self, slot: int) -> None:
        """Raises ValueError where the slot is not held."""
        forks, leaf = self._descend(self._keys[slot])
        leaf.remove(slot)
        while len(forks) > 1:
            zero, one = forks.pop()[0]
            if isinstance(zero, list) or isinstance(one, list):
                return
            if len(zero) + len(one) > _MERGED_SLOTS:
                return
            parent, side = forks[-1]
            parent[side] = zero + one

    def leaves(self, target: Key) -> Iterator[Leaf]:
        """Every leaf that holds any: all keys of one are nearer than all keys of the next.

        Leaves are not to be changed, nor is the trie while this is under way.
        """
        ahead = [(self._top[0], KEY_BITS - 1)]
        while ahead:
            node, bit = ahead.pop()
            if isinstance(node, list):
                near = target >> bit & 1
                ahead += ((node[1 - near], bit - 1), (node[near], bit - 1))
            elif node:
                yield node

    def _descend(self, key: Key) -> tuple[list[tuple[list[_Node], int]], Leaf]:
        """The leaf of a key, and the way there: each fork with the side taken; the top first."""
        forks = [(self._top, 0)]
        node, bit = self._top[0], KEY_BITS - 1
        while isinstance(node, list):
            side = key >> bit & 1
            forks.append((node, side))
            node, bit = node[side], bit - 1
        return forks, node

    def _split(self, leaf: Leaf, depth: int) -> _Node:
        """A leaf that shares `depth` bits, as deep a fork as it takes. Equal keys stay together."""
        if len(leaf) <= LEAF_SLOTS or depth == KEY_BITS:
            return leaf
        bit = KEY_BITS - 1 - depth
        halves: tuple[Leaf, Leaf] = (array("q"), array("q"))
        for slot in leaf:
            halves[self._keys[slot] >> bit & 1].append(slot)
        return [self._split(half, depth + 1) for half in halves]
