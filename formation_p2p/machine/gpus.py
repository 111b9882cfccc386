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

import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import psutil
import pynvml

from formation_p2p.machine.command import printed_by
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


# The GPUs of a Mac, as its system_profiler tells of them. Never seen on real hardware: no worker
# runs on macOS yet, and this is the part that reads its GPU.
#
# What Apple makes shares the machine's memory, which is then that of the GPU. Others, in older
# Macs, are left out: no driver of tasks here uses them.
#
# Source: system_profiler(8), SPDisplaysDataType.

_COMMAND: Final = ("system_profiler", "SPDisplaysDataType", "-json")
# It asks every display.
_ANSWER_S: Final = 20.0
_MAKER: Final = "sppci_vendor_Apple"


def _profiled() -> str:
    return printed_by(_COMMAND, _ANSWER_S) if sys.platform == "darwin" else "{}"


def read_apple(profiled: Callable[[], str] = _profiled) -> Found:
    """None on other systems. `profiled` gives what the command prints."""
    readings: list[GpuReading] = []
    notes: list[str] = []
    with noted("system_profiler does not answer", notes):
        memory = psutil.virtual_memory()
        for display in json.loads(profiled()).get("SPDisplaysDataType", ()):
            with noted("a GPU is left out", notes):
                if display["spdisplays_vendor"] != _MAKER:
                    raise ValueError(f"{display['sppci_model']} is not by Apple")
                device_id = f"{APPLE}:{len(readings)}"
                gpu = Gpu(device_id, APPLE, display["sppci_model"], memory.total)
                check_among(gpu, readings)
                readings.append(GpuReading(gpu, min(memory.available, memory.total), None))
    return tuple(readings), tuple(notes)


# The GPUs of AMD and Intel, as Linux tells of them in sysfs. Neither was seen on real hardware.
#
# AMD's come with the driver `amdgpu`. ROCm names a device by its unique id, which older cards and
# integrated ones lack: no task can be told to keep to one of those, and they are left out.
#
# Intel's come with `xe`, which tells of a card's memory by tile, or Intel's own `i915`; that of the
# kernel does not, and integrated ones have none of their own. Level Zero names devices by their
# place in the order of their addresses on the bus, where it is asked to.
#
# Source: Linux, Documentation/gpu/amdgpu (mem_info_vram_total, gpu_busy_percent, unique_id,
# product_name) and the tests of igt-gpu-tools for xe (physical_vram_size_bytes); ROCm, "GPU
# isolation techniques"; oneAPI Level Zero specification, "Affinity mask".

_AMD_PCI: Final = "0x1002"
_INTEL_PCI: Final = "0x8086"
_CARD: Final = re.compile(r"card\d{1,4}", re.ASCII)
_UNIQUE_ID: Final = re.compile(r"[0-9a-f]{1,16}", re.ASCII)
# sysfs has no names of Intel's cards; others go by their number on the bus.
_INTEL_NAMES: Final = {
    "0x56a0": "Arc A770",
    "0x56a1": "Arc A750",
    "0x56a5": "Arc A380",
    "0x56a6": "Arc A310",
    "0x56c0": "Flex 170",
    "0x56c1": "Flex 140",
    "0xe20b": "Arc B580",
    "0xe20c": "Arc B570",
}


def read_amd(root: Path = Path("/")) -> Found:
    """By their addresses on the bus."""
    return _read(root, _AMD_PCI, lambda card, _: _amd(card))


def read_intel(root: Path = Path("/")) -> Found:
    """By their addresses on the bus."""
    return _read(root, _INTEL_PCI, _intel)


def _read(root: Path, vendor: str, read: Callable[[Path, int], GpuReading]) -> Found:
    readings: list[GpuReading] = []
    notes: list[str] = []
    for ordinal, card in enumerate(_cards(root, vendor)):
        with noted(f"GPU {_address(card)} is left out", notes):
            reading = read(card, ordinal)
            check_among(reading.gpu, readings)
            readings.append(reading)
    return tuple(readings), tuple(notes)


def _cards(root: Path, vendor: str) -> list[Path]:
    """`/sys/class/drm/card0`…, without the connectors of each, `card0-DP-1`."""
    found = []
    for card in (root / "sys/class/drm").glob("card*"):
        with suppress(OSError):
            if _CARD.fullmatch(card.name) and _text(card / "device/vendor") == vendor:
                found.append(card)
    return sorted(found, key=_address)


def _address(card: Path) -> str:
    """On the bus, such as `0000:03:00.0`."""
    return (card / "device").resolve().name


def _amd(card: Path) -> GpuReading:
    device = card / "device"
    unique_id = _optional(device / "unique_id")
    if _UNIQUE_ID.fullmatch(unique_id) is None:
        raise ValueError("it has no unique id, by which a task could be told to keep to it")
    total_bytes = _number(device / "mem_info_vram_total")
    used_bytes = _number(device / "mem_info_vram_used")
    name = _optional(device / "product_name") or f"amd {_text(device / 'device')[2:]}"
    percent = _optional(device / "gpu_busy_percent")
    return GpuReading(
        Gpu(f"{AMD}:GPU-{unique_id:0>16}", AMD, name, total_bytes),
        max(0, min(total_bytes - used_bytes, total_bytes)),
        min(int(percent), 100) if percent.isdecimal() else None,
    )


def _intel(card: Path, ordinal: int) -> GpuReading:
    total_bytes = sum(_local_bytes(card))
    if total_bytes == 0:
        raise ValueError("its driver tells of no memory of its own")
    number = _text(card / "device/device")
    name = _INTEL_NAMES.get(number, f"intel {number[2:]}")
    free = _optional(card / "lmem_avail_bytes")
    return GpuReading(
        Gpu(f"{INTEL}:{ordinal}:{_address(card)}", INTEL, name, total_bytes),
        min(int(free), total_bytes) if free.isdecimal() else total_bytes,
        None,
    )


def _local_bytes(card: Path) -> Iterator[int]:
    if total := _optional(card / "lmem_total_bytes"):
        yield int(total)
        return
    for tile in sorted((card / "device").glob("tile*")):
        if total := _optional(tile / "physical_vram_size_bytes"):
            yield int(total, 0)


def _number(path: Path) -> int:
    return int(_text(path))


def _text(path: Path) -> str:
    return path.read_text().strip()


def _optional(path: Path) -> str:
    """Empty where the driver does not tell."""
    with suppress(OSError):
        return _text(path)
    return ""


# The NVIDIA GPUs of this machine, through NVML. No GPU and no driver are not errors.
#
# A driver may be missing, of another version than its library, or lose a card while it is asked.
# Whatever it does, the answer is a list of the devices that answered in full, and notes in words
# about the others. Devices that are split by MIG are left out: their parts have ids and memory of
# their own, and none of the drivers here can be told to stay in one.

_MIG_ENABLED: Final = 1


def read_gpus(nvml: Any = pynvml) -> Found:
    """The devices in NVML's order (that of the PCI bus), and notes. Never raises.

    Blocks, for about a second where no other process keeps the driver loaded: call it off the
    event loop. NVML is initialised for the length of the call only; held longer, it would keep
    the handle of a lost card for good.
    """
    readings: list[GpuReading] = []
    notes: list[str] = []
    with noted("the NVIDIA driver does not answer", notes):
        nvml.nvmlInit()
        try:
            for index in range(min(nvml.nvmlDeviceGetCount(), MAX_GPUS)):
                with noted(f"GPU {index} is left out", notes):
                    readings.append(_read_of_nvml(nvml, index, readings, notes))
        finally:
            with noted("the NVIDIA driver does not shut down", notes):
                nvml.nvmlShutdown()
    return tuple(readings), tuple(notes)


def _read_of_nvml(
    nvml: Any, index: int, others: Iterable[GpuReading], notes: list[str]
) -> GpuReading:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    # A card or a driver from before MIG cannot tell.
    with suppress(nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        if nvml.nvmlDeviceGetMigMode(handle)[0] == _MIG_ENABLED:
            raise ValueError("it is split by MIG, which is not supported")
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    gpu = Gpu(
        device_id=_text_of_nvml(nvml.nvmlDeviceGetUUID(handle)),
        vendor=NVIDIA,
        model=_text_of_nvml(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=memory.total,
        compute_capability=major * 10 + minor,
    )
    check_among(gpu, others)
    utilisation: int | None = None
    with noted(f"GPU {index} does not report its utilisation", notes):
        utilisation = max(0, min(int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu), 100))
    return GpuReading(gpu, max(0, min(memory.free, gpu.memory_bytes)), utilisation)


def _text_of_nvml(value: str | bytes) -> str:
    """Versions of the binding differ in which of the two they return."""
    return value.decode() if isinstance(value, bytes) else value
