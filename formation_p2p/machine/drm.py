"""The GPUs of AMD and Intel, as Linux tells of them in sysfs. Neither was seen on real hardware.

AMD's come with the driver `amdgpu`. ROCm names a device by its unique id, which older cards and
integrated ones lack: no task can be told to keep to one of those, and they are left out.

Intel's come with `xe`, which tells of a card's memory by tile, or Intel's own `i915`; that of the
kernel does not, and integrated ones have none of their own. Level Zero names devices by their
place in the order of their addresses on the bus, where it is asked to.

Source: Linux, Documentation/gpu/amdgpu (mem_info_vram_total, gpu_busy_percent, unique_id,
product_name) and the tests of igt-gpu-tools for xe (physical_vram_size_bytes); ROCm, "GPU
isolation techniques"; oneAPI Level Zero specification, "Affinity mask".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.gpus import (
    AMD,
    INTEL,
    Found,
    GpuReading,
    check_among,
    noted,
)

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
