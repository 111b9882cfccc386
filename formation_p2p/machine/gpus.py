"""The GPUs of a machine, of all vendors: each vendor has a function that reads its own, by the
protocol `Read`, and each device an id that says whose it is.

| vendor | id | read from | seen on real hardware |
| ------ | -- | --------- | --------------------- |
| nvidia | `GPU-<uuid>` | NVML (nvml.py) | yes |
| amd    | `amd:GPU-<unique id>` | sysfs (drm.py) | never |
| intel  | `intel:<ordinal>:<address on the bus>` | sysfs (drm.py) | never |
| apple  | `apple:<ordinal>` | system_profiler (apple.py) | never |
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from formation_p2p.machine.core.bounds import MAX_GPU_MODELS, MAX_GPUS
from formation_p2p.machine.core.gpu import Gpu

_log = logging.getLogger(__name__)

NVIDIA: Final = "nvidia"
AMD: Final = "amd"
INTEL: Final = "intel"
APPLE: Final = "apple"
# By whose variable a task is told which devices it may use.
VISIBLE: Final = {
    NVIDIA: "CUDA_VISIBLE_DEVICES",
    AMD: "ROCR_VISIBLE_DEVICES",
    INTEL: "ZE_AFFINITY_MASK",
}


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A device and how it stands. `utilisation_percent` is for display; None where unknown."""

    gpu: Gpu
    memory_free_bytes: int
    utilisation_percent: int | None


Found = tuple[tuple[GpuReading, ...], tuple[str, ...]]


class Read(Protocol):
    def __call__(self) -> Found:
        """The devices of one vendor, in a lasting order, and notes in words on those that are left
        out. Never raises; no device and no driver are not errors. May block for a second."""


@contextmanager
def noted(what: str, notes: list[str]) -> Iterator[None]:
    """Whatever goes wrong within is noted, and goes no further."""
    try:
        yield
    except Exception as problem:  # noqa: BLE001
        # Any class: NVML's own, ctypes' for a damaged library, the operating system's, and
        # InvalidInput for a device that claims what cannot be. None may stop the node.
        _log.info("%s: %s", what, problem)
        notes.append(f"{what}: {problem}")


def check_among(gpu: Gpu, others: Iterable[GpuReading]) -> None:
    """What a Capability would refuse as a whole is refused here for the one device, by
    ValueError."""
    known = [other.gpu for other in others]
    if len(known) >= MAX_GPUS:
        raise ValueError(f"there are {MAX_GPUS} other GPUs in this machine")
    if any(other.device_id == gpu.device_id for other in known):
        raise ValueError("its id is that of another one")
    if len({gpu.model, *(other.model for other in known)}) > MAX_GPU_MODELS:
        raise ValueError(f"there are {MAX_GPU_MODELS} other models in this machine")


def read_all(reads: Iterable[Read]) -> Found:
    """The devices of all vendors, in the order of these."""
    readings: list[GpuReading] = []
    notes: list[str] = []
    for read in reads:
        found, told = read()
        notes += told
        for reading in found:
            with noted(f"{reading.gpu.device_id} is left out", notes):
                check_among(reading.gpu, readings)
                readings.append(reading)
    return tuple(readings), tuple(notes)


def by_vendor(device_ids: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """The ids of a lease as the variables of their vendors take them."""
    held: dict[str, list[str]] = {}
    for device_id in device_ids:
        vendor, colon, own = device_id.partition(":")
        if not colon:
            held.setdefault(NVIDIA, []).append(device_id)
        else:
            # Level Zero counts its devices; the rest of the id is for people.
            held.setdefault(vendor, []).append(own.partition(":")[0] if vendor == INTEL else own)
    return {vendor: tuple(own) for vendor, own in held.items()}
