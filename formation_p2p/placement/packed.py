"""The worker whose GPUs a task would fragment least, for the tasks that the network has seen.

Each worker's score depends on nothing but what that worker signed and the task's mix, so that it
is the same whoever else is looked at: a handful of candidates is enough (docs/packing.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from formation_p2p.placement.candidate import Asked, Candidate
from formation_p2p.placement.fragmentation import Fit, best_fit
from formation_p2p.placement.mix import Mix
from formation_p2p.placement.policy import Policy, Score, Term, scored
from formation_p2p.resources.gpu import WHOLE_GPU_MILLI


@dataclass(frozen=True, slots=True)
class Packed(Policy):
    """0.5 where a task would leave fragments as they are and nothing free; 0.25 with a whole GPU
    more in fragments, 0.75 with one less, and never beyond 0 and 1. 0 where there is no room now.
    """

    def scores(self, task: Asked, candidates: Sequence[Candidate]) -> Sequence[Score]:
        return [_score(task, each) for each in candidates]

    def __str__(self) -> str:
        return "packed"


def _score(task: Asked, candidate: Candidate) -> Score:
    profile = candidate.profile
    fit = best_fit(task.needs, profile.capability, profile.capacity, task.mix)
    value = _value(fit, task.mix) if isinstance(fit, Fit) else 0.0
    return scored([Term("fragments", value)])


def _value(fit: Fit, mix: Mix) -> float:
    """A division of integers is the same on any machine, as no exponential is."""
    above, below = fit.cost(mix)
    return 0.5 - 0.5 * (above / (WHOLE_GPU_MILLI * below + abs(above)))
