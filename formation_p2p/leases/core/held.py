"""What a lease holds of a machine, as its offer says, and whether that is what was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from formation_p2p.core.refusals import Infeasible
from formation_p2p.machine.core.bounds import (
    MAX_CPU_MILLI,
    MAX_GPUS,
    MAX_MEMORY_BYTES,
    MAX_NETWORK_MBPS,
    MAX_STORAGE_BYTES,
)
from formation_p2p.machine.core.fits import Reservation
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.schema import integer, items, text

# As machine/core/gpu.py has it.
_MAX_DEVICE_ID_CHARS: Final = 64
Memory = Annotated[int, integer(0, MAX_MEMORY_BYTES)]


@dataclass(frozen=True, slots=True)
class HeldResources:
    """The GPU amounts are of each device: where they differ, of the least."""

    cpu_milli: Annotated[int, integer(0, MAX_CPU_MILLI)]
    memory_bytes: Memory
    storage_bytes: Annotated[int, integer(0, MAX_STORAGE_BYTES)] = 0
    network_mbps: Annotated[int, integer(0, MAX_NETWORK_MBPS)] = 0
    device_ids: Annotated[tuple[str, ...], items(text(_MAX_DEVICE_ID_CHARS), MAX_GPUS)] = ()
    gpu_share_milli: Annotated[int, integer(0, WHOLE_GPU_MILLI)] = 0
    gpu_memory_bytes: Memory = 0


def held_by(reservation: Reservation) -> HeldResources:
    needs = reservation.needs
    return HeldResources(
        needs.cpu_milli,
        needs.memory_bytes,
        needs.storage_bytes,
        needs.network_mbps,
        tuple(claim.device_id for claim in reservation.gpus),
        min((claim.share_milli for claim in reservation.gpus), default=0),
        min((claim.memory_bytes for claim in reservation.gpus), default=0),
    )


def shortfall(held: HeldResources, needs: Requirements) -> Infeasible | None:
    """The first thing that is held less of than was asked for; a device named twice is one.

    More devices than asked for is wrong too: what runs would see those of others. More of
    anything else is the worker's gift.
    """
    devices = len(set(held.device_ids))
    if devices != needs.gpu_count or len(held.device_ids) != devices:
        return Infeasible("gpu", needs.gpu_count, devices)
    gpu_share_milli = needs.gpu_share_milli if needs.gpu_count else 0
    for resource, needed, has in (
        ("cpu", needs.cpu_milli, held.cpu_milli),
        ("memory", needs.memory_bytes, held.memory_bytes),
        ("storage", needs.storage_bytes, held.storage_bytes),
        ("network", needs.network_mbps, held.network_mbps),
        ("gpu.share", gpu_share_milli, held.gpu_share_milli),
        ("gpu.memory", needs.gpu_memory_bytes, held.gpu_memory_bytes),
    ):
        if has < needed:
            return Infeasible(resource, needed, has)
    return None
