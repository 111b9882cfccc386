"""The groups of a scheduler, and the loop that does for one all that can be done now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from formation_p2p.core.discovery.finder import FindId
from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.dispatch.attempts import Attempts
from formation_p2p.core.dispatch.jobs import Jobs
from formation_p2p.core.dispatch.leasing import Leasing
from formation_p2p.core.dispatch.parameters import DispatchParameters
from formation_p2p.core.dispatch.placement_decider import PlacementDecider
from formation_p2p.core.dispatch.task_group import TaskGroup
from formation_p2p.core.dispatch.task_run import JobRun, TaskRun
from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import ensure
from formation_p2p.core.negotiation.held_lease import LeaseKey
from formation_p2p.core.negotiation.round import RoundId
from formation_p2p.core.placement.scheduling_key import SchedulingKey
from formation_p2p.core.resources.requirements import Requirements


class Groups:
    """A group lasts for as long as tasks of it wait or run, a round of it is open, or a lease of it
    is held."""

    def __init__(
        self,
        jobs: Jobs,
        decider: PlacementDecider,
        leasing: Leasing,
        attempts: Attempts,
        parameters: DispatchParameters,
    ) -> None:
        self._jobs = jobs
        self._decider = decider
        self._leasing = leasing
        self._attempts = attempts
        self._parameters = parameters
        self._groups: dict[SchedulingKey, TaskGroup] = {}

    def __iter__(self) -> Iterator[TaskGroup]:
        return iter(list(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    def named(self, key: SchedulingKey) -> TaskGroup | None:
        return self._groups.get(key)

    def of_find(self, find: FindId) -> TaskGroup | None:
        return next((g for g in self._groups.values() if g.acquisition.find == find), None)

    def of_round(self, asked: RoundId) -> TaskGroup:
        return next(g for g in self._groups.values() if g.acquisition.round == asked)

    def holding(self, key: LeaseKey) -> tuple[TaskGroup, ActiveLease] | None:
        """The lease of this name, and the group that holds it."""
        return next(((g, g.leases[key]) for g in self._groups.values() if key in g.leases), None)

    def of(self, key: SchedulingKey) -> TaskGroup:
        """The group of tasks with this key, from now on."""
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = TaskGroup(key, self._parameters)
        return group

    def of_task(self, run: TaskRun) -> TaskGroup:
        return self.of(run.scheduling_key)

    def queue(self, runs: Iterable[TaskRun]) -> list[TaskGroup]:
        """Have tasks wait for workers. Returns their groups."""
        touched: dict[tuple[JobRun, Requirements], TaskGroup] = {}
        for run in runs:
            key = (run.job, run.task.needs)
            group = touched.get(key)
            if group is None:
                group = touched[key] = self.of_task(run)
            group.queues.wait(run)
        return list(dict.fromkeys(touched.values()))

    def clear(self) -> None:
        self._groups.clear()

    def next_wake_s(self) -> float:
        return min((group.wake_s for group in self._groups.values()), default=float("inf"))

    def pump(self, group: TaskGroup, now: Moment, cause: str) -> None:
        """Do all that can be done for a group now. Called after everything that touches it."""
        group.awake()
        group.candidates.forget_expired(now)
        self._decider.review(group, now)
        if group.candidates.barred:
            self._leasing.release_barred(group, cause)
        self._attempts.fill(group, 1, 0, now, cause)
        head = group.queues.first()
        if head is not None:
            # Tasks are left over for the leases that may yet come.
            coming = self._seek(group, head, now, cause)
            self._attempts.fill(group, 0, coming, now, cause)
        if not group.queues.waiting:
            kept = self._attempts.rebalance(group, now, cause)
            self._leasing.linger(group, kept, now, cause)
            self._forget_idle(group)

    def _seek(self, group: TaskGroup, head: TaskRun, now: Moment, cause: str) -> int:
        """Go for more leases. Returns how many may yet come of what is in flight."""
        if group.acquisition.is_open:
            return max(1, len(group.acquisition.committing))
        self._make_room(group, cause)
        coming = self._leasing.seek(group, head, now, cause)
        if not coming and self._leasing.is_hopeless(group):
            reasons = group.candidates.reasons()
            for run in group.queues.drain():
                self._jobs.unplaceable(run, reasons)
        return coming

    def _make_room(self, group: TaskGroup, cause: str) -> None:
        """Leases that are kept warm for other kinds of tasks may be in the way."""
        for other in self:
            if other is not group:
                self._leasing.release_idle(other, cause)
                self._forget_idle(other)

    def _forget_idle(self, group: TaskGroup) -> None:
        if group.is_idle:
            self._groups.pop(group.key, None)

    def validate(self) -> None:
        """Raises InvariantBroken."""
        for key, group in self._groups.items():
            ensure(key == group.key, "a group is kept under another key")
            ensure(not group.is_idle, "a group is kept without need")
            group.validate()
