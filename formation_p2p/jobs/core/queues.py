"""The tasks of a group that wait, and the worker that each waits for."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Final

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import ensure
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.candidates import Candidates
from formation_p2p.jobs.core.task_run import JobRun, TaskRun, TaskState

# Of each queue, by `validate`: its tasks were routed together, so that a few stand for all.
ROUTES_CHECKED: Final = 16


class Queues:
    def __init__(self, candidates: Candidates, max_steal_scan: int) -> None:
        self._candidates = candidates
        self._max_steal_scan = max_steal_scan
        self._queues: dict[PeerId | None, deque[TaskRun]] = {}
        self._again: deque[TaskRun] = deque()  # for the worker that is free next

    def wait(self, run: TaskRun, *, first: bool = False) -> None:
        """In the queue of the worker that it waits for; or, where it was placed before, ahead of
        all of them: that worker may be the one that was lost."""
        if first:
            self._again.appendleft(run)
        else:
            self._queues.setdefault(self._candidates.home(run), deque()).append(run)

    @property
    def waiting(self) -> int:
        return len(self._again) + sum(len(queue) for queue in self._queues.values())

    @property
    def is_ready(self) -> bool:
        """Whether a task waits that could be placed now."""
        queues = (self._again, *self._queues.values())
        return any(not run.is_awaiting for queue in queues for run in queue)

    def lengths(self) -> dict[PeerId, int]:
        """How many tasks wait for each worker, as far as they wait for a certain one."""
        queues = self._queues.items()
        return {home: len(queue) for home, queue in queues if home is not None and queue}

    def first(self) -> TaskRun | None:
        """The task that has waited longest in its queue."""
        return next((queue[0] for queue in (self._again, *self._queues.values()) if queue), None)

    def jobs(self) -> list[JobRun]:
        """Of which tasks wait, each once."""
        queues = (self._again, *self._queues.values())
        return list(dict.fromkeys(run.job for queue in queues for run in queue))

    def take_back(self, job: JobRun, task_ids: Collection[str]) -> list[TaskRun]:
        """Take out those of these tasks of a job that wait. The others keep their places."""
        removed: list[TaskRun] = []
        for queue in (self._again, *self._queues.values()):
            for run in [queue.popleft() for _ in range(len(queue))]:
                is_taken = run.job is job and run.task.task_id in task_ids
                (removed if is_taken else queue).append(run)
        return removed

    def drain(self, job: JobRun | None = None) -> list[TaskRun]:
        """Take out every task that waits, or those of one job."""
        again, self._again = self._again, deque()
        runs = [run for queue in self._queues.values() for run in queue]
        self._queues.clear()
        drained = [run for run in (*again, *runs) if job is None or run.job is job]
        if job is not None:
            self._again.extend(run for run in again if run.job is not job)
            for run in runs:
                if run.job is not job:
                    self.wait(run)
        return drained

    def bind_again(self, job: JobRun) -> None:
        """Files that tasks of this job read were lost, or made again: those that wait for them to
        be made wait here no more."""
        for run in self.drain(job):
            if run.bind():
                self.wait(run)

    def reroute(self) -> None:
        """The candidates have changed: tasks may wait for other workers now."""
        again, self._again = self._again, deque()
        for run in self.drain():
            self.wait(run)
        self._again = again

    def take(
        self, worker: PeerId, count: int, fits: Callable[[TaskRun], bool], now: Moment
    ) -> Iterator[tuple[TaskRun, bool]]:
        """Up to `count` waiting tasks that a free worker should take: of those that were placed
        before, then of its own queue, then of the longest other ones; of each as far as they fit,
        which is asked when the one before has been placed. With each, whether it waited for this
        worker. A task is not taken back by a worker that failed it while another is left.
        """
        others = [q for home, q in self._queues.items() if home != worker]
        others.sort(key=len, reverse=True)
        own = self._queues.get(worker, deque())
        candidates, max_steal_scan = self._candidates, self._max_steal_scan
        for queue in (self._again, own, *others):
            passed: list[TaskRun] = []
            while queue and count and len(passed) < max_steal_scan and fits(queue[0]):
                run = queue.popleft()
                if run.avoids(worker) and candidates.could_elsewhere(run, now):
                    passed.append(run)
                else:
                    count -= 1
                    yield run, queue is own or candidates.home(run) == worker
            queue.extendleft(reversed(passed))

    def validate(self) -> None:
        """Raises InvariantBroken."""
        queued = [run for queue in (self._again, *self._queues.values()) for run in queue]
        ensure(len(set(queued)) == len(queued), "a task waits twice")
        ensure(all(x.state is TaskState.WAITING for x in queued), "a queued task does not wait")
        routed = (
            home == self._candidates.home(run)
            for home, queue in self._queues.items()
            for run in itertools.islice(queue, ROUTES_CHECKED)
        )
        ensure(all(routed), "a task is misrouted: it waits for another worker")
