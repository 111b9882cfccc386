"""Which preset of `scored` is best for which kind of task, by the turnaround that each brought.

Off by default: `policy="scored(learnt)"` asks for it. Each job goes by one preset. Of a kind the
presets take turns, and one is dropped once it is clear that another is faster. Those that cannot
be told apart go on taking turns. All have the same gate of trust: what is learnt ranks the workers
that pass it.

Turnarounds differ by orders of magnitude, and a few are very long: so their logarithms count.

Those that take turns meet the same load, and results of each are late alike. That is why no preset
is favoured before the others are dropped: of one that is, the newest tasks that have ended are the
short ones, so that it looks better than it is; and those that were tried only at first are judged
by the load of that time.

Source: Even-Dar, Mannor and Mansour, "Action elimination and stopping conditions for the
multi-armed bandit and reinforcement learning problems", 2006, by the measured spread; Jamieson et
al., "lil' UCB", 2014, for how little the bound grows with the number of looks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from formation_p2p.core.refusals import Distrusted
from formation_p2p.placement.core.candidate import Candidate, TaskView
from formation_p2p.placement.core.policy import Policy, Score
from formation_p2p.placement.core.scored import PRESETS, Scored, scored_by

# Results of a preset, of as many jobs, before they decide.
LEAST: Final = 15
# Standard errors by which one is slower than another, to be dropped. It is looked at after each
# result: of 300 pairs that differed by a tenth, with up to 2,000 results each, none lost the
# faster one.
_ERRORS: Final = 3.0
# Results of a kind, of as many jobs, after which all presets take turns again: loads and machines
# change.
AGAIN: Final = 10_000
# Kinds that are remembered; the one that came longest ago makes room.
MAX_KINDS: Final = 256
# ...and of which `explain` tells.
_EXPLAINED: Final = 4
# A clock is read in milliseconds, and no task takes no time.
_SHORTEST_S: Final = 0.001
# The preset that what was learnt is compared with, and that stands where nothing was.
_DEFAULT: Final = "newest"


@dataclass(frozen=True, slots=True)
class Learnt(Policy):
    """The preset that was found best for the kind of the task. `told` says why, for people."""

    preset: str = _DEFAULT
    told: str = field(default="", compare=False)

    def admit(self, task: TaskView, candidate: Candidate) -> Distrusted | None:
        return self._scored.admit(task, candidate)

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        return self._scored.scores(task, candidates)

    @property
    def _scored(self) -> Scored:
        return PRESETS[self.preset]

    def __str__(self) -> str:
        return f"scored(learnt): {self.told}" if self.told else "scored(learnt)"


def scored_or_learnt(*items: str) -> Policy:
    """As `scored_by`, or what is learnt. Raises InvalidInput."""
    return Learnt() if items == ("learnt",) else scored_by(*items)


@dataclass(slots=True)
class Arm:
    """Of one preset: for how many tasks of how many `jobs` it was `chosen`, and of those that
    `ended` the sums of the logarithms of their turnarounds."""

    chosen: int = 0
    jobs: int = 0
    ended: int = 0
    log_sum: float = 0.0
    square_sum: float = 0.0
    is_dropped: bool = False

    @property
    def mean(self) -> float:
        return self.log_sum / self.ended

    @property
    def results(self) -> int:
        """Those that tell something of their own: tasks of one job meet the same load."""
        return min(self.jobs, self.ended)

    @property
    def is_awaited(self) -> bool:
        """Whether enough was asked of it, and the others go first until that is here."""
        return self.jobs >= 2 * LEAST and self.results < LEAST

    @property
    def error(self) -> float:
        """The variance of the mean."""
        return max(self.square_sum / self.ended - self.mean**2, 0.0) / self.results


class Learner:
    """Of one scheduler."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, Arm]] = {}

    def choose(self, kind: str, tasks: int = 1) -> Learnt:
        """The preset for so many tasks of this kind, which are about to be placed."""
        arms = self._kinds.pop(kind, None) or {name: Arm() for name in PRESETS}
        if len(self._kinds) >= MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = arms
        preset = self.best(kind)
        arms[preset].chosen += tasks
        arms[preset].jobs += 1
        return Learnt(preset, self.told(kind))

    def took(self, kind: str, preset: str, turnaround_s: float) -> None:
        """A task of this kind has brought its result so long after its submission."""
        arms = self._kinds.get(kind)
        if arms is None:
            return
        arm, log = arms[preset], math.log(max(turnaround_s, _SHORTEST_S))
        arm.ended += 1
        arm.log_sum += log
        arm.square_sum += log * log
        if sum(arm.results for arm in arms.values()) >= AGAIN:
            self._kinds[kind] = {name: Arm() for name in PRESETS}
        else:
            _drop(arms.values())

    def best(self, kind: str) -> str:
        """The preset whose turn it is."""
        arms = self._kinds.get(kind)
        if arms is None:
            return _DEFAULT
        return min(_left(arms), key=lambda name: (arms[name].is_awaited, arms[name].chosen))

    def explained(self) -> Learnt:
        """What is known of the kinds that came last, for people."""
        kinds = [*self._kinds][-_EXPLAINED:]
        told = "; ".join(map(self.told, kinds)) or "nothing yet"
        return Learnt(self.best(kinds[-1]) if kinds else _DEFAULT, told)

    def told(self, kind: str) -> str:
        """What is known of a kind, for people."""
        arms = self._kinds.get(kind, {})
        means = (
            f"{name} {math.exp(arm.mean):.3g} s in {arm.ended}" if arm.ended else f"{name} unknown"
            for name, arm in (arms or {name: Arm() for name in PRESETS}).items()
        )
        how = "learnt" if len(_left(arms)) == 1 else "learning"
        return f"{self.best(kind)}, {how} of {kind or 'tasks'}: {', '.join(means)}"


def _left(arms: Mapping[str, Arm]) -> list[str]:
    """The presets that take turns."""
    return [name for name, arm in arms.items() if not arm.is_dropped]


def _drop(arms: Iterable[Arm]) -> None:
    """Those of which it is clear that another is faster."""
    known = [arm for arm in arms if arm.results >= LEAST and not arm.is_dropped]
    if not known:
        return
    best = min(known, key=lambda arm: arm.mean)
    for arm in known:
        arm.is_dropped = arm.mean - best.mean > _ERRORS * math.sqrt(arm.error + best.error)
