"""Keys in a trie come out in the order of their distance, whatever was added and removed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.placement.key_trie import LEAF_SLOTS, KeyTrie
from formation_p2p.core.keyspace import KEY_BITS, Key, distance

wide = st.integers(0, 2**KEY_BITS - 1)
# Side by side at the far end of all the bits.
close = st.integers(0, 300)
many_keys = st.lists(wide | close, min_size=1, max_size=20).flatmap(
    lambda few: st.lists(st.sampled_from(few) | close, max_size=3 * LEAF_SLOTS)
)


def held(trie: KeyTrie, target: int = 0) -> list[list[int]]:
    return [list(leaf) for leaf in trie.leaves(Key(target))]


@settings(max_examples=50, deadline=None)
@given(many_keys, wide | close)
def test_every_key_of_a_leaf_is_nearer_than_all_of_the_next(keys: list[Key], target: int) -> None:
    trie = KeyTrie(keys)
    for slot in range(len(keys)):
        trie.add(slot)
    leaves = held(trie, target)
    assert sorted(slot for leaf in leaves for slot in leaf) == list(range(len(keys)))
    far = [[distance(keys[slot], Key(target)) for slot in leaf] for leaf in leaves]
    assert all(max(near) < min(next_) for near, next_ in pairwise(far))


def test_a_leaf_is_small_unless_its_keys_are_equal() -> None:
    keys = [Key(number) for number in range(3 * LEAF_SLOTS)] + [Key(7)] * (2 * LEAF_SLOTS)
    trie = KeyTrie(keys)
    for slot in range(len(keys)):
        trie.add(slot)
    first, *others = held(trie, 7)
    assert {keys[slot] for slot in first} == {7}
    assert len(first) == 2 * LEAF_SLOTS + 1
    assert all(0 < len(leaf) <= LEAF_SLOTS for leaf in others)


def test_leaves_that_have_become_empty_are_one_again() -> None:
    keys = [Key(number << (KEY_BITS - 12)) for number in range(4096)]
    trie = KeyTrie(keys)
    for slot in range(len(keys)):
        trie.add(slot)
    assert len(held(trie)) >= 4096 / LEAF_SLOTS
    for slot in range(10, len(keys)):
        trie.remove(slot)
    assert held(trie) == [list(range(10))]
    for slot in range(10):
        trie.remove(slot)
    assert held(trie) == []


def test_what_is_not_held_cannot_be_removed() -> None:
    trie = KeyTrie([Key(1), Key(2)])
    trie.add(0)
    with pytest.raises(ValueError, match="not in array"):
        trie.remove(1)
