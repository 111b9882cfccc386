"""Rounds of data-parallel work on members of different speed: all end at about the same time.

In a round the members do batches, each of its own size, until as many samples are done together as
the round is to have. None waits for the slowest: it is foreseen, from the paces so far, how many
batches each will do until then, and a member that has done its share sends its update. So train
those that exchange rarely (Douillard et al., "DiLoCo", 2023).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import check_amount

# Which member has which slice of the data next, round after round.
#
# A member keeps the slices that it had: its machine has their data. One that has done all of its
# own takes one over from the member with most left in this round, and keeps it from then on
# (Blumofe and Leiserson, "Scheduling multithreaded computations by work stealing", 1999: the thief
# takes from the other end than the owner does).

# As many as tasks of one job: a slice is a call.
MAX_SLICES: Final = 100_000


class Slices:
    """Slices are numbered from 0. In a round each is given out once; the next round begins with the
    first `take` after that. `rounds` counts those that are over. Raises InvalidInput."""

    def __init__(self, count: int) -> None:
        check_amount("slices", count, 1, MAX_SLICES)
        self.rounds = 0
        # What each rank has had, in order, and what of it is left in this round.
        self._had: dict[int, dict[int, None]] = {}
        self._left: dict[int, dict[int, None]] = {}
        # Of no member: not given out yet in this round, or done in it by one that is gone.
        self._free = dict.fromkeys(range(count))
        self._orphaned: dict[int, None] = {}

    @property
    def left(self) -> int:
        """How many are not given out in this round."""
        return len(self._free) + sum(map(len, self._left.values()))

    def take(self, rank: int) -> int:
        """The next slice of a rank: of its own, else of none, else of another's."""
        if self.left == 0:
            self._left = {each: dict(had) for each, had in self._had.items()}
            self._free, self._orphaned = self._orphaned, {}
            self.rounds += 1
        own = self._left.setdefault(rank, {})
        if own:
            index = next(iter(own))
            del own[index]
            return index
        if self._free:
            index = next(iter(self._free))
            del self._free[index]
        else:
            victim = max(self._left, key=lambda each: (len(self._left[each]), -each))
            index, _ = self._left[victim].popitem()
            del self._had[victim][index]
        self._had.setdefault(rank, {})[index] = None
        return index

    def leave(self, rank: int, undone: int | None = None) -> None:
        """The member has gone. What it had is free: what it has not done, as `undone`, in this
        round."""
        left = self._left.pop(rank, {})
        if undone is not None:
            left[undone] = None
        self._free.update(left)
        self._orphaned.update((x, None) for x in self._had.pop(rank, {}) if x not in left)


@dataclass(slots=True)
class RunningMean:
    """The mean of all samples, in whole units; None before the first."""

    count: int = 0
    total: int = 0

    def add(self, sample: int) -> None:
        self.count += 1
        self.total += sample

    @property
    def value(self) -> int | None:
        return self.total // self.count if self.count else None


class Paces:
    """By rank. What a member that has gone had measured goes with it: the one in its place may be
    another machine."""

    def __init__(self) -> None:
        self._means: dict[int, RunningMean] = {}
        self._last_ms: dict[int, int] = {}

    def begin(self, rank: int, now_ms: int) -> None:
        """It is at work from now on."""
        self._last_ms[rank] = now_ms

    def reported(self, rank: int, now_ms: int) -> None:
        """Progress: one sample is the time since the last report, or since it began."""
        if rank in self._last_ms:
            self._means.setdefault(rank, RunningMean()).add(now_ms - self._last_ms[rank])
        self._last_ms[rank] = now_ms

    def forget(self, rank: int) -> None:
        self._means.pop(rank, None)
        self._last_ms.pop(rank, None)

    def mean_ms(self, rank: int) -> int | None:
        """None while it is not known."""
        mean = self._means.get(rank)
        return None if mean is None else mean.value

    def since_ms(self, rank: int, now_ms: int) -> int:
        """Since its last report."""
        return now_ms - self._last_ms.get(rank, now_ms)

    def __len__(self) -> int:
        return len(self._last_ms)


MAX_SAMPLES: Final = 1 << 40
MAX_ROUNDS: Final = 1_000_000
# How far ahead is foreseen: paces change, and what a member was told stays.
TIME_CAP_MS: Final = 10_000
STEPS_CAP: Final = 3


def batch_size(memory: int, sample: int, most: int) -> int:
    """How many samples a member of so much memory does at once, both in the same unit. Raises
    InvalidInput where not even one fits."""
    check_amount("sample", sample, 1, MAX_SAMPLES)
    size = min(memory // sample, most)
    if size < 1:
        problem = f"one needs {sample}, and the member has {memory}"
        raise InvalidInput("batch", f"{problem}; ask for more memory, or make samples smaller")
    return size


@dataclass(frozen=True, slots=True)
class Runner:
    """A member at work: the samples of one batch, how long it takes, and since when it is at the
    present one. None for `batch_ms` where that is not known. It stops after `most` batches."""

    samples: int
    batch_ms: int | None
    since_ms: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    """`left` of the samples after `after_ms`, with so many `batches` by each member. `is_capped`
    where the caps ended it before none was left."""

    after_ms: int
    left: int
    batches: tuple[int, ...]
    is_capped: bool


def foresee(
    runners: Sequence[Runner],
    target: int,
    time_cap_ms: int = TIME_CAP_MS,
    steps_cap: int = STEPS_CAP,
) -> Forecast:
    """Until `target` samples are done, `time_cap_ms` has passed or one member has done `steps_cap`
    batches. What ends at the same time counts together."""
    due = [
        (max(each.batch_ms - each.since_ms, 0), place)
        for place, each in enumerate(runners)
        if each.batch_ms is not None and each.most != 0
    ]
    heapq.heapify(due)
    batches = [0] * len(runners)
    left, after_ms = target, 0
    while due and left > 0 and due[0][0] <= time_cap_ms:
        if due[0][0] > after_ms and max(batches) >= steps_cap:
            break
        after_ms, place = heapq.heappop(due)
        runner = runners[place]
        batches[place] += 1
        left -= runner.samples
        if runner.batch_ms is not None and batches[place] != runner.most:
            heapq.heappush(due, (after_ms + max(runner.batch_ms, 1), place))
    return Forecast(after_ms, left, tuple(batches), left > 0)


@dataclass(frozen=True, slots=True)
class GoOn:
    """Do the next batch."""


@dataclass(frozen=True, slots=True)
class UpdateAfter:
    """Do so many batches more, and send the update then; at once for 0."""

    batches: int


Answer = GoOn | UpdateAfter


class Rounds:
    """`samples` are those of a batch of each member, by rank; `target` those of a round. What a
    member does is told by `progressed`, its update by `updated`. Raises InvalidInput."""

    def __init__(
        self,
        samples: Mapping[int, int],
        target: int,
        rounds: int,
        now_ms: int,
        time_cap_ms: int = TIME_CAP_MS,
        steps_cap: int = STEPS_CAP,
    ) -> None:
        check_amount("target", target, 1, MAX_SAMPLES)
        check_amount("rounds", rounds, 1, MAX_ROUNDS)
        if not samples:
            raise InvalidInput("members", "there are none; a round needs one that works")
        for size in samples.values():
            check_amount("batch", size, 1, MAX_SAMPLES)
        self.target = target
        self.rounds = rounds
        self.round = 0
        self.paces = Paces()
        self._samples = dict(samples)
        self._time_cap_ms = time_cap_ms
        self._steps_cap = steps_cap
        # How many batches each that was told so has left, and whose update has come.
        self._told: dict[int, int] = {}
        self._done = dict.fromkeys(samples, 0)
        self._updated: set[int] = set()
        for rank in samples:
            self.paces.begin(rank, now_ms)

    @property
    def is_over(self) -> bool:
        return self.round >= self.rounds

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self._samples))

    @property
    def left(self) -> int:
        """Samples that this round still lacks; below zero where it has more."""
        return self.target - sum(self._done.values())

    def progressed(self, rank: int, now_ms: int) -> Answer:
        """The member has done a batch. What it is to do next; what it was told before stays."""
        self.paces.reported(rank, now_ms)
        self._done[rank] += self._samples[rank]
        if rank in self._told:
            self._told[rank] = max(self._told[rank] - 1, 0)
            return GoOn()
        runners = [
            Runner(
                self._samples[each],
                self.paces.mean_ms(each),
                self.paces.since_ms(each, now_ms),
                self._told.get(each),
            )
            for each in self.ranks
        ]
        forecast = foresee(runners, self.left, self._time_cap_ms, self._steps_cap)
        if forecast.is_capped:
            return GoOn()
        self._told[rank] = forecast.batches[self.ranks.index(rank)]
        return UpdateAfter(self._told[rank])

    def updated(self, rank: int, now_ms: int) -> bool:
        """The member has sent its update of this round. Whether all have, and the next begins."""
        self._updated.add(rank)
        return self._next_round(now_ms)

    def lost(self, rank: int, now_ms: int) -> bool:
        """The member is gone, and what it did in this round with it, as far as its update has not
        come. Whether all others have sent theirs."""
        self._samples.pop(rank, None)
        self._told.pop(rank, None)
        if rank not in self._updated:
            self._done.pop(rank, None)
        self._updated.discard(rank)
        self.paces.forget(rank)
        return bool(self._samples) and self._next_round(now_ms)

    def joined(self, rank: int, samples: int, now_ms: int) -> None:
        """A member works along, in this round already."""
        check_amount("batch", samples, 1, MAX_SAMPLES)
        self._samples[rank] = samples
        self._done.setdefault(rank, 0)
        self.paces.begin(rank, now_ms)

    def _next_round(self, now_ms: int) -> bool:
        if not self._updated.issuperset(self._samples):
            return False
        self.round += 1
        self._done = dict.fromkeys(self._samples, 0)
        self._told.clear()
        self._updated.clear()
        for rank in self._samples:
            self.paces.begin(rank, now_ms)
        return True
