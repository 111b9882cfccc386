"""Whether a machine can run a task: None, or the first reason why not.

`fits` looks at the machine, `fits_now` at its free capacity as well. For profiles of other machines
the answer is advice; a worker's own `Ledger` decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from formation_p2p.core.refusals import Infeasible
from formation_p2p.core.resources.bounds import AMOUNTS
from formation_p2p.core.resources.capability import Capability, Capacity, GpuFree, amounts
from formation_p2p.core.resources.gpu import WHOLE_GPU_MILLI, Gpu
from formation_p2p.core.resources.requirements import Requirements


@dataclass(frozen=True, slots=True)
class GpuClaim:
    """The part of one device that a task takes: thousandths of it, and bytes of its memory."""

    device_id: str
    share_milli: int
    memory_bytes: int


def fits(
    needs: Requirements,
    capability: Capability,
    labels: Mapping[str, str],
    drivers: Collection[str],
) -> Infeasible | None:
    """Whether the machine could run it when idle."""
    if needs.driver and needs.driver not in drivers:
        return Infeasible("driver", needs.driver, ",".join(sorted(drivers)) or "none")
    for key, value in needs.labels:
        if labels.get(key) != value:
            return Infeasible(f"label.{key}", value, labels.get(key, "none"))
    return _lacks_amount(needs, capability) or _refusal(_able_devices(needs, capability))


def fits_now(
    needs: Requirements,
    capability: Capability,
    labels: Mapping[str, str],
    drivers: Collection[str],
    capacity: Capacity,
) -> Infeasible | None:
    """Whether it could start at once."""
    return fits(needs, capability, labels, drivers) or lacks_room(needs, capability, capacity)


def lacks_room(
    needs: Requirements, capability: Capability, capacity: Capacity
) -> Infeasible | None:
    """Why it could not start at once on a machine with its labels and drivers."""
    return _refusal(claims_on(needs, capability, capacity))


def claims_on(
    needs: Requirements, capability: Capability, capacity: Capacity
) -> tuple[GpuClaim, ...] | Infeasible:
    """The devices to take, if all amounts are free; labels and drivers are not looked at.

    Best fit, and deterministic: whole devices are the smallest that will do, shares come from the
    fullest, so that large and idle devices remain for tasks that need them.
    """
    lacking = _lacks_amount(needs, capacity)
    if lacking is not None:
        return lacking
    able = _able_devices(needs, capability)
    if isinstance(able, Infeasible):
        return able
    if needs.gpu_count == 0:
        return ()
    free = {each.device_id: each for each in capacity.gpus}
    if needs.gpu_share_milli == WHOLE_GPU_MILLI:
        return _whole_devices(needs, able, free)
    return _parts_of_devices(needs, able, free)


def _refusal(answer: object) -> Infeasible | None:
    return answer if isinstance(answer, Infeasible) else None


def _lacks_amount(needs: Requirements, has: Capability | Capacity) -> Infeasible | None:
    for resource, needed, free in zip(AMOUNTS, amounts(needs), amounts(has), strict=True):
        if needed > free:
            return Infeasible(resource, needed, free)
    return None


def _able_devices(needs: Requirements, capability: Capability) -> list[Gpu] | Infeasible:
    """The devices that satisfy every GPU field when idle; at least `gpu_count` of them."""
    count = needs.gpu_count
    able = list(capability.gpus)
    if len(able) < count:
        return Infeasible("gpu", count, len(able))
    if needs.gpu_models:
        able = [gpu for gpu in able if gpu.model in needs.gpu_models]
        if len(able) < count:
            kinds = sorted(Counter(gpu.model for gpu in capability.gpus).items())
            has = ", ".join(f"{number} of {model}" for model, number in kinds)
            return Infeasible("gpu.model", f"{count} of {'|'.join(needs.gpu_models)}", has)
    if count == 0:
        return able
    # Of the best `count` devices the last one decides.
    last = sorted((gpu.compute_capability for gpu in able), reverse=True)[count - 1]
    if last < needs.gpu_compute_capability:
        return Infeasible("gpu.cc", needs.gpu_compute_capability, last)
    able = [gpu for gpu in able if gpu.compute_capability >= needs.gpu_compute_capability]
    last = sorted((gpu.memory_bytes for gpu in able), reverse=True)[count - 1]
    if last < needs.gpu_memory_bytes:
        return Infeasible("gpu.memory", needs.gpu_memory_bytes, last)
    return [gpu for gpu in able if gpu.memory_bytes >= needs.gpu_memory_bytes]


def _whole_devices(
    needs: Requirements, able: list[Gpu], free: Mapping[str, GpuFree]
) -> tuple[GpuClaim, ...] | Infeasible:
    smallest = sorted(able, key=lambda x: (x.memory_bytes, x.compute_capability, x.device_id))
    left = [free[gpu.device_id] for gpu in smallest if gpu.device_id in free]
    unused = [each for each in left if each.share_milli == WHOLE_GPU_MILLI]
    if len(unused) < needs.gpu_count:
        return Infeasible("gpu", needs.gpu_count, len(unused))
    roomy = [each for each in unused if each.memory_bytes >= needs.gpu_memory_bytes]
    if len(roomy) < needs.gpu_count:
        memory = sorted((each.memory_bytes for each in unused), reverse=True)
        return Infeasible("gpu.memory", needs.gpu_memory_bytes, memory[needs.gpu_count - 1])
    chosen = roomy[: needs.gpu_count]
    return tuple(GpuClaim(x.device_id, WHOLE_GPU_MILLI, x.memory_bytes) for x in chosen)


def _parts_of_devices(
    needs: Requirements, able: list[Gpu], free: Mapping[str, GpuFree]
) -> tuple[GpuClaim, ...] | Infeasible:
    count, share = needs.gpu_count, needs.gpu_share_milli
    left = {gpu.device_id: free.get(gpu.device_id, GpuFree(gpu.device_id, 0, 0)) for gpu in able}
    shares = sorted((each.share_milli for each in left.values()), reverse=True)
    if shares[count - 1] < share:
        return Infeasible("gpu.share", share, shares[count - 1])
    claims = []
    for gpu in able:
        if left[gpu.device_id].share_milli >= share:
            memory = needs.gpu_memory_bytes or gpu.memory_bytes * share // WHOLE_GPU_MILLI
            claims.append(GpuClaim(gpu.device_id, share, memory))
    claims.sort(key=lambda claim: claim.memory_bytes - left[claim.device_id].memory_bytes)
    short = claims[count - 1]
    if short.memory_bytes > left[short.device_id].memory_bytes:
        return Infeasible("gpu.memory", short.memory_bytes, left[short.device_id].memory_bytes)
    roomy = [each for each in claims if each.memory_bytes <= left[each.device_id].memory_bytes]
    roomy.sort(key=lambda claim: _fullness(left[claim.device_id]))
    return tuple(roomy[:count])


def _fullness(free: GpuFree) -> tuple[int, int, str]:
    return free.share_milli, free.memory_bytes, free.device_id
