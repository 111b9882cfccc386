"""The worker whose GPUs a task would fragment least, for the tasks that the network has seen.

A worker's score depends on its own profile and the mix of tasks alone, so that a handful of
candidates is enough (docs/packing.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.placement.candidate import Candidate, TaskView
from formation_p2p.core.placement.fragmentation import best_fit
from formation_p2p.core.placement.policy import NO_SCORE, Policy, Score, Term, scored
from formation_p2p.core.refusals import Infeasible
from formation_p2p.core.resources.gpu import WHOLE_GPU_MILLI
from formation_p2p.core.workload.mix import Mix, merged

# The nearest of those with room; docs/packing.md says what more would bring.
CANDIDATES: Final = 16


@dataclass(frozen=True, slots=True)
class Packed(Policy):
    """0.5 where a task would leave fragments as they are and nothing free; 0.25 with a whole GPU
    more in fragments, 0.75 with one less; 0 for a worker without room."""

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        roomy = (each for each in candidates if each.lacks(task) is None)
        nearest = sorted(roomy, key=lambda each: each.distance(task))[:CANDIDATES]
        mix = merged(each.profile.mix for each in nearest)
        scores = {each.peer_id: _score(task, each, mix) for each in nearest}
        return [scores.get(each.peer_id, NO_SCORE) for each in candidates]

    @property
    def seeks_room(self) -> bool:
        return True

    def __str__(self) -> str:
        return "packed"


def _score(task: TaskView, candidate: Candidate, mix: Mix) -> Score:
    profile = candidate.profile
    fit = best_fit(task.needs, profile.capability, profile.capacity, mix)
    assert not isinstance(fit, Infeasible), "only those with room are scored"
    above, below = fit.cost(mix)
    # A division of integers is the same on any machine, as no exponential is.
    value = 0.5 - 0.5 * (above / (WHOLE_GPU_MILLI * below + abs(above)))
    return scored([Term("fragments", value)])
