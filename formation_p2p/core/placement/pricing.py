"""The weight of work, by which its price is multiplied: a GiB of GPU memory weighs 25, a core 1, a
GiB of memory 0.1 and a GiB of storage 0.01. A price is in millionths, for an hour of one unit.

Source: Hypha, its evaluator. There weights are floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from formation_p2p.core.resources.fits import GpuClaim
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.units import GIB

# Each in thousandths, so that a weight is an integer: of a core (which has 1000 itself) and of a
# byte.
_CPU_MILLI: Final = GIB
_GPU_BYTE: Final = 25_000
_MEMORY_BYTE: Final = 100
_STORAGE_BYTE: Final = 10
ONE_UNIT: Final = 1000 * GIB
"""The weight of one core."""


def weight(
    *, cpu_milli: int = 0, gpu_bytes: int = 0, memory_bytes: int = 0, storage_bytes: int = 0
) -> int:
    """Exact; divide by ONE_UNIT for units."""
    return (
        cpu_milli * _CPU_MILLI
        + gpu_bytes * _GPU_BYTE
        + memory_bytes * _MEMORY_BYTE
        + storage_bytes * _STORAGE_BYTE
    )


def weight_of(needs: Requirements, gpus: Sequence[GpuClaim]) -> int:
    """The weight of what a task takes of a worker, with these parts of its GPUs."""
    return weight(
        cpu_milli=needs.cpu_milli,
        gpu_bytes=sum(claim.memory_bytes for claim in gpus),
        memory_bytes=needs.memory_bytes,
        storage_bytes=needs.storage_bytes,
    )
