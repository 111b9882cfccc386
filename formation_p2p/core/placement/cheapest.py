"""The lowest price first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from formation_p2p.core.placement.candidate import Candidate, TaskView
from formation_p2p.core.placement.policy import Policy, Score, Term, scored
from formation_p2p.core.placement.pricing import weight_of
from formation_p2p.core.refusals import Infeasible
from formation_p2p.core.resources.capability import idle
from formation_p2p.core.resources.fits import claims_on


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
