"""Shards: whose they are, who leaves a sample above its own, and what their names are."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, MAX_DEPTH, Key, Span, distance, prefix
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.records.core.buckets import (
    ShardParameters,
    bucket_key,
    depths_of,
    places_of,
    shard_key,
)
from tests.support import dht_world as world

SHARDS = ShardParameters()

DISCOVERY = DiscoveryParameters()

NETWORK = world.NETWORK
ALICE = world.person("alice")

keys = st.integers(0, 2**KEY_BITS - 1).map(Key)
depths = st.integers(0, MAX_DEPTH)
spans = st.tuples(depths, depths).map(lambda ends: Span(min(ends), max(ends)))
people = st.integers(0, 200).map(lambda number: world.person(f"worker {number}").peer_id)


@given(keys, depths, st.lists(keys, max_size=20), st.lists(keys, max_size=20))
def test_everyone_in_a_shard_is_nearer_to_its_keys_than_anyone_outside(
    target: Key, depth: int, some: list[Key], others: list[Key]
) -> None:
    """Why the nearest workers to a task's key are in the shard of that key's prefix."""
    inside = [Key(target ^ (key >> depth)) for key in some]
    outside = [key for key in others if prefix(key, depth) != prefix(target, depth)]
    assert all(prefix(key, depth) == prefix(target, depth) for key in inside)
    farthest = max((distance(key, target) for key in inside), default=0)
    assert all(distance(key, target) > farthest for key in outside)


@given(keys, keys, depths)
def test_two_keys_fall_into_one_shard_just_when_they_share_its_prefix(
    a: Key, b: Key, depth: int
) -> None:
    together = shard_key(NETWORK, "any", a, depth) == shard_key(NETWORK, "any", b, depth)
    assert together == (prefix(a, depth) == prefix(b, depth))


def test_a_shard_is_named_by_its_bucket_and_the_bits_of_its_prefix() -> None:
    key = Key(0b0110 << (KEY_BITS - 4))
    assert shard_key(NETWORK, "gpu/1", key, 0) == bucket_key(NETWORK, "gpu/1")
    assert shard_key(NETWORK, "gpu/1", key, 3) == bucket_key(NETWORK, "gpu/1#011")
    assert shard_key(NETWORK, "gpu/1", key, 4) == bucket_key(NETWORK, "gpu/1#0110")


def test_shards_of_different_depths_and_buckets_have_different_names() -> None:
    key = ALICE.key
    names = [
        shard_key(network, bucket, key, depth)
        for network in (NETWORK, b"other")
        for bucket in ("any", "gpu/1")
        for depth in range(MAX_DEPTH + 1)
    ]
    assert len(set(names)) == len(names)


# -- samples ------------------------------------------------------------------------------------


@given(people, spans)
def test_a_worker_is_in_full_where_its_span_says_and_above_it_as_a_sample_without_gaps(
    peer_id: PeerId, span: Span
) -> None:
    found = list(depths_of("any", peer_id, span))
    full, samples = [d for d in found if d >= span.low], [d for d in found if d < span.low]
    assert full == sorted(set(span), reverse=True)
    assert samples == list(range(span.low - 1, span.low - 1 - len(samples), -1))


@given(people, depths, st.integers(0, 3))
def test_samples_are_the_same_whether_a_worker_moves_or_not(
    peer_id: PeerId, low: int, further: int
) -> None:
    """Or a split would take samples away from shards that have nothing to do with it."""
    settled = set(depths_of("any", peer_id, Span(low, low)))
    moving = set(depths_of("any", peer_id, Span(low, min(low + further, MAX_DEPTH))))
    assert settled <= moving


def test_each_level_further_up_has_half_as_many_samples() -> None:
    crowd = [world.person(f"worker {n}").peer_id for n in range(3000)]
    at = [0] * 6
    for peer_id in crowd:
        for depth in depths_of("any", peer_id, Span(5, 5)):
            at[depth] += 1
    assert at[5] == len(crowd)
    assert at[4] == pytest.approx(SHARDS.sample * len(crowd), rel=0.1)
    for above, below in pairwise(at[:5]):
        assert above == pytest.approx(below / 2, rel=0.25)


def test_a_worker_is_a_sample_in_some_buckets_and_not_in_others() -> None:
    """Or those few would be at the top of every bucket, and the load with them."""
    sampled = [bool(list(depths_of(f"b{n}", ALICE.peer_id, Span(1, 1)))[1:]) for n in range(200)]
    assert 20 < sum(sampled) < 80


def test_a_shard_that_splits_leaves_more_than_a_search_wants_in_each_half() -> None:
    assert SHARDS.split // 2 >= 2 * DISCOVERY.wanted
    assert SHARDS.merge < SHARDS.split // 2


# -- a profile's places -------------------------------------------------------------------------


@given(people, st.dictionaries(st.sampled_from(["any", "gpu/1", "cpu/8"]), spans))
def test_a_workers_names_are_those_of_its_spans_and_samples(
    peer_id: PeerId, by_bucket: dict[str, Span]
) -> None:
    places = places_of(NETWORK, peer_id, by_bucket)
    expected = {
        shard_key(NETWORK, bucket, key_of_peer(peer_id), depth): (depth, span)
        for bucket, span in by_bucket.items()
        for depth in depths_of(bucket, peer_id, span)
    }
    assert places == expected
    assert len(places) == sum(
        len(list(depths_of(bucket, peer_id, span))) for bucket, span in by_bucket.items()
    )


def test_a_whole_bucket_has_its_own_name_alone() -> None:
    assert places_of(NETWORK, ALICE.peer_id, {"any": Span()}) == {
        bucket_key(NETWORK, "any"): (0, Span(0, 0))
    }
