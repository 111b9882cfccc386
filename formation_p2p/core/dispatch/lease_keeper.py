"""The leases of groups: persisted for a restart, kept warm for a moment, and given back."""

from __future__ import annotations

from collections.abc import Collection

from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.dispatch.job_events import ForgetLease, PersistLease
from formation_p2p.core.dispatch.outbox import Outbox
from formation_p2p.core.dispatch.saved import SavedLease
from formation_p2p.core.dispatch.task_group import TaskGroup
from formation_p2p.core.effects import Moment
from formation_p2p.core.negotiation.held_lease import HeldLease
from formation_p2p.core.negotiation.lessee import Lessee


class LeaseKeeper:
    def __init__(self, lessee: Lessee, outbox: Outbox, linger_s: float) -> None:
        self._lessee = lessee
        self._outbox = outbox
        self._linger_s = linger_s

    def granted(self, group: TaskGroup, lease: HeldLease, now: Moment) -> None:
        worker = lease.lessor.peer_id
        group.acquisition.leased(worker)
        group.candidates.leased(worker)
        group.add_lease(ActiveLease(lease, idle_s=now.mono_s))
        self._outbox.emit(
            PersistLease(
                lease.lease_id,
                lease.lessor,
                lease.scheduling_key.needs,
                lease.scheduling_key.priority,
                lease.fence,
                lease.device_ids,
                cause="a lease was granted",
            )
        )

    def adopt(self, group: TaskGroup, saved: SavedLease, now: Moment) -> ActiveLease:
        """One of an earlier incarnation: it counts once its worker has answered."""
        lease = self._lessee.adopt(
            saved.lessor, saved.lease_id, group.key, saved.fence, saved.device_ids, now
        )
        active = ActiveLease(lease, idle_s=now.mono_s)
        group.add_lease(active)
        return active

    def ended(self, group: TaskGroup, active: ActiveLease) -> None:
        """It was given back, or lost."""
        group.remove_lease(active)
        forget = ForgetLease(active.worker, active.lease.lease_id, cause="the lease ended")
        self._outbox.emit(forget)

    def linger(
        self, group: TaskGroup, kept: Collection[ActiveLease], now: Moment, cause: str
    ) -> None:
        """No task waits: give back the leases under which nothing has run for a while, except those
        to be kept."""
        self._release(group, kept, now.mono_s, cause)
        for active in group.leases.values():
            if active not in kept:
                group.wake_by(active.idle_s + self._linger_s)

    def release_idle(self, group: TaskGroup, cause: str) -> None:
        """Give back, at once, those that are only kept warm."""
        self._release(group, (), float("inf"), cause)

    def release_barred(self, group: TaskGroup, cause: str) -> None:
        """Give back, at once, those that get nothing more to do."""
        is_barred = group.candidates.is_barred
        kept = [active for active in group.leases.values() if not is_barred(active.worker)]
        self._release(group, kept, float("inf"), cause)

    def _release(
        self, group: TaskGroup, kept: Collection[ActiveLease], now_s: float, cause: str
    ) -> None:
        for active in list(group.leases.values()):
            due_s = active.idle_s + self._linger_s
            if not active.attempts and active not in kept and due_s <= now_s:
                self.ended(group, active)
                self._lessee.release(active.lease, cause)
