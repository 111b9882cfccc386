"""Tasks with the same scheduling key: their workers, their queues, and their leases.

A group knows no messages. Each part of its state has one owner, which alone writes it.
"""

from __future__ import annotations

from formation_p2p.core.dispatch.acquisition import Acquisition
from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.dispatch.candidates import Candidates
from formation_p2p.core.dispatch.estimates import Estimates
from formation_p2p.core.dispatch.parameters import DISPATCH_DEFAULTS, DispatchParameters
from formation_p2p.core.dispatch.queues import Queues
from formation_p2p.core.dispatch.task_run import TaskRun
from formation_p2p.core.errors import ensure
from formation_p2p.core.negotiation.held_lease import LeaseKey
from formation_p2p.core.placement.scheduling_key import SchedulingKey


class TaskGroup:
    """`wake_s` is when to look at it again, if nothing happens before. Other modules read the
    attributes, of the parts too, and write none of them."""

    def __init__(
        self, key: SchedulingKey, parameters: DispatchParameters = DISPATCH_DEFAULTS
    ) -> None:
        self.key = key
        self.acquisition = Acquisition()
        self.estimates = Estimates(parameters)
        self.candidates = Candidates(
            key,
            parameters,
            leased=lambda: {active.worker for active in self.leases.values()},
            changed=lambda: self.queues.reroute(),
        )
        self.queues = Queues(self.candidates, parameters.max_steal_scan)
        self.leases: dict[LeaseKey, ActiveLease] = {}
        self.wake_s = float("inf")

    def add_lease(self, active: ActiveLease) -> None:
        self.leases[active.lease.key] = active

    def remove_lease(self, active: ActiveLease) -> None:
        del self.leases[active.lease.key]

    def wake_by(self, due_s: float) -> None:
        self.wake_s = min(self.wake_s, due_s)

    def awake(self) -> None:
        """It is being looked at."""
        self.wake_s = float("inf")

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, runs, or is being negotiated."""
        return not (self.leases or self.acquisition.is_open or self.queues.waiting)

    @property
    def is_stranded(self) -> bool:
        """Whether no worker is known that could run these tasks, or does."""
        return self.candidates.are_none and not self.leases

    def first(self) -> TaskRun | None:
        """The task that has waited longest, or where none waits, one that is in flight."""
        in_flight = (run for active in self.leases.values() for run in active.attempts.values())
        return self.queues.first() or next(in_flight, None)

    def validate(self) -> None:
        """Raises InvariantBroken."""
        self.candidates.validate()
        self.queues.validate()
        for key, active in self.leases.items():
            ensure(key == active.lease.key, f"{active.lease.lease_id} is kept under another name")
            ensure(active.lease.scheduling_key == self.key, f"{key} is of another group")
            active.validate()
