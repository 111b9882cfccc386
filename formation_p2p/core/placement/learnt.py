"""Which preset of `scored` is best for which kind of task, by the turnaround that each brought.

Off by default: `policy="scored(learnt)"` asks for it. Each job goes by one preset. Of a kind the
presets take turns until LEAST of its tasks have ended, since a few tell nothing; from then on the
one is taken whose turnaround may be the shortest, by its mean and how little is known of it. All
have the same gate of trust: what is learnt ranks the workers that pass it.

Turnarounds differ by orders of magnitude, and a few are very long: so their logarithms count.

Source: Auer, Cesa-Bianchi and Fischer, "Finite-time analysis of the multiarmed bandit problem",
2002, UCB1-normal's use of the measured spread; Kocsis and Szepesvári, 2006, for the constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from formation_p2p.core.placement.candidate import Candidate, TaskView
from formation_p2p.core.placement.policy import Policy, Score
from formation_p2p.core.placement.scored import PRESETS, Scored, scored_by
from formation_p2p.core.refusals import Distrusted

# Tasks of a kind that have ended before their turnarounds decide.
LEAST: Final = 200
# How much an arm of which little is known is favoured: of the spread of all.
_CURIOSITY: Final = 0.5
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
    """Of one preset: for how many tasks it was `chosen`, and of those that `ended` the sums of the
    logarithms of their turnarounds."""

    chosen: int = 0
    ended: int = 0
    log_sum: float = 0.0
    square_sum: float = 0.0

    @property
    def mean(self) -> float:
        return self.log_sum / self.ended


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
        return Learnt(preset, self.told(kind))

    def took(self, kind: str, preset: str, turnaround_s: float) -> None:
        """A task of this kind has brought its result so long after its submission."""
        arm = self._kinds.get(kind, {}).get(preset)
        if arm is not None:
            log = math.log(max(turnaround_s, _SHORTEST_S))
            arm.ended += 1
            arm.log_sum += log
            arm.square_sum += log * log

    def best(self, kind: str) -> str:
        arms = self._kinds.get(kind)
        if arms is None:
            return _DEFAULT
        ended = sum(arm.ended for arm in arms.values())
        if ended < LEAST or not all(arm.ended for arm in arms.values()):
            return min(arms, key=lambda name: arms[name].chosen)
        mean = sum(arm.log_sum for arm in arms.values()) / ended
        square = sum(arm.square_sum for arm in arms.values()) / ended
        spread = math.sqrt(max(square - mean * mean, 0.0))
        doubt = _CURIOSITY * spread * math.sqrt(2 * math.log(ended))
        return min(arms, key=lambda name: arms[name].mean - doubt / math.sqrt(arms[name].ended))

    def explained(self) -> Learnt:
        """What is known of the kinds that came last, for people."""
        kinds = [*self._kinds][-_EXPLAINED:]
        told = "; ".join(map(self.told, kinds)) or "nothing yet"
        return Learnt(self.best(kinds[-1]) if kinds else _DEFAULT, told)

    def told(self, kind: str) -> str:
        """What is known of a kind, for people."""
        arms = self._kinds.get(kind, {})
        ended = sum(arm.ended for arm in arms.values())
        means = (
            f"{name} {math.exp(arm.mean):.3g} s in {arm.ended}" if arm.ended else f"{name} unknown"
            for name, arm in (arms or {name: Arm() for name in PRESETS}).items()
        )
        how = "learning" if ended < LEAST else "learnt"
        return f"{self.best(kind)}, {how} of {kind or 'tasks'}: {', '.join(means)}"
