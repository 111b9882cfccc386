"""All that can be done for a group of tasks now: fill its leases, go for more, give back the rest.

Called after everything that touches the group, and when it is due.
"""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.effects import Moment
from formation_p2p.jobs.core.attempts import Attempts
from formation_p2p.jobs.core.jobs import Jobs, Outbox
from formation_p2p.jobs.core.leasing import Leasing
from formation_p2p.jobs.core.placement_decider import PlacementDecider
from formation_p2p.jobs.core.rebalancer import Rebalancer
from formation_p2p.jobs.core.task_group import TaskGroup
from formation_p2p.jobs.core.task_groups import TaskGroups


@dataclass(slots=True, eq=False)
class Pump:
    """All parts are the scheduler's own."""

    _groups: TaskGroups
    _jobs: Jobs
    _outbox: Outbox
    _decider: PlacementDecider
    _leasing: Leasing
    _attempts: Attempts
    _rebalancer: Rebalancer

    def run(self, group: TaskGroup, now: Moment, cause: str) -> None:
        group.awake()
        self._leasing.release_left(group, cause)
        group.candidates.forget_expired(now)
        self._decider.review(group, now)
        if group.candidates.barred:
            self._rebalancer.leave_barred(group)
            self._leasing.release_barred(group, cause)
        self._leasing.release_yielding(group, cause)
        group.draw(now)
        self._attempts.fill(group, 1, 0, now, cause)
        if group.queues.is_ready:
            # Tasks are left over for the leases that may yet come.
            coming = self._seek(group, now, cause)
            self._attempts.fill(group, 0, coming, now, cause)
        if not group.queues.waiting:
            kept = self._attempts.rebalance(group, now, cause)
            self._leasing.linger(group, kept, now, cause)
            self._leasing.withdraw(group, now, cause)
            self._groups.forget_idle(group)

    def attempts_ended(self, group: TaskGroup, now: Moment, cause: str) -> None:
        """For a group whose attempts have ended, and those whose tasks waited for that."""
        touched = self._groups.bind_again() + self._groups.queue(self._jobs.take_ready())
        if touched:
            # Before a lease is given back to make room for what comes next.
            self._outbox.flush_events()
        for each in dict.fromkeys([group, *touched]):
            self.run(each, now, cause)

    def _seek(self, group: TaskGroup, now: Moment, cause: str) -> int:
        """Go for more leases. Returns how many may yet come of what is in flight."""
        if group.key.member is not None:
            return 0  # its gang does
        if group.acquisition.is_open:
            return max(1, len(group.acquisition.committing))
        for other in self._groups:
            if other is not group:  # what it keeps warm may be in the way
                self._leasing.release(other, cause)
                self._groups.forget_idle(other)
        if self._leasing.is_hopeless(group):
            self._attempts.give_up(group, durable=not self._leasing.outlasts(group, now))
        head = group.queues.first()
        return 0 if head is None else self._leasing.seek(group, head, now, cause)
