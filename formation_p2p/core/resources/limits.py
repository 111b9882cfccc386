"""Limits on what the node may use of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.resources.bounds import AMOUNTS, MAX_NETWORK_MBPS, check_amount
from formation_p2p.core.resources.capability import Capability, amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """None is no limit. `gpu_count` keeps the first so many devices."""

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
    most = (*known, network if network > 1 else MAX_NETWORK_MBPS)
    set_ = (limits.cpu_milli, limits.memory_bytes, limits.storage_bytes, limits.network_mbps)
    cpu, memory, storage, speed = map(_chosen, AMOUNTS, set_, amounts(offered), most)
    count = _chosen("gpu", limits.gpu_count, len(offered.gpus), len(hardware.gpus))
    gpus = hardware.gpus[:count]
    return Capability(cpu, memory, storage, speed, gpus, offered.arch, offered.os)


def _chosen(field: str, limit: int | None, offered: int, most: int) -> int:
    if limit is None:
        return offered
    check_amount(field, limit, 0, limit)
    if limit > most:
        raise InvalidInput(field, f"the limit is {limit}, the machine has {most}; lower the limit")
    return limit
