"""The emptiest worker first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from formation_p2p.core.placement.candidate import Candidate, TaskView, free_part, task_part
from formation_p2p.core.placement.policy import Policy, Score, Term, scored


@dataclass(frozen=True, slots=True)
class Spread(Policy):
    """The worker with the fewest of our attempts for its size.

    Its load is what it announced, which includes the work of others and may be a minute old, or
    what this node has in flight there, the larger of the two: a full machine has half the score.
    """

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        return [scored([Term("room", 1 / (1 + _full(task, each)))]) for each in candidates]

    def __str__(self) -> str:
        return "spread"


def _full(task: TaskView, candidate: Candidate) -> float:
    profile = candidate.profile
    ours = candidate.queue * task_part(task.needs, profile.capability)
    return max(ours, 1 - free_part(task.needs, profile.capability, profile.capacity))
