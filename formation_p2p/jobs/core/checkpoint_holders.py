"""Which peers are asked to hold a checkpoint beside its owner: those that the task's scope allows.

First come the workers of leases, which are connected, then candidates; not those that run the task.
"""

from __future__ import annotations

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.jobs.core.candidates import Facts
from formation_p2p.jobs.core.checkpoints import Checkpoints
from formation_p2p.jobs.core.leasing import Leasing
from formation_p2p.jobs.core.task_groups import TaskGroups
from formation_p2p.jobs.core.task_run import TaskRun
from formation_p2p.placement.core.hinted import holds_data_of


class CheckpointHolders:
    def __init__(
        self, checkpoints: Checkpoints, groups: TaskGroups, leasing: Leasing, facts: Facts
    ) -> None:
        self._checkpoints = checkpoints
        self._groups = groups
        self._leasing = leasing
        self._facts = facts

    def look(self, now: Moment) -> None:
        """Have others asked for every checkpoint that is due."""
        for run in self._checkpoints.due(now):
            if not self._ask(run, now) and run.scheduling_key in self._groups.by_key:
                group = self._groups.by_key[run.scheduling_key]
                self._leasing.look_around(group, run, now, "others are to hold a checkpoint")

    def _ask(self, run: TaskRun, now: Moment) -> bool:
        """Returns whether those known may be enough."""
        key = run.scheduling_key
        group = self._groups.by_key.get(key)
        pool = {} if group is None else group.candidates.pool
        leases = list(self._groups.leases())
        allowed = holds_data_of(key.scope, key.hints)
        if allowed is not None:
            pool = {who: x for who, x in pool.items() if allowed(self._facts(x, key, now))}
            leases = [each for each in leases if each.worker in pool]
        others = {each.worker: each.lease.lessor for each in leases}
        for peer_id, profile in pool.items():
            others.setdefault(peer_id, Contact(peer_id, profile.addresses))
        running = {each.worker for each in leases if run in each.attempts.values()}
        contacts = [each for worker, each in others.items() if worker not in running]
        return self._checkpoints.spread(run, contacts, now)
