"""Which member has which slice of the data next, round after round.

A member keeps the slices that it had: its machine has their data. One that has done all of its own
takes one over from the member with most left in this round, and keeps it from then on (Blumofe and
Leiserson, "Scheduling multithreaded computations by work stealing", 1999: the thief takes from the
other end than the owner does).
"""

from __future__ import annotations

from typing import Final

from formation_p2p.machine.core.bounds import check_amount

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
