"""Small machines and needs for the tests of resources and buckets, small enough to meet often."""

from hypothesis import strategies as st

from formation_p2p.core.units import GIB, TIB
from formation_p2p.machine.core.capability import Capability
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements

GB = 10**9
MODELS = ("h100", "a100", "rtx-4090")
DRIVERS = ("process", "python", "wasm")
LABELS = {"region": "eu", "rack": "r1"}


def a100(device_id: str) -> Gpu:
    return Gpu(device_id, "nvidia", "NVIDIA A100-SXM4-40GB", 40 * GB, 80)


def h100(device_id: str) -> Gpu:
    return Gpu(device_id, "nvidia", "NVIDIA H100 80GB HBM3", 80 * GB, 90)


def machine(*gpus: Gpu, cpu_milli: int = 8000, memory_bytes: int = 8 * GIB) -> Capability:
    return Capability(cpu_milli, memory_bytes, 100 * GIB, 1000, gpus)


VENDORS = ["nvidia", "nvidia", "amd"]
gpus = st.builds(
    Gpu,
    device_id=st.sampled_from(["G0", "G1", "G2", "G3", "G4"]),
    vendor=st.sampled_from(VENDORS),
    model=st.sampled_from(MODELS),
    memory_bytes=st.sampled_from([8 * GB, 24 * GB, 40 * GB, 80 * GB, 180 * GB]),
    compute_capability=st.sampled_from([0, 75, 80, 86, 90, 100, 120]),
)
capabilities = st.builds(
    Capability,
    cpu_milli=st.sampled_from([1, 300, 1000, 8000, 31_999, 128_000]),
    memory_bytes=st.sampled_from([GIB, 16 * GIB, 64 * GIB - 1, 2 * TIB]),
    storage_bytes=st.sampled_from([0, 100 * GIB, TIB, 20 * TIB]),
    network_mbps=st.sampled_from([0, 1000, 10_000]),
    gpus=st.lists(gpus, max_size=5, unique_by=lambda gpu: gpu.device_id).map(tuple),
)
labels = st.dictionaries(
    st.sampled_from(sorted(LABELS)), st.sampled_from(sorted(LABELS.values())), max_size=2
)
drivers = st.sets(st.sampled_from(DRIVERS))


def _needs(**fields: object) -> Requirements:
    if not fields["gpu_count"]:
        fields = {name: value for name, value in fields.items() if not name.startswith("gpu_")}
    return Requirements(**fields)  # type: ignore[arg-type]


needs = st.builds(
    _needs,
    cpu_milli=st.sampled_from([1, 100, 200, 1000, 8000, 40_000]),
    memory_bytes=st.sampled_from([1, GIB, 16 * GIB, 100 * GIB]),
    storage_bytes=st.sampled_from([0, GIB, TIB, 17 * TIB]),
    network_mbps=st.sampled_from([0, 1, 1000, 10_000]),
    gpu_count=st.integers(0, 4),
    gpu_memory_bytes=st.sampled_from([0, 1, 10 * GB, 24 * GB, 81 * GB]),
    gpu_compute_capability=st.sampled_from([0, 70, 80, 86, 90, 120]),
    gpu_models=st.lists(st.sampled_from(MODELS), max_size=2).map(tuple),
    gpu_vendor=st.sampled_from(["", "", *VENDORS]),
    gpu_share_milli=st.sampled_from([1, 333, 500, 999, 1000]),
    labels=labels.map(lambda held: tuple(held.items())),
    driver=st.sampled_from(["", *DRIVERS]),
)
