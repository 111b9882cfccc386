"""Which peers are asked to hold what a task has saved or made, beside its owner and its own worker:
those that its scope and its region allow. What is known of workers expires, so others are looked
for where too few hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.candidates import Facts
from formation_p2p.jobs.core.checkpoints import Checkpoints
from formation_p2p.jobs.core.leasing import Leasing
from formation_p2p.jobs.core.output_holders import OutputHolders
from formation_p2p.jobs.core.task_groups import TaskGroups
from formation_p2p.jobs.core.task_run import TaskRun
from formation_p2p.placement.core.hinted import holds_data_of
from formation_p2p.records.core.profile import Profile

Pool = Mapping[PeerId, Profile]


@dataclass(slots=True, eq=False)
class Holders:
    _checkpoints: Checkpoints
    _outputs: OutputHolders
    _groups: TaskGroups
    _leasing: Leasing
    _facts: Facts

    def look(self, now: Moment) -> None:
        """Have others asked for every checkpoint, and all outputs, that are due."""
        for run in self._checkpoints.due(now):
            group = self._groups.by_key.get(run.scheduling_key)
            pool: Pool = {} if group is None else group.candidates.pool
            if not self._ask_for_checkpoint(run, pool, now) and group is not None:
                self._leasing.look_around(group, run, now, "others are to hold a checkpoint")
        for attempt_id, run in self._outputs.due(now):
            own = self._groups.by_key.get(run.scheduling_key)
            # It is gone once nothing of it waits or runs.
            groups = [own] if own is not None else list(self._groups.by_key.values())
            known = {who: x for group in groups for who, x in group.candidates.pool.items()}
            allowed = self._allowed(run, known, now)
            pool = known if allowed is None else allowed
            if not self._outputs.ask(attempt_id, pool, bound=allowed is not None):
                for group in groups[:1]:
                    why = "others are to hold what a task has made"
                    self._leasing.look_around(group, run, now, why)

    def _ask_for_checkpoint(self, run: TaskRun, pool: Pool, now: Moment) -> bool:
        """First come the workers of leases, which are connected, then candidates; not those that
        run the task. Returns whether those known may be enough."""
        leases = list(self._groups.leases())
        if (allowed := self._allowed(run, pool, now)) is not None:
            pool, leases = allowed, [each for each in leases if each.worker in allowed]
        others = {each.worker: each.lease.lessor for each in leases}
        for peer_id, profile in pool.items():
            others.setdefault(peer_id, Contact(peer_id, profile.addresses))
        running = {each.worker for each in leases if run in each.attempts.values()}
        contacts = [each for worker, each in others.items() if worker not in running]
        return self._checkpoints.spread(run, contacts, now)

    def _allowed(self, run: TaskRun, pool: Pool, now: Moment) -> Pool | None:
        """Those of these workers that may have data of the task; None where any may."""
        key = run.scheduling_key
        allows = holds_data_of(key.scope, key.hints)
        if allows is None:
            return None
        return {who: x for who, x in pool.items() if allows(self._facts(x, key, now))}
