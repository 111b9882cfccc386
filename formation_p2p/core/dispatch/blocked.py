"""The tasks of a job that wait until others of it have succeeded."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from formation_p2p.core.dispatch.task_run import TaskRun


class Blocked:
    """Each pair of a task and one that it waits for is looked at once, when that one has ended."""

    def __init__(self) -> None:
        self._runs: dict[str, TaskRun] = {}
        self._left: dict[str, int] = {}  # for how many others each of them waits
        self._followers: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: TaskRun, before: Collection[str]) -> None:
        """A task, and those that it waits for: each once, and not yet ended."""
        task_id = run.task.task_id
        self._runs[task_id] = run
        self._left[task_id] = len(before)
        for each in before:
            self._followers.setdefault(each, []).append(task_id)

    def succeeded(self, task_id: str) -> list[TaskRun]:
        """Those that wait for nothing any more, now that this one has succeeded."""
        ready: list[TaskRun] = []
        for follower in self._followers.pop(task_id, ()):
            self._left[follower] -= 1
            # One that fell with another still waits for that one.
            if self._left[follower] == 0:
                ready.append(self._runs.pop(follower))
        return ready

    def fell(self, task_id: str) -> list[TaskRun]:
        """Those that will never run, now that this one brought no result: who waits for it, who
        waits for these, and so on."""
        fallen: list[TaskRun] = []
        ended = [task_id]
        for each in ended:  # which grows on the way
            for follower in self._followers.pop(each, ()):
                run = self._runs.pop(follower, None)
                if run is not None:  # else it fell with another one
                    fallen.append(run)
                    ended.append(follower)
        return fallen

    def drain(self) -> list[TaskRun]:
        """All of them: none waits here any more."""
        runs = list(self._runs.values())
        for table in (self._runs, self._left, self._followers):
            table.clear()
        return runs
