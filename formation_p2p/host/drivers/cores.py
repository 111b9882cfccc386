"""Which cores tasks run on."""

from __future__ import annotations

import errno
import os
import socket
from collections import Counter
from collections.abc import Iterable
from typing import Self


class Cores:
    """How many tasks run on each core, so that two share one only when all are taken. One for all
    drivers of a process. Processes of one `name` on a machine tell each other which cores they use
    by a unix socket for each, in the abstract namespace: it leaves no file, and ends with them."""

    def __init__(self, cores: Iterable[int], name: str = "") -> None:
        self.tasks = Counter(dict.fromkeys(cores, 0))
        self._name = name
        self._used: dict[int, socket.socket] = {}

    @classmethod
    def of_this_process(cls) -> Self:
        return cls(os.sched_getaffinity(0), f"formation-cores-{os.getuid()}")

    def take(self, count: int) -> tuple[int, ...]:
        """The `count` least taken cores, or all where there are fewer. `give_back` them."""
        taken: list[int] = []
        others: list[int] = []
        for core in sorted(self.tasks, key=lambda core: (self.tasks[core], core)):
            if len(taken) < count:
                (taken if self._claim(core) else others).append(core)
        taken += others[: count - len(taken)]
        self.tasks.update(taken)
        return tuple(sorted(taken))

    def give_back(self, cores: Iterable[int]) -> None:
        self.tasks.subtract(cores)
        for core in cores:
            if not self.tasks[core] and core in self._used:
                self._used.pop(core).close()

    def _claim(self, core: int) -> bool:
        """False where another process uses it."""
        if not self._name or core in self._used:
            return True
        used = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            used.bind(f"\0{self._name}-{core}")
        except OSError as error:
            used.close()
            return error.errno != errno.EADDRINUSE
        self._used[core] = used
        return True
