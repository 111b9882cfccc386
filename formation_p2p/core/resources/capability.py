"""What a machine can do, and what is free of it now."""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.resources.bounds import (
    MAX_CPU_MILLI,
    MAX_GPU_MODELS,
    MAX_GPUS,
    MAX_MEMORY_BYTES,
    MAX_NETWORK_MBPS,
    MAX_STORAGE_BYTES,
    check_amount,
    check_name,
    shown,
)
from formation_p2p.core.resources.gpu import WHOLE_GPU_MILLI, Gpu, check_device_id


@dataclass(frozen=True, slots=True)
class Capability:
    """What the machine may use for tasks when idle. `network_mbps` is 0 where it is not known.

    `arch` and `os` are as `uname` has them, in lower case: `x86_64`, `aarch64`; `linux`.
    Raises InvalidInput.
    """

    cpu_milli: int
    memory_bytes: int
    storage_bytes: int = 0
    network_mbps: int = 0
    gpus: tuple[Gpu, ...] = ()
    arch: str = "x86_64"
    os: str = "linux"

    def __post_init__(self) -> None:
        _check_amounts(self.cpu_milli, self.memory_bytes, self.storage_bytes, self.network_mbps)
        _check_devices(self.gpus, Gpu)
        if len({gpu.model for gpu in self.gpus}) > MAX_GPU_MODELS:
            problem = f"there are more than {MAX_GPU_MODELS} models in one machine; leave some out"
            raise InvalidInput("gpu.model", problem)
        check_name("arch", self.arch)
        check_name("os", self.os)


@dataclass(frozen=True, slots=True)
class GpuFree:
    """The free part of one device: thousandths of it, and bytes of its memory."""

    device_id: str
    share_milli: int
    memory_bytes: int

    def __post_init__(self) -> None:
        check_device_id(self.device_id)
        check_amount("gpu.share", self.share_milli, 0, WHOLE_GPU_MILLI)
        check_amount("gpu.memory", self.memory_bytes, 0, MAX_MEMORY_BYTES)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What is free now. A device that is not listed has nothing free. Raises InvalidInput."""

    cpu_milli: int
    memory_bytes: int
    storage_bytes: int = 0
    network_mbps: int = 0
    gpus: tuple[GpuFree, ...] = ()

    def __post_init__(self) -> None:
        _check_amounts(self.cpu_milli, self.memory_bytes, self.storage_bytes, self.network_mbps)
        _check_devices(self.gpus, GpuFree)


def idle(capability: Capability) -> Capacity:
    """The capacity of a machine that runs nothing."""
    return Capacity(
        capability.cpu_milli,
        capability.memory_bytes,
        capability.storage_bytes,
        capability.network_mbps,
        tuple(GpuFree(gpu.device_id, WHOLE_GPU_MILLI, gpu.memory_bytes) for gpu in capability.gpus),
    )


def _check_amounts(cpu: object, memory: object, storage: object, network: object) -> None:
    check_amount("cpu", cpu, 0, MAX_CPU_MILLI)
    check_amount("memory", memory, 0, MAX_MEMORY_BYTES)
    check_amount("storage", storage, 0, MAX_STORAGE_BYTES)
    check_amount("network", network, 0, MAX_NETWORK_MBPS)


def _check_devices(devices: object, kind: type[Gpu] | type[GpuFree]) -> None:
    if not isinstance(devices, tuple) or not all(isinstance(each, kind) for each in devices):
        raise InvalidInput("gpu", f"{shown(devices)} is not a tuple of {kind.__name__}")
    if len(devices) > MAX_GPUS:
        raise InvalidInput("gpu", f"there are more than {MAX_GPUS} devices")
    if len({each.device_id for each in devices}) < len(devices):
        raise InvalidInput("gpu.id", "two devices have the same id")
