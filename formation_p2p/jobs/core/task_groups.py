"""The groups of tasks in progress, by scheduling key.

A group is kept for as long as tasks of it wait or run, a round of it is open, or a lease of it is
held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from formation_p2p.core.errors import ensure
from formation_p2p.jobs.core.active_lease import ActiveLease
from formation_p2p.jobs.core.jobs import Jobs
from formation_p2p.jobs.core.parameters import DispatchParameters
from formation_p2p.jobs.core.quorum_elections import Jury
from formation_p2p.jobs.core.task_group import TaskGroup
from formation_p2p.jobs.core.task_run import TaskRun
from formation_p2p.leases.core.held_lease import LeaseKey
from formation_p2p.placement.core.task_options import SchedulingKey


class TaskGroups:
    """Other modules read `by_key`, and change nothing there."""

    def __init__(self, jobs: Jobs, jury: Jury, parameters: DispatchParameters) -> None:
        self.by_key: dict[SchedulingKey, TaskGroup] = {}
        self._jobs = jobs
        self._draw = jury.rng, jury.marks
        self._parameters = parameters

    def __iter__(self) -> Iterator[TaskGroup]:
        """As they are now: what is done to one may end others."""
        return iter(list(self.by_key.values()))

    def of(self, key: SchedulingKey) -> TaskGroup:
        """The group of tasks with this key, from now on."""
        if key not in self.by_key:
            self.by_key[key] = TaskGroup(key, self._parameters, self._draw)
        return self.by_key[key]

    def of_lease(self, key: LeaseKey) -> TaskGroup | None:
        return next((group for group in self.by_key.values() if key in group.leases), None)

    def leases(self) -> Iterator[ActiveLease]:
        return (active for group in self.by_key.values() for active in group.leases.values())

    def queue(self, runs: Iterable[TaskRun]) -> list[TaskGroup]:
        """Have tasks wait for workers. Returns their groups."""
        touched: dict[TaskGroup, None] = {}
        last: TaskRun | None = None
        for run in runs:
            # Most have the very needs of the one before. To look them up costs more than the rest.
            if last is None or not last.goes_with(run):
                group = self.of(run.scheduling_key)
                touched[group] = None
            last = run
            group.queues.wait(run)
        return list(touched)

    def bind_again(self) -> list[TaskGroup]:
        """As `Queues.bind_again`, in all groups: these, where there is a reason."""
        jobs = self._jobs.take_unbound()
        groups = list(self.by_key.values()) if jobs else []
        for group in groups:
            for job in jobs:
                group.queues.bind_again(job)
        return groups

    def forget(self, group: TaskGroup) -> None:
        """It has ended."""
        self.by_key.pop(group.key, None)

    def forget_idle(self, group: TaskGroup) -> None:
        if group.is_idle:
            self.forget(group)

    def validate(self) -> None:
        """Raises InvariantBroken."""
        for key, group in self.by_key.items():
            ensure(key == group.key, "a group is kept under another key")
            ensure(not group.is_idle, "a group is kept without need")
            group.validate()
