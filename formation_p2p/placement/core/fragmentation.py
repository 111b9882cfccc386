"""How much of a machine's free GPUs is useless for the tasks that are expected.

After Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023. For a task that does not fit, all free GPUs are wasted; for one
that fits, those of devices too full for it. A machine's fragments are the mean over a mix of tasks,
and a task belongs where they grow least.

Capacity that few have is not to be used up by tasks that any machine could run. So a task of the
mix that only some devices may run counts for more, as if all of its kind came to those devices:
of a sixth of all tasks for one model, which a twentieth of the devices is of, each such device
expects more than three times as many as its share of the tasks (`by_scarcity`). Without that, the
models that many candidates have weigh most, and scarce ones are given away.

That looks one task ahead: eight idle devices and cores for one task have no fragments. So half of
the measure is what would still be free after as many such tasks as fit: then cores that will run
out and rests that will remain count from the beginning. Of two machines whose fragments grow by the
same, the one with less left is better (best fit).

Integers throughout: the same facts give the same answer on any machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from formation_p2p.core.refusals import Infeasible
from formation_p2p.machine.core.capability import Capability, Capacity
from formation_p2p.machine.core.fits import GpuClaim, claims_on
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI, Gpu
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.workload.core.mix import Mix, Shape

# A whole idle device more on a machine weighs as much as 4 thousandths of one in fragments.
# Twice the weight costs 0.1 per cent of a cluster's GPUs, none at all 0.3
# (docs/explanation/performance.md).
IDLE_PER_FRAGMENT: Final = 256
# Tasks of a mix are counted in thousandths once they are weighed by what is scarce.
SCARCITY_MILLI: Final = 1000
# ...and one counts at most so many times: with 4 the scarce models are not kept, and without a
# bound more of a cluster that is asked for far too much stays idle
# (docs/explanation/performance.md).
MAX_SCARCITY: Final = 8


@dataclass(frozen=True, slots=True)
class Fit:
    """A task on these devices of a machine: by how many thousandths of a GPU the machine's
    fragments grow, twice for each task of the mix, and how many are free then."""

    claims: tuple[GpuClaim, ...]
    added: int
    idle_milli: int

    def cost(self, weight: int) -> tuple[int, int]:
        """In thousandths of a GPU, as a fraction: less is better. `weight` is that of the mix, in
        its units, before any task in it was found scarce."""
        above = IDLE_PER_FRAGMENT // 2 * self.added + weight * self.idle_milli
        return above, IDLE_PER_FRAGMENT * weight


def by_scarcity(mix: Mix, machines: Iterable[Capability]) -> Mix:
    """The mix in thousandths of tasks, each counted as many times as there are devices for each
    one of these machines that may run it: 1 to MAX_SCARCITY times. What none may run is left out,
    for it makes no difference between them."""
    devices = Counter(gpu for able in machines for gpu in map(_kind, able.gpus))
    shapes = []
    for shape, count in mix.shapes:
        able = sum(number for gpu, number in devices.items() if _is_able(shape, gpu))
        if able:
            most = SCARCITY_MILLI * MAX_SCARCITY
            times_milli = min(SCARCITY_MILLI * devices.total() // able, most)
            shapes.append((shape, count * times_milli))
    return Mix(tuple(shapes))


def best_devices(
    needs: Requirements, capability: Capability, capacity: Capacity, mix: Mix
) -> tuple[GpuClaim, ...] | Infeasible:
    """The devices to take, so that fragments grow least; as `claims_on` otherwise."""
    if needs.gpu_count == 0:
        return claims_on(needs, capability, capacity)
    fit = best_fit(needs, capability, capacity, mix)
    return fit if isinstance(fit, Infeasible) else fit.claims


def best_fit(
    needs: Requirements, capability: Capability, capacity: Capacity, mix: Mix
) -> Fit | Infeasible:
    claims = claims_on(needs, capability, capacity)
    if isinstance(claims, Infeasible):
        return claims
    cpu_milli = capacity.cpu_milli - needs.cpu_milli
    before = fragments(capability, capacity.cpu_milli, shares_of(capacity), mix)
    is_part = needs.gpu_count == 1 and needs.gpu_share_milli < WHOLE_GPU_MILLI
    fits = []
    # Whole devices are alike, and for parts of several best fit has to do.
    for option in _options(needs, capability, capacity) if is_part else (claims,):
        shares = shares_of(capacity)
        for claim in option:
            shares[claim.device_id] -= claim.share_milli
        after = fragments(capability, cpu_milli, shares, mix)
        fits.append(Fit(option, after - before, sum(shares.values())))
    return min(fits, key=lambda fit: fit.added)


def _options(
    needs: Requirements, capability: Capability, capacity: Capacity
) -> Iterator[tuple[GpuClaim, ...]]:
    """A part of one device may come from any that has it: of each kind once, the fullest first."""
    kinds = {gpu.device_id: _kind(gpu) for gpu in capability.gpus}
    tried = set()
    for free in sorted(capacity.gpus, key=lambda free: (free.share_milli, free.device_id)):
        kind = (kinds.get(free.device_id), free.share_milli, free.memory_bytes)
        if kind not in tried:
            tried.add(kind)
            claims = claims_on(needs, capability, replace(capacity, gpus=(free,)))
            if not isinstance(claims, Infeasible):
                yield claims


def fragments(capability: Capability, cpu_milli: int, shares: Mapping[str, int], mix: Mix) -> int:
    """In thousandths of a GPU, twice for each task of the mix: 0 to 2 * weight * all that is free.

    Of tasks with parts of several devices each it may be too few: parts may lie on one device.
    """
    free = sum(shares.values())
    if free == 0:
        return 0
    devices = [(gpu, shares[gpu.device_id]) for gpu in capability.gpus if gpu.device_id in shares]
    wasted = 0
    for shape, count in mix.shapes:
        needed = shape.gpu_share_milli
        roomy = [share for gpu, share in devices if share >= needed and _is_able(shape, gpu)]
        once = full = 0
        if shape.cpu_milli <= cpu_milli and shape.gpu_count <= len(roomy):
            once = sum(roomy)
            parts = sum(share // needed for share in roomy)
            times = min(cpu_milli // shape.cpu_milli, parts // shape.gpu_count)
            full = times * shape.gpu_count * needed
        wasted += count * (2 * free - once - full)
    return wasted


def _kind(gpu: Gpu) -> Gpu:
    """The same for devices that are alike."""
    return replace(gpu, device_id="any")


def _is_able(shape: Shape, gpu: Gpu) -> bool:
    return (
        (not shape.gpu_models or gpu.model in shape.gpu_models)
        and gpu.compute_capability >= shape.gpu_compute_capability
        and gpu.memory_bytes >= shape.gpu_memory_bytes
    )


def shares_of(capacity: Capacity) -> dict[str, int]:
    return {each.device_id: each.share_milli for each in capacity.gpus}
