"""The lowest price first.

A price is in millionths, for an hour of one unit of work: a GiB of GPU memory weighs 25, a core 1,
a GiB of memory 0.1 and a GiB of storage 0.01.

Source of the weights: Hypha, its evaluator. There they are floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.placement.candidate import Candidate, TaskView
from formation_p2p.core.placement.policy import Policy, Score, Term, scored
from formation_p2p.core.refusals import Infeasible
from formation_p2p.core.resources.capability import idle
from formation_p2p.core.resources.fits import GpuClaim, claims_on
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


@dataclass(frozen=True, slots=True)
class Cheapest(Policy):
    """By the cost of an hour of the task: the worker's price, times the weight of what it takes.

    A task that asks for a GPU with 10 GiB takes all of it: a device with 80 GiB, at the same price
    for a unit, costs eight times as much. Twice the lowest cost is half the score, so that a very
    dear worker changes nothing for the others. Prices above the job's `max_price_micro`, which is
    never sent to workers, are left out before.
    """

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        costs = [_cost(task, each) for each in candidates]
        lowest = min(costs, default=0)
        # As if everything cost a millionth more: prices differ in their scores also beside a worker
        # that asks nothing.
        more = weight_of(task.needs, ())
        return [scored([Term("price", (lowest + more) / (cost + more))]) for cost in costs]

    def __str__(self) -> str:
        return "cheapest"


def _cost(task: TaskView, candidate: Candidate) -> int:
    """In millionths, times ONE_UNIT. Exact: small tasks differ by less than a millionth."""
    profile = candidate.profile
    gpus = claims_on(task.needs, profile.capability, profile.capacity)
    if isinstance(gpus, Infeasible):  # what it would take of a worker that is idle
        gpus = claims_on(task.needs, profile.capability, idle(profile.capability))
    return profile.price_micro * weight_of(task.needs, () if isinstance(gpus, Infeasible) else gpus)
