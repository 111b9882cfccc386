"""The NVIDIA GPUs of this machine, through NVML. No GPU and no driver are not errors.

A driver may be missing, of another version than its library, or lose a card while it is asked.
Whatever it does, the answer is a list of the devices that answered in full, and notes in words
about the others. Devices that are split by MIG are left out: their parts have ids and memory of
their own, and none of the drivers here can be told to stay in one.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import pynvml

from formation_p2p.machine.core.bounds import MAX_GPUS
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.gpus import NVIDIA, Found, GpuReading, check_among, noted

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
                    readings.append(_read(nvml, index, readings, notes))
        finally:
            with noted("the NVIDIA driver does not shut down", notes):
                nvml.nvmlShutdown()
    return tuple(readings), tuple(notes)


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
        vendor=NVIDIA,
        model=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=memory.total,
        compute_capability=major * 10 + minor,
    )
    check_among(gpu, others)
    utilisation: int | None = None
    with noted(f"GPU {index} does not report its utilisation", notes):
        utilisation = max(0, min(int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu), 100))
    return GpuReading(gpu, max(0, min(memory.free, gpu.memory_bytes)), utilisation)


def _text(value: str | bytes) -> str:
    """Versions of the binding differ in which of the two they return."""
    return value.decode() if isinstance(value, bytes) else value
