"""The leases of groups: each is noted for a next life, kept warm for a moment, and given back."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.dispatch.job_events import ForgetLease, PersistLease, SchedulerEffect
from formation_p2p.core.dispatch.saved import SavedLease
from formation_p2p.core.dispatch.task_group import TaskGroup
from formation_p2p.core.effects import Moment
from formation_p2p.core.negotiation.lessee import HeldLease, Lessee

# A lease under which nothing runs is given back after this long, at once where another kind of
# task of ours looks for room: the next call of a loop finds it warm.
LINGER_S: Final = 0.25


class Leases:
    """What is to be noted it adds to `effects`."""

    def __init__(self, lessee: Lessee, effects: list[SchedulerEffect]) -> None:
        self._lessee = lessee
        self._effects = effects

    def granted(self, group: TaskGroup, lease: HeldLease, now: Moment) -> None:
        worker = lease.lessor.peer_id
        group.committing.discard(worker)
        group.welcome(worker)
        group.slots[lease.key] = ActiveLease(lease, idle_s=now.mono_s)
        group.had_leases = True
        self._effects.append(
            PersistLease(
                lease.lease_id,
                lease.lessor,
                lease.terms.needs,
                lease.terms.priority,
                lease.fence,
                lease.device_ids,
                cause="a lease was granted",
            )
        )

    def adopt(self, group: TaskGroup, saved: SavedLease, now: Moment) -> ActiveLease:
        """One of an earlier life: it counts once its worker has answered."""
        lease = self._lessee.adopt(
            saved.lessor,
            saved.lease_id,
            group.terms,
            saved.fence,
            saved.device_ids,
            now,
        )
        slot = group.slots[lease.key] = ActiveLease(lease, idle_s=now.mono_s, adopted=True)
        return slot

    def let_go(self, slot: ActiveLease) -> None:
        """It is no more: given back, or lost."""
        self._effects.append(ForgetLease(slot.worker, slot.lease.lease_id, cause="the lease ended"))

    def linger(
        self, group: TaskGroup, kept: Collection[ActiveLease], now: Moment, cause: str
    ) -> None:
        """Nothing waits: give back those under which nothing has run for a while, but for those
        that are to be kept."""
        self._release(group, kept, now.mono_s, cause)
        ends = [slot.idle_s + LINGER_S for slot in group.slots.values() if slot not in kept]
        group.wake_s = min([group.wake_s, *ends])

    def release_idle(self, group: TaskGroup, cause: str) -> None:
        """Give back, at once, those that are only kept warm."""
        self._release(group, (), float("inf"), cause)

    def release_barred(self, group: TaskGroup, cause: str) -> None:
        """Give back, at once, those that get nothing more to do."""
        kept = [slot for slot in group.slots.values() if not group.is_barred(slot.worker)]
        self._release(group, kept, float("inf"), cause)

    def _release(
        self, group: TaskGroup, kept: Collection[ActiveLease], now_s: float, cause: str
    ) -> None:
        idle = [slot for slot in group.slots.values() if not slot.attempts and slot not in kept]
        for slot in [each for each in idle if each.idle_s + LINGER_S <= now_s]:
            del group.slots[slot.lease.key]
            self.let_go(slot)
            self._lessee.release(slot.lease, cause)
