"""What this node has learnt of one peer by having it do work, and how that fades.

Nothing is touched for it to fade. Instead, what comes later counts for more: twice as much one
half-life on, and in a straight line up to there; from one half-life to the next all that was
counted is halved. So an experience counts exactly half as much as one made a half-life later, and
events that come in another order come to the same. Integers alone: every machine agrees.

Source: Cormode, Shkapenyuk, Srivastava and Xu, "Forward decay", ICDE 2009, for the idea.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from operator import attrgetter
from typing import Final, NamedTuple

# A machine is mended, or worn, in days; so it is tried again, or doubted again, after a week.
HALF_LIFE_S: Final = 7 * 24 * 3600
_TICKS: Final = 1024
# How many experiences are remembered of a peer; further ones displace the older in proportion. Of
# 64 results the share of good ones is known to within six points, and a worker that turns bad
# after a million good ones is found out as fast as one that turns bad after a hundred.
MEMORY: Final = 64
# Half of all that is remembered: nobody stays trusted who is wrong now and then, and one false
# result counts more than the errors that any honest machine makes.
WRONG_WEIGHT: Final = 32
# A machine that goes away takes with it all that ran there: within so long that is one loss.
LOST_TOGETHER_S: Final = 60


class Experience(StrEnum):
    """How an attempt went, as far as the worker had to do with it. That a task's own code failed
    says nothing of the worker."""

    SUCCESS = "success"  # it brought a result
    ERROR = "error"  # its machine could not run the task
    LOST = "lost"  # it fell silent, or left, while the task ran there
    WRONG = "wrong"  # its result proved to be false


_WEIGHTS: Final = {
    Experience.ERROR: 1,
    Experience.LOST: 1,
    Experience.WRONG: WRONG_WEIGHT,
}


class Age(NamedTuple):
    """A moment as experience counts it: the half-life it falls into, and what one experience of
    this moment counts."""

    epoch: int
    unit: int


def age_of(unix_s: float) -> Age:
    epoch, tick = divmod(int(unix_s) * _TICKS // HALF_LIFE_S, _TICKS)
    return Age(epoch, _TICKS + tick)


@dataclass(slots=True)
class Account:
    """Of one peer: `good` and `bad` as they counted in the half-life `epoch`, how often each
    kind of experience was had in all, when the last, and when the last loss."""

    good: int = 0
    bad: int = 0
    epoch: int = 0
    successes: int = 0
    errors: int = 0
    lost: int = 0
    wrong: int = 0
    seen_unix_s: int = 0
    lost_unix_s: int = 0

    def add(self, experience: Experience, age: Age, unix_s: float) -> None:
        good, bad = self.aged(age)
        self.seen_unix_s = int(unix_s)
        if experience is Experience.SUCCESS:
            self.successes += 1
            good += age.unit
        else:
            if experience is Experience.ERROR:
                self.errors += 1
            elif experience is Experience.LOST:
                self.lost += 1
                together = 0 <= unix_s - self.lost_unix_s < LOST_TOGETHER_S
                self.lost_unix_s = self.seen_unix_s
                if together:
                    return
            else:
                self.wrong += 1
            bad += _WEIGHTS[experience] * age.unit
        most = MEMORY * age.unit
        if good + bad > most:
            good = good * most // (good + bad)
            bad = most - good
        self.good, self.bad, self.epoch = good, bad, age.epoch

    def copy(self) -> Account:
        return Account(*_FIELDS(self))

    def aged(self, age: Age) -> tuple[int, int]:
        """Good and bad, as they count now. A clock that was put back ages nothing."""
        past = age.epoch - self.epoch
        return (self.good >> past, self.bad >> past) if past > 0 else (self.good, self.bad)


_FIELDS: Final = attrgetter(*(field.name for field in fields(Account)))
