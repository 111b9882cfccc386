"""Made-up workers: many small machines, few large ones, drawn by seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

from formation_p2p.core.identity import peer_id_of
from formation_p2p.core.units import GIB, TIB
from formation_p2p.machine.core.capability import Capability, Capacity, GpuFree, idle
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI, Gpu
from formation_p2p.records.core.profile import Profile

NOW_UNIX_S: Final = 1_767_225_600
GB: Final = 10**9
# Name, bytes of memory, compute capability.
_AT_HOME: Final = (
    ("NVIDIA GeForce RTX 3060", 12 * GB, 86),
    ("NVIDIA GeForce RTX 3090", 24 * GIB, 86),
    ("NVIDIA GeForce RTX 4070", 12 * GB, 89),
    ("NVIDIA GeForce RTX 4090", 24 * GIB, 89),
    ("NVIDIA GeForce GTX 1080", 8 * GB, 61),
)
_IN_RACKS: Final = (
    ("Tesla T4", 16 * GB, 75),
    ("NVIDIA A100-SXM4-40GB", 40 * GIB, 80),
    ("NVIDIA A100-SXM4-80GB", 80 * GIB, 80),
    ("NVIDIA L40S", 48 * GIB, 89),
    ("NVIDIA H100 80GB HBM3", 80 * GIB, 90),
)
# Of a hundred workers.
_REGIONS: Final = {"eu": 40, "us-east": 20, "us-west": 15, "asia": 14, "south": 8, "africa": 3}
_REGION_NAMES: Final = tuple(_REGIONS)
_REGION_WEIGHTS: Final = tuple(_REGIONS.values())
# A label that five of a million have.
RARE_LABEL: Final = ("dataset", "sky-survey")
RARE_OF: Final = 200_000
# Machines that differ; workers with the same one differ in their labels and drivers.
_MACHINES: Final = 4000


def workers(count: int, seed: int, *, all_idle: bool = False) -> Iterator[Profile]:
    """Unless all are idle half of them are, and the others used to some part."""
    rng = random.Random(seed)
    machines = [rng.choices(_KINDS, _KIND_WEIGHTS)[0](rng) for _ in range(_MACHINES)]
    offers = [(has, idle(has) if all_idle else _left(rng, has)) for has in machines]
    for number in range(count):
        yield _worker(rng, number, *rng.choice(offers))


def _worker(rng: random.Random, number: int, has: Capability, free: Capacity) -> Profile:
    labels = [
        ("region", rng.choices(_REGION_NAMES, _REGION_WEIGHTS)[0]),
        ("site", f"s{rng.randrange(2000)}"),
        ("rack", f"r{rng.randrange(40)}"),
    ]
    if number % RARE_OF == RARE_OF // 2:
        labels.append(RARE_LABEL)
    drivers = ["process", "python"]
    drivers += ["wasm"] if rng.random() < 0.5 else []
    drivers += ["container"] if rng.random() < 0.3 else []
    return Profile(
        peer_id=peer_id_of(rng.randbytes(32)),
        sequence=1,
        issued_unix_s=NOW_UNIX_S,
        # One in a hundred has not been heard of again.
        expires_unix_s=NOW_UNIX_S + (120 if rng.random() < 0.99 else -1),
        capability=has,
        capacity=free,
        labels=tuple(labels),
        drivers=tuple(drivers),
        price_micro=rng.choice((0, 0, 0, 5_000, 20_000, 50_000)),
    )


def _laptop(rng: random.Random) -> Capability:
    cores, disk = rng.choice((4, 4, 8, 8, 12, 16)), rng.choice((128, 256, 512)) * GIB
    return Capability(cores * 1000, rng.choice((8, 16, 16, 32)) * GIB, disk, 300)


def _desktop(rng: random.Random) -> Capability:
    cores, memory = rng.choice((6, 8, 12, 16, 24)), rng.choice((16, 32, 64, 128)) * GIB
    gpus = _devices(rng, _AT_HOME, rng.choice((0, 1, 1, 1, 2)))
    return Capability(cores * 1000, memory, TIB, 1000, gpus)


def _server(rng: random.Random) -> Capability:
    cores = rng.choice((32, 48, 64, 128))
    return Capability(cores * 1000, cores * rng.choice((2, 4, 8)) * GIB, 8 * TIB, 10_000)


def _gpu_server(rng: random.Random) -> Capability:
    count = rng.choice((1, 2, 2, 4, 4, 8))
    gpus = _devices(rng, _IN_RACKS, count)
    if rng.random() < 0.1:  # two kinds in one machine
        gpus = gpus[: count // 2] + _devices(rng, _IN_RACKS, count)[count // 2 :]
    return Capability(count * 16_000, count * 128 * GIB, 8 * TIB, 25_000, gpus)


def _devices(
    rng: random.Random, models: tuple[tuple[str, int, int], ...], count: int
) -> tuple[Gpu, ...]:
    name, memory, version = rng.choice(models)
    return tuple(Gpu(f"GPU-{place}", "nvidia", name, memory, version) for place in range(count))


def _left(rng: random.Random, has: Capability) -> Capacity:
    """What is free."""
    if rng.random() < 0.5:
        return idle(has)
    part = rng.random()
    gpus = tuple(
        GpuFree(gpu.device_id, share, gpu.memory_bytes * share // WHOLE_GPU_MILLI)
        for gpu in has.gpus
        for share in [rng.choice((0, 0, 500, WHOLE_GPU_MILLI))]
    )
    cpu, memory = int(has.cpu_milli * part), int(has.memory_bytes * part)
    return Capacity(cpu, memory, has.storage_bytes, has.network_mbps, gpus)


# And how many of a hundred workers are of each.
_KINDS: Final[tuple[Callable[[random.Random], Capability], ...]] = (
    _laptop,
    _desktop,
    _server,
    _gpu_server,
)
_KIND_WEIGHTS: Final = (55, 30, 12, 3)
