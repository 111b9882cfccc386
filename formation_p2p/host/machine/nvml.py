"""The NVIDIA GPUs of this machine, through NVML. No GPU and no driver are not errors.

A driver may be missing, of another version than its library, or lose a card while it is asked.
Whatever it does, the answer is a list of the devices that answered in full, and notes in words
about the others. Devices that are split by MIG are left out: their parts have ids and memory of
their own, and none of the drivers here can be told to stay in one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import pynvml

from formation_p2p.core.resources.bounds import MAX_GPU_MODELS, MAX_GPUS
from formation_p2p.core.resources.gpu import Gpu

_log = logging.getLogger(__name__)

_MIG_ENABLED: Final = 1


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A device and how it stands. `utilisation_percent` is for display; None where unknown."""

    gpu: Gpu
    memory_free_bytes: int
    utilisation_percent: int | None


def read_gpus(nvml: Any = pynvml) -> tuple[tuple[GpuReading, ...], tuple[str, ...]]:
    """The devices in NVML's order (that of the PCI bus), and notes. Never raises.

    Blocks, for about a second where no other process keeps the driver loaded: call it off the
    event loop. NVML is initialised for the length of the call only; held longer, it would keep
    the handle of a lost card for good.
    """
    readings: list[GpuReading] = []
    notes: list[str] = []
    with _noted("the NVIDIA driver does not answer", notes):
        nvml.nvmlInit()
        try:
            for index in range(min(nvml.nvmlDeviceGetCount(), MAX_GPUS)):
                with _noted(f"GPU {index} is left out", notes):
                    readings.append(_read(nvml, index, readings, notes))
        finally:
            with _noted("the NVIDIA driver does not shut down", notes):
                nvml.nvmlShutdown()
    return tuple(readings), tuple(notes)


@contextmanager
def _noted(what: str, notes: list[str]) -> Iterator[None]:
    try:
        yield
    except Exception as problem:  # noqa: BLE001
        # Any class: NVML's own, ctypes' for a damaged library, the operating system's, and
        # InvalidInput for a device that claims what cannot be. None may stop the node.
        _log.info("%s: %s", what, problem)
        notes.append(f"{what}: {problem}")


def _read(nvml: Any, index: int, others: Iterable[GpuReading], notes: list[str]) -> GpuReading:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    # A card or a driver from before MIG cannot tell.
    with suppress(nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        if nvml.nvmlDeviceGetMigMode(handle)[0] == _MIG_ENABLED:
            raise ValueError("it is split by MIG, which is not supported")
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    gpu = Gpu(
        device_id=_text(nvml.nvmlDeviceGetUUID(handle)),
        vendor="nvidia",
        model=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=memory.total,
        compute_capability=major * 10 + minor,
    )
    # What a Capability would refuse as a whole is refused here for the one device.
    if any(other.gpu.device_id == gpu.device_id for other in others):
        raise ValueError("its id is that of another one")
    if len({gpu.model, *(other.gpu.model for other in others)}) > MAX_GPU_MODELS:
        raise ValueError(f"there are {MAX_GPU_MODELS} other models in this machine")
    utilisation: int | None = None
    with _noted(f"GPU {index} does not report its utilisation", notes):
        utilisation = max(0, min(int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu), 100))
    return GpuReading(gpu, max(0, min(memory.free, gpu.memory_bytes)), utilisation)


def _text(value: str | bytes) -> str:
    """Versions of the binding differ in which of the two they return."""
    return value.decode() if isinstance(value, bytes) else value
