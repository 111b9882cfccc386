"""Kademlia's metric, and the two forms of a key."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.keyspace import (
    KEY_BITS,
    MAX_DEPTH,
    WHOLE,
    Key,
    Span,
    distance,
    key_from_bytes,
    key_of,
    key_to_bytes,
    prefix,
)

keys = st.integers(0, 2**KEY_BITS - 1).map(Key)
small_keys = st.integers(0, 255).map(Key)


@given(keys, keys)
def test_only_a_key_itself_is_at_distance_zero(a: Key, b: Key) -> None:
    assert distance(a, a) == 0
    assert (distance(a, b) == 0) == (a == b)


@given(keys, keys)
def test_distance_is_the_same_both_ways(a: Key, b: Key) -> None:
    assert distance(a, b) == distance(b, a)


@given(keys, keys, keys)
def test_no_detour_is_shorter(a: Key, b: Key, c: Key) -> None:
    assert distance(a, c) <= distance(a, b) + distance(b, c)


@given(small_keys, st.integers(0, 255))
def test_exactly_one_key_is_at_each_distance(a: Key, far: int) -> None:
    assert [b for b in range(256) if distance(a, Key(b)) == far] == [a ^ far]


@given(keys)
def test_a_key_survives_the_wire(key: Key) -> None:
    assert len(key_to_bytes(key)) == 32
    assert key_from_bytes(key_to_bytes(key)) == key


@pytest.mark.parametrize("length", [0, 31, 33])
def test_bytes_of_another_length_are_no_key(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        key_from_bytes(bytes(length))


def test_the_key_of_a_name_is_its_sha256_read_big_endian() -> None:
    assert key_to_bytes(key_of(b"alice")) == hashlib.sha256(b"alice").digest()


@given(keys, st.integers(0, MAX_DEPTH))
def test_a_prefix_is_the_first_bits_as_text(key: Key, depth: int) -> None:
    assert prefix(key, depth) == f"{key:0256b}"[:depth]


@given(keys, keys, st.integers(0, MAX_DEPTH))
def test_keys_have_the_same_prefix_just_when_they_share_so_many_bits(
    a: Key, b: Key, depth: int
) -> None:
    near = Key(a ^ (b >> depth))  # shares `depth` bits with a, or more
    assert prefix(near, depth) == prefix(a, depth)
    assert (prefix(a, depth) == prefix(b, depth)) == (distance(a, b) < 1 << (KEY_BITS - depth))


def test_what_is_whole_is_at_no_depth() -> None:
    assert WHOLE == Span(0, 0) == (0, 0)
