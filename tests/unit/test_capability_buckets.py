"""Buckets and their shards: whoever fits is in the bucket asked; the rest is thrift."""

import hashlib
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, MAX_DEPTH, Key, Span, distance, prefix
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.machine.core.bounds import (
    MAX_CPU_MILLI,
    MAX_DRIVERS,
    MAX_GPU_MODELS,
    MAX_LABELS,
    MAX_MEMORY_BYTES,
    MAX_NETWORK_MBPS,
    MAX_STORAGE_BYTES,
)
from formation_p2p.machine.core.capability import Capability
from formation_p2p.machine.core.fits import fits
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements, parse_requirements
from formation_p2p.records.core.buckets import (
    ANY,
    ShardParameters,
    bucket_key,
    buckets_of,
    depths_of,
    places_of,
    shard_key,
    widening,
)
from tests.support import resources_world as world
from tests.support.dht_world import NETWORK, person
from tests.support.resources_world import h100, machine

# One for each level, and for each thing that is named.
MAX_BUCKETS = 24 + 2 * MAX_GPU_MODELS + MAX_LABELS + MAX_DRIVERS


@given(world.needs, world.capabilities, world.labels, world.drivers)
def test_whoever_fits_is_in_every_bucket_that_may_be_asked(
    needs: Requirements, capability: Capability, labels: Mapping[str, str], drivers: set[str]
) -> None:
    if fits(needs, capability, labels, drivers) is None:
        assert set(widening(needs)) <= set(buckets_of(capability, labels, drivers))


@given(world.capabilities, world.labels, world.drivers)
def test_a_machine_is_in_every_bucket_that_asking_for_all_of_it_implies(
    capability: Capability, labels: Mapping[str, str], drivers: set[str]
) -> None:
    """The law above with needs that surely fit."""
    for driver in drivers or {""}:
        needs = Requirements(
            cpu_milli=capability.cpu_milli,
            memory_bytes=capability.memory_bytes,
            storage_bytes=capability.storage_bytes,
            network_mbps=capability.network_mbps,
            labels=tuple(labels.items()),
            driver=driver,
            gpu_count=len(capability.gpus),
        )
        assert fits(needs, capability, labels, drivers) is None
        assert set(widening(needs)) <= set(buckets_of(capability, labels, drivers))


@given(world.needs)
def test_widening_ends_with_any(needs: Requirements) -> None:
    names = widening(needs)
    assert names[-1] == ANY
    assert len(set(names)) == len(names)


@given(world.capabilities, world.labels, world.drivers)
def test_no_bucket_is_named_twice(
    capability: Capability, labels: Mapping[str, str], drivers: set[str]
) -> None:
    names = buckets_of(capability, labels, drivers)
    assert len(set(names)) == len(names) <= MAX_BUCKETS


def test_a_machine_announces_itself_under_few_names_and_by_its_unusual_vendor() -> None:
    names = buckets_of(machine(cpu_milli=4000), {"region": "eu"}, {"python", "process"})
    assert names == (ANY, "driver/process", "driver/python", "label/region/eu")
    gpus = (Gpu("G0", "nvidia", "H100", 1, 90), Gpu("G1", "amd", "MI300X", 1))
    names = buckets_of(Capability(1000, 1, gpus=gpus), {}, ())
    assert [name for name in names if "vendor" in name] == ["gpu/vendor/amd"]
    # As texts `sm_100` comes before `sm_80`.
    b200 = machine(Gpu("G0", "nvidia", "B200", 1, 100))
    assert {"gpu/cc/80", "gpu/cc/90", "gpu/cc/100"} <= set(buckets_of(b200, {}, ()))
    assert "gpu/cc/100" not in buckets_of(machine(h100("G0")), {}, ())


def test_no_machine_is_in_more_buckets_than_the_bound() -> None:
    """The bound is met, so it is not merely large."""
    gpus = tuple(
        Gpu(f"G{n}", f"v{n % MAX_GPU_MODELS}", f"m{n % MAX_GPU_MODELS}", MAX_MEMORY_BYTES, 120)
        for n in range(16)
    )
    largest = Capability(MAX_CPU_MILLI, MAX_MEMORY_BYTES, MAX_STORAGE_BYTES, MAX_NETWORK_MBPS, gpus)
    labels = {f"k{n}": "v" for n in range(MAX_LABELS)}
    drivers = [f"d{n}" for n in range(MAX_DRIVERS)]
    assert len(buckets_of(largest, labels, drivers)) == MAX_BUCKETS


@pytest.mark.parametrize(
    ("text", "bucket"),
    [
        ("", ANY),
        ("cpu=7.999", ANY),
        ("driver=wasm", "driver/wasm"),
        ("cpu=8,driver=wasm", "cpu/8"),
        ("cpu=100,memory=16GiB", "cpu/32"),
        ("memory=2TiB,cpu=8", "memory/1TiB"),
        ("storage=1TiB", "storage/1TiB"),
        ("network=40000", "network/10000"),
        ("label.region=eu,cpu=64", "label/region/eu"),
        ("gpu=1,label.region=eu", "gpu/1"),
        ("gpu=8,gpu.memory=10GB", "gpu/8"),
        ("gpu=1,gpu.memory=24GB", "gpu/memory/20GB"),
        ("gpu=1,gpu.cc=10.3", "gpu/cc/100"),
        ("gpu=1,gpu.cc=7.5,gpu.memory=1GB", "gpu/1"),
        ("gpu=8,gpu.memory=80GB,gpu.model=H100", "gpu/model/h100"),
        ("gpu.model=h100|a100,gpu.memory=40GB", "gpu/memory/40GB"),
        ("gpu.vendor=amd,gpu.memory=40GB", "gpu/vendor/amd"),
        ("gpu.vendor=amd,gpu.model=mi300x", "gpu/model/mi300x"),
        ("gpu.vendor=nvidia,gpu=2", "gpu/2"),
    ],
)
def test_the_bucket_asked_is_the_most_selective(text: str, bucket: str) -> None:
    assert widening(parse_requirements(text))[0] == bucket


def test_a_bucket_has_a_key_of_its_own_in_each_network() -> None:
    key = bucket_key(b"alices", "gpu/1")
    assert key == b"\x12\x20" + hashlib.sha256(b"/formation/alices/gpu/1").digest()
    assert len({key, bucket_key(b"bobs", "gpu/1"), bucket_key(b"alices", "gpu/2")}) == 3


# -- shards: whose they are, who leaves a sample above its own, and their names ------------------


SHARDS = ShardParameters()

DISCOVERY = DiscoveryParameters()


ALICE = person("alice")

keys = st.integers(0, 2**KEY_BITS - 1).map(Key)
depths = st.integers(0, MAX_DEPTH)
spans = st.tuples(depths, depths).map(lambda ends: Span(min(ends), max(ends)))
people = st.integers(0, 200).map(lambda number: person(f"worker {number}").peer_id)


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
    crowd = [person(f"worker {n}").peer_id for n in range(3000)]
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
    # A shard that splits leaves more than a search wants in each half.
    assert SHARDS.split // 2 >= 2 * DISCOVERY.wanted
    assert SHARDS.merge < SHARDS.split // 2
    whole = {bucket_key(NETWORK, "any"): (0, Span(0, 0))}
    assert places_of(NETWORK, ALICE.peer_id, {"any": Span()}) == whole


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
