"""This node's experience with one peer that did work for it, and how that fades.

Nothing is touched for it to fade. Instead, what comes later counts for more: twice as much one
half-life on, and in a straight line up to there; from one half-life to the next all that was
counted is halved. So an experience counts exactly half as much as one made a half-life later, and
events that come in another order come to the same. Integers alone: every machine agrees.

Source: Cormode, Shkapenyuk, Srivastava and Xu, "Forward decay", ICDE 2009, for the idea.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

# A machine is mended, or worn, in days; so it is tried again, or doubted again, after a week.
HALF_LIFE_S: Final = 7 * 24 * 3600
_TICKS: Final = 1024
# How many experiences are remembered of a peer; further ones displace the older in proportion. Of
# 64 results the share of good ones is known to within six points, and a worker that turns bad
# after a million good ones is found out as fast as one that turns bad after a hundred.
MEMORY: Final = 64
# Half of all that is remembered: a peer that is wrong now and then does not stay trusted, and one
# false result counts more than the errors that any honest machine makes.
WRONG_WEIGHT: Final = 32
# A machine that goes away takes with it all that ran there: within so long that is one loss.
LOST_TOGETHER_S: Final = 60
# Half-lives: a month, after which four are left of 64 experiences. Dates that are further apart
# than that may be the clock's fault.
APART: Final = 4


class Experience(StrEnum):
    """How an attempt went, as far as the worker had to do with it. That a task's own code failed
    says nothing of the worker."""

    SUCCESS = "success"  # it brought a result
    AGREED = "agreed"  # its result was the same as that of another worker
    ERROR = "error"  # its machine could not run the task
    LOST = "lost"  # it fell silent, or left, while the task ran there
    WRONG = "wrong"  # its result proved to be false


class Age(NamedTuple):
    """A moment as experience counts it: the half-life it falls into, and what one experience of
    this moment counts."""

    epoch: int
    unit: int


def age_of(unix_s: float) -> Age:
    """Before 1970 it is 1970: what is negative is taken for damage where it is kept."""
    now_s = max(int(unix_s), 0)
    return Age(now_s // HALF_LIFE_S, _unit_of(now_s))


def _unit_of(unix_s: int) -> int:
    return _TICKS + unix_s * _TICKS // HALF_LIFE_S % _TICKS


@dataclass(slots=True)
class PeerHistory:
    """Of one peer: `good` and `bad` as they counted at `seen_unix_s`, how often each kind of
    experience was had in all, and when the last loss that counted.

    A clock can be years ahead or behind without a sign. So what is dated APART from
    all before is counted by itself, from `began_unix_s` on, and what was before stays as it is, in
    `other_…`; where that is of a later date, it counts as if it were of then. Once dates go on from
    the other part it was the clock that was wrong: what came in between joins it.

    `agreed` counts results that were the same as another worker's, since the last wrong one.
    """

    good: int = 0
    bad: int = 0
    began_unix_s: int = 0
    seen_unix_s: int = 0
    other_good: int = 0
    other_bad: int = 0
    other_unix_s: int = 0
    successes: int = 0
    errors: int = 0
    lost: int = 0
    wrong: int = 0
    lost_unix_s: int = 0
    agreed: int = 0

    def add(self, experience: Experience, age: Age, unix_s: float) -> None:
        now_s = max(int(unix_s), 0)
        if _is_apart(self.seen_unix_s, age):
            self._turn_over(age, now_s)
        if now_s < self.seen_unix_s:
            age = age_of(self.seen_unix_s)
        good, bad = _aged(self.good, self.bad, self.seen_unix_s, age)
        self.seen_unix_s = max(now_s, self.seen_unix_s)
        if experience is Experience.SUCCESS or experience is Experience.AGREED:
            self.successes += 1
            self.agreed += experience is Experience.AGREED
            good += age.unit
        elif experience is Experience.ERROR:
            self.errors += 1
            bad += age.unit
        elif experience is Experience.LOST:
            self.lost += 1
            if not 0 <= now_s - self.lost_unix_s < LOST_TOGETHER_S:
                self.lost_unix_s = now_s
                bad += age.unit
        else:
            self.wrong += 1
            self.agreed = 0
            bad += WRONG_WEIGHT * age.unit
        self.good, self.bad = _remembered(good, bad, age)

    def aged(self, age: Age) -> tuple[int, int]:
        """Good and bad, as they count now. A clock that was put back ages nothing."""
        good, bad = _aged(self.good, self.bad, self.seen_unix_s, age)
        if not self.other_good and not self.other_bad:
            return good, bad
        other = self.other_good, self.other_bad, self.other_unix_s
        if self._goes_on_from_other(age):
            good, bad = _redated(self.good, self.bad, self.seen_unix_s, age)
        elif self.other_unix_s > self.began_unix_s:
            began = age_of(self.began_unix_s)
            other = *_redated(*other, began), self.began_unix_s
        other_good, other_bad = _aged(*other, age)
        return _remembered(good + other_good, bad + other_bad, age)

    def _goes_on_from_other(self, age: Age) -> bool:
        return (
            (self.other_good or self.other_bad) > 0
            and _is_apart(self.seen_unix_s, age)
            and not _is_apart(self.other_unix_s, age)
        )

    def _turn_over(self, age: Age, now_s: int) -> None:
        if self._goes_on_from_other(age):
            seen_unix_s = max(now_s, self.other_unix_s)
            self.good, self.bad = self.aged(age_of(seen_unix_s))
            self.seen_unix_s = seen_unix_s
            self.other_good = self.other_bad = 0
        else:
            self.other_good, self.other_bad = self.good, self.bad
            self.other_unix_s, self.began_unix_s = self.seen_unix_s, now_s
            self.good = self.bad = self.seen_unix_s = 0


def _is_apart(unix_s: int, age: Age) -> bool:
    return not -APART <= unix_s // HALF_LIFE_S - age.epoch <= APART


def _aged(good: int, bad: int, unix_s: int, age: Age) -> tuple[int, int]:
    """What counted so at a time, as it counts now. A clock that was put back ages nothing."""
    past = age.epoch - unix_s // HALF_LIFE_S
    if past > 0 or (past == 0 and age.unit >= _unit_of(unix_s)):
        return good >> past, bad >> past
    return _redated(good, bad, unix_s, age)


def _redated(good: int, bad: int, unix_s: int, age: Age) -> tuple[int, int]:
    """What counted so at a time, as if it were of now."""
    unit = _unit_of(unix_s)
    return good * age.unit // unit, bad * age.unit // unit


def _remembered(good: int, bad: int, age: Age) -> tuple[int, int]:
    most = MEMORY * age.unit
    if good + bad <= most:
        return good, bad
    good = good * most // (good + bad)
    return good, most - good
