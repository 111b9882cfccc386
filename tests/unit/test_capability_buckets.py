"""Buckets: whoever fits is in the bucket asked; the rest is thrift."""

import hashlib
from collections.abc import Mapping

import pytest
from hypothesis import given

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
from formation_p2p.records.core.buckets import ANY, bucket_key, buckets_of, widening
from tests.support import resources_world as world
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


def test_a_small_machine_announces_itself_under_few_names() -> None:
    names = buckets_of(machine(cpu_milli=4000), {"region": "eu"}, {"python", "process"})
    assert names == (ANY, "driver/process", "driver/python", "label/region/eu")


def test_a_machine_is_in_the_bucket_of_a_vendor_that_is_not_the_usual_one() -> None:
    gpus = (Gpu("G0", "nvidia", "H100", 1, 90), Gpu("G1", "amd", "MI300X", 1))
    names = buckets_of(Capability(1000, 1, gpus=gpus), {}, ())
    assert [name for name in names if "vendor" in name] == ["gpu/vendor/amd"]


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


def test_sm_100_is_in_the_buckets_of_all_before_it() -> None:
    """As texts `sm_100` comes before `sm_80`."""
    b200 = machine(Gpu("G0", "nvidia", "B200", 1, 100))
    assert {"gpu/cc/80", "gpu/cc/90", "gpu/cc/100"} <= set(buckets_of(b200, {}, ()))
    assert "gpu/cc/100" not in buckets_of(machine(h100("G0")), {}, ())


def test_a_bucket_has_a_key_of_its_own_in_each_network() -> None:
    key = bucket_key(b"alices", "gpu/1")
    assert key == b"\x12\x20" + hashlib.sha256(b"/formation/alices/gpu/1").digest()
    assert len({key, bucket_key(b"bobs", "gpu/1"), bucket_key(b"alices", "gpu/2")}) == 3
