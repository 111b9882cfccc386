"""What a machine can do, what of it the node may use, and what is free of it now."""

from __future__ import annotations

from dataclasses import dataclass, replace

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core import bounds
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI, Gpu, check_device_id
from formation_p2p.machine.core.python import MAX_PYTHONS, Python
from formation_p2p.machine.core.requirements import Requirements


@dataclass(frozen=True, slots=True)
class Capability:
    """What the machine may use for tasks when idle. `network_mbps` is 0 where it is not known.

    `arch` and `os` are as `uname` has them, in lower case: `x86_64`, `aarch64`; `linux`. `pythons`
    are those that calls may use, sorted. `installs` is whether tasks may bring packages.
    Raises InvalidInput.
    """

    cpu_milli: int
    memory_bytes: int
    storage_bytes: int = 0
    network_mbps: int = 0
    gpus: tuple[Gpu, ...] = ()
    arch: str = "x86_64"
    os: str = "linux"
    pythons: tuple[Python, ...] = ()
    installs: bool = True

    def __post_init__(self) -> None:
        _check(self, Gpu)
        if len({gpu.model for gpu in self.gpus}) > bounds.MAX_GPU_MODELS:
            most = f"more than {bounds.MAX_GPU_MODELS} models in one machine"
            raise InvalidInput("gpu.model", f"there are {most}; leave some out")
        if len({gpu.vendor for gpu in self.gpus}) > bounds.MAX_GPU_MODELS:
            most = f"more than {bounds.MAX_GPU_MODELS} vendors in one machine"
            raise InvalidInput("gpu.vendor", f"there are {most}; leave some out")
        bounds.check_name("arch", self.arch)
        bounds.check_name("os", self.os)
        pythons: object = self.pythons
        if not isinstance(pythons, tuple) or not all(isinstance(x, Python) for x in pythons):
            raise InvalidInput("python", f"{bounds.shown(pythons)} is not a tuple of Python")
        if len(pythons) > MAX_PYTHONS or len({each.name for each in pythons}) < len(pythons):
            problem = f"offer at most {MAX_PYTHONS} versions, each of them once"
            raise InvalidInput("python", problem)
        object.__setattr__(self, "pythons", tuple(sorted(pythons)))


@dataclass(frozen=True, slots=True)
class GpuFree:
    """The free part of one device: thousandths of it, and bytes of its memory."""

    device_id: str
    share_milli: int
    memory_bytes: int

    def __post_init__(self) -> None:
        check_device_id(self.device_id)
        bounds.check_amount("gpu.share", self.share_milli, 0, WHOLE_GPU_MILLI)
        bounds.check_amount("gpu.memory", self.memory_bytes, 0, bounds.MAX_MEMORY_BYTES)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What is free now. A device that is not listed has nothing free. Raises InvalidInput."""

    cpu_milli: int
    memory_bytes: int
    storage_bytes: int = 0
    network_mbps: int = 0
    gpus: tuple[GpuFree, ...] = ()

    def __post_init__(self) -> None:
        _check(self, GpuFree)

    @property
    def gpu_share_milli(self) -> int:
        """Of all GPUs together."""
        return sum(gpu.share_milli for gpu in self.gpus)


def amounts(of: Capability | Capacity | Requirements) -> tuple[int, int, int, int]:
    """In the order of `bounds.AMOUNTS`."""
    return of.cpu_milli, of.memory_bytes, of.storage_bytes, of.network_mbps


def idle(capability: Capability) -> Capacity:
    """The capacity of a machine that runs nothing."""
    gpus = (GpuFree(gpu.device_id, WHOLE_GPU_MILLI, gpu.memory_bytes) for gpu in capability.gpus)
    return Capacity(*amounts(capability), tuple(gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the node may use of the machine. None is no limit. `gpu_count` keeps the first so many
    devices."""

    cpu_milli: int | None = None
    memory_bytes: int | None = None
    storage_bytes: int | None = None
    network_mbps: int | None = None
    gpu_count: int | None = None


def limited(limits: Limits, offered: Capability, hardware: Capability) -> Capability:
    """`offered`, with the limits that are set in its place, at most what the hardware has.

    `offered` is the hardware less a reserve for the rest of the machine. A network speed that was
    not measured (0 or 1) is taken as declared. Raises InvalidInput for a limit below zero or past
    the hardware.
    """
    *known, network = amounts(hardware)
    most = (*known, network if network > 1 else bounds.MAX_NETWORK_MBPS)
    set_ = (limits.cpu_milli, limits.memory_bytes, limits.storage_bytes, limits.network_mbps)
    cpu, memory, storage, speed = map(_chosen, bounds.AMOUNTS, set_, amounts(offered), most)
    count = _chosen("gpu", limits.gpu_count, len(offered.gpus), len(hardware.gpus))
    return replace(
        offered,
        cpu_milli=cpu,
        memory_bytes=memory,
        storage_bytes=storage,
        network_mbps=speed,
        gpus=hardware.gpus[:count],
    )


def _chosen(field: str, limit: int | None, offered: int, most: int) -> int:
    if limit is None:
        return offered
    bounds.check_amount(field, limit, 0, limit)
    if limit > most:
        raise InvalidInput(field, f"the limit is {limit}, the machine has {most}; lower the limit")
    return limit


def _check(machine: Capability | Capacity, kind: type[Gpu] | type[GpuFree]) -> None:
    for (field, most), value in zip(bounds.AMOUNTS.items(), amounts(machine), strict=True):
        bounds.check_amount(field, value, 0, most)
    devices: object = machine.gpus
    if not isinstance(devices, tuple) or not all(isinstance(each, kind) for each in devices):
        raise InvalidInput("gpu", f"{bounds.shown(devices)} is not a tuple of {kind.__name__}")
    if len(devices) > bounds.MAX_GPUS:
        raise InvalidInput("gpu", f"there are more than {bounds.MAX_GPUS} devices")
    if len({each.device_id for each in devices}) < len(devices):
        raise InvalidInput("gpu.id", "two devices have the same id")
