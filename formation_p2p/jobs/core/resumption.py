"""Jobs and leases of an earlier incarnation of this node go on.

What was in flight waits for its worker's answer: that it is still there, with the results so far,
or that it is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from formation_p2p.core.effects import Moment
from formation_p2p.jobs.core.jobs import Jobs
from formation_p2p.jobs.core.leasing import Leasing
from formation_p2p.jobs.core.pump import Pump
from formation_p2p.jobs.core.rebalancer import Rebalancer
from formation_p2p.jobs.core.saved import SavedJob, SavedLease, revive
from formation_p2p.jobs.core.task_groups import TaskGroups
from formation_p2p.jobs.core.task_run import TaskRun, TaskState
from formation_p2p.placement.core.task_options import SchedulingKey


class Resumption:
    """All parts are the scheduler's own."""

    def __init__(
        self, jobs: Jobs, groups: TaskGroups, leasing: Leasing, pump: Pump, rebalancer: Rebalancer
    ) -> None:
        self._jobs = jobs
        self._groups = groups
        self._leasing = leasing
        self._pump = pump
        self._rebalancer = rebalancer

    def resume(
        self, jobs: Iterable[SavedJob], leases: Iterable[SavedLease], incarnation: str, now: Moment
    ) -> None:
        """As Scheduler.resume."""
        runs: dict[str, TaskRun] = {}
        for saved in jobs:
            job = self._jobs.begin(saved.job, now, incarnation, durable=True)
            if saved.job.options.rebalance:
                self._rebalancer.begun(now)
            revived = revive(saved, job)
            runs |= {run.task.task_id: run for run in revived.left}
            for made in revived.made:
                self._jobs.holders.revived(*made, now)
            for each in saved.begun:
                if each.checkpoint is not None and each.task_id in runs:
                    self._jobs.checkpoints.revived(runs[each.task_id], each.checkpoint, now)
            for task_id in revived.failed:
                self._jobs.upstream_failed(job, task_id)
            self._jobs.close(job)
        for lease in leases:
            self._adopt(lease, runs, now)
        touched = {self._groups.of(run.scheduling_key): None for run in runs.values()}
        self._groups.queue(run for run in runs.values() if run.state is TaskState.WAITING)
        for group in touched:
            self._pump.run(group, now, "resume")

    def _adopt(self, saved: SavedLease, runs: Mapping[str, TaskRun], now: Moment) -> None:
        known = [(a, runs[task_id]) for a, task_id in saved.attempts if task_id in runs]
        # One lease runs tasks of one key.
        group = (
            self._groups.of(known[0][1].scheduling_key)
            if known
            else self._groups.of(SchedulingKey(saved.needs, saved.priority))
        )
        active = self._leasing.adopt(group, saved, now)
        for attempt_id, run in known:
            run.move("dispatch")
            active.add(attempt_id, run, now)
