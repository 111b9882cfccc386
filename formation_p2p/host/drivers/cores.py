"""Which cores tasks run on."""

from __future__ import annotations

import errno
import os
import socket
from collections import Counter
from collections.abc import Iterable
from typing import Final, Self

# Tasks that a core is counted to have, over all processes of a machine: past it each process goes
# by its own. So many are slow wherever they run.
MAX_COUNTED: Final = 32


class Cores:
    """How many tasks run on each core, so that two share one only when all are taken, and three
    when all have two. One for all drivers of a process. Processes of one `name` on a machine tell
    each other which cores they use by a unix socket for each task and core, in the abstract
    namespace: it leaves no file, and ends with them."""

    def __init__(self, cores: Iterable[int], name: str = "") -> None:
        self.tasks = Counter(dict.fromkeys(cores, 0))
        self._name = name
        self._claims: dict[int, list[socket.socket | None]] = {core: [] for core in self.tasks}

    @classmethod
    def of_this_process(cls) -> Self:
        return cls(os.sched_getaffinity(0), f"formation-cores-{os.getuid()}")

    def take(self, count: int) -> tuple[int, ...]:
        """The `count` least taken cores, or all where there are fewer. `give_back` them."""
        taken: list[int] = []
        count = min(count, len(self.tasks))
        for others in range(MAX_COUNTED):
            if len(taken) == count:
                break
            # Better with a task of this process than with that of another one.
            for core in sorted(self.tasks, key=lambda core: (self.tasks[core] != others, core)):
                if len(taken) < count and core not in taken and self._claim(core, others):
                    taken.append(core)
        left = sorted(self.tasks.keys() - set(taken), key=lambda core: (self.tasks[core], core))
        for core in left[: count - len(taken)]:
            self._claims[core].append(None)
            taken.append(core)
        self.tasks.update(taken)
        return tuple(sorted(taken))

    def give_back(self, cores: Iterable[int]) -> None:
        for core in cores:
            self.tasks[core] -= 1
            if claim := self._claims[core].pop():
                claim.close()

    def _claim(self, core: int, others: int) -> bool:
        """As the next task on a core that has so many. False where that is taken."""
        if not self._name:
            return self._counted(core, others)
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0{self._name}-{core}-{others}")
        except OSError as error:
            claim.close()
            return error.errno != errno.EADDRINUSE and self._counted(core, others)
        self._claims[core].append(claim)
        return True

    def _counted(self, core: int, others: int) -> bool:
        """As `_claim`, by the tasks of this process alone."""
        if self.tasks[core] > others:
            return False
        self._claims[core].append(None)
        return True
