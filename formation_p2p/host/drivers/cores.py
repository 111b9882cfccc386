"""Which cores a task runs on, so that two tasks share one only when all are taken."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable


class Cores:
    """How many tasks were put on each core. One for all drivers of a process."""

    def __init__(self, cores: Iterable[int]) -> None:
        self.tasks = Counter(dict.fromkeys(cores, 0))

    @classmethod
    def of_this_process(cls) -> Cores:
        return cls(os.sched_getaffinity(0))

    def take(self, count: int) -> tuple[int, ...]:
        """The `count` least taken cores, or all where there are fewer. `give_back` them."""
        taken = sorted(self.tasks, key=lambda core: (self.tasks[core], core))[:count]
        self.tasks.update(taken)
        return tuple(sorted(taken))

    def give_back(self, cores: Iterable[int]) -> None:
        self.tasks.subtract(cores)
