"""How full a worker is, and how much of it one task takes. Parts of 1."""

from __future__ import annotations

from formation_p2p.core.resources.capability import Capability, Capacity
from formation_p2p.core.resources.gpu import WHOLE_GPU_MILLI
from formation_p2p.core.resources.requirements import Requirements


def free_part(needs: Requirements, capability: Capability, capacity: Capacity) -> float:
    """What is free of the resource that is scarcest: of cores and memory, and of GPUs where the
    task needs any."""
    parts = [
        _part(capacity.cpu_milli, capability.cpu_milli),
        _part(capacity.memory_bytes, capability.memory_bytes),
    ]
    if needs.gpu_count:
        free_milli = sum(gpu.share_milli for gpu in capacity.gpus)
        parts.append(_part(free_milli, len(capability.gpus) * WHOLE_GPU_MILLI))
    return min(parts)


def task_part(needs: Requirements, capability: Capability) -> float:
    """What one such task takes of the resource that it takes most of, when the worker is idle."""
    return max(
        _part(needs.cpu_milli, capability.cpu_milli),
        _part(needs.memory_bytes, capability.memory_bytes),
        _part(needs.storage_bytes, capability.storage_bytes),
        _part(needs.network_mbps, capability.network_mbps),
        _part(needs.gpu_count * needs.gpu_share_milli, len(capability.gpus) * WHOLE_GPU_MILLI),
    )


def _part(amount: int, of: int) -> float:
    return amount / of if of else 0.0
