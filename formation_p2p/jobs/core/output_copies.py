"""Which workers are asked to hold outputs of a task beside its own: those that its scope and its
region allow. What is known of workers expires, so others are looked for where too few hold them."""

from __future__ import annotations

from formation_p2p.core.effects import Moment
from formation_p2p.jobs.core.candidates import Facts
from formation_p2p.jobs.core.leasing import Leasing
from formation_p2p.jobs.core.output_holders import OutputHolders
from formation_p2p.jobs.core.task_groups import TaskGroups
from formation_p2p.placement.core.hinted import holds_data_of


class OutputCopies:
    def __init__(
        self, holders: OutputHolders, groups: TaskGroups, leasing: Leasing, facts: Facts
    ) -> None:
        self._holders = holders
        self._groups = groups
        self._leasing = leasing
        self._facts = facts

    def look(self, now: Moment) -> None:
        """Have others asked for all outputs that are due."""
        for attempt_id, run in self._holders.due(now):
            key = run.scheduling_key
            own = self._groups.by_key.get(key)
            # It is gone once nothing of it waits or runs.
            groups = [own] if own is not None else list(self._groups.by_key.values())
            pool = {who: x for group in groups for who, x in group.candidates.pool.items()}
            allowed = holds_data_of(key.scope, key.hints)
            if allowed is not None:
                pool = {who: x for who, x in pool.items() if allowed(self._facts(x, key, now))}
            if not self._holders.ask(attempt_id, pool, bound=allowed is not None):
                for group in groups[:1]:
                    why = "others are to hold what a task has made"
                    self._leasing.look_around(group, run, now, why)
