"""What leases are given to run: how much of what waits, what is taken back, what is tried twice."""

from __future__ import annotations

from collections.abc import Iterable

from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.dispatch.job_events import SchedulerEffect, TaskPlaced
from formation_p2p.core.dispatch.jobs import Jobs
from formation_p2p.core.dispatch.stragglers import idle_of, is_stuck, overtake_s, to_recall
from formation_p2p.core.dispatch.task_group import TaskGroup
from formation_p2p.core.dispatch.task_run import TaskRun
from formation_p2p.core.effects import Moment
from formation_p2p.core.negotiation.in_flight import MAX_UNDER_WAY_BYTES
from formation_p2p.core.negotiation.messages import Cancel, WorkMessage
from formation_p2p.core.negotiation.session import Send


class Dispatcher:
    """What it has to say to workers it adds to `effects`."""

    def __init__(self, jobs: Jobs, effects: list[SchedulerEffect]) -> None:
        self._jobs = jobs
        self._effects = effects

    def fill(self, group: TaskGroup, depth: int, coming: int, now: Moment, cause: str) -> None:
        """Give leases more to do, up to `depth` each, or as deep as pays for 0. So many more
        leases are `coming` for what waits."""
        slots = [
            slot
            for slot in group.slots.values()
            if not slot.lease.doubtful
            and not group.is_barred(slot.worker)
            and not group.is_failing(slot.worker, now)
            and not is_stuck(slot, group.mean_s, now)
        ]
        for left, slot in zip(range(len(slots), 0, -1), slots, strict=True):
            deep = depth or group.depth(slot)
            under_way = len(slot.attempts)
            if under_way * 2 > deep or slot.load.total_bytes * 2 > MAX_UNDER_WAY_BYTES:
                continue  # half of it is still to be done: more at once costs less
            share = -(-group.waiting // (left + coming))
            count = min(deep - under_way, share)
            self._place(slot, group.take(slot.worker, count, slot.has_room_for, now), now, cause)

    def rebalance(self, group: TaskGroup, now: Moment, cause: str) -> set[ActiveLease]:
        """Nothing waits here: see to what waits on a lease, and to what is slow. Returns the idle
        leases that are to be kept, since a slow task gets its second attempt there soon."""
        idle = [
            slot
            for slot in idle_of(group.slots.values())
            if not group.is_barred(slot.worker) and not group.is_failing(slot.worker, now)
        ]
        kept: set[ActiveLease] = set()
        for slot in list(group.slots.values()):
            behind, again_s = to_recall(slot, group.mean_s, bool(idle), now)
            self._take_back(slot, behind, False, cause)
            group.wake_s = min(group.wake_s, again_s)
            due_s = overtake_s(slot, group.mean_s)
            if due_s == float("inf"):
                continue
            run = slot.attempts[slot.began]
            elsewhere = [s for s in idle if s.worker != slot.worker and not run.avoids(s.worker)]
            for other in elsewhere[:1]:
                idle.remove(other)
                if due_s <= now.mono_s:
                    self._place(other, [(run, False)], now, "it takes long elsewhere")
                else:
                    kept.add(other)
                    group.wake_s = min(group.wake_s, due_s)
        return kept

    def repeat(self, slot: ActiveLease, cause: str) -> None:
        """The worker may have missed any of it: tell it once more what to run, and what not."""
        slot.parts.forget()
        self._dispatch(slot, slot.attempts.items(), cause)
        self.cancel(slot, [a for a, run in slot.attempts.items() if not run.is_wanted], cause)
        self._take_back(slot, slot.recalled, False, cause)

    def cancel(self, slot: ActiveLease, attempt_ids: Iterable[str], cause: str) -> None:
        """Have the worker end these, begun or not."""
        self._take_back(slot, attempt_ids, True, cause)

    # -- the insides ------------------------------------------------------------------------------

    def _place(
        self, slot: ActiveLease, taken: Iterable[tuple[TaskRun, bool]], now: Moment, cause: str
    ) -> None:
        attempts: list[tuple[str, TaskRun]] = []
        worker, lease_id = slot.worker, slot.lease.lease_id
        for run, nearest in taken:
            run.move("dispatch")
            run.tried += 1
            run.printed_bytes = 0
            task_id = run.task.task_id
            attempt_id = f"{task_id}#{run.tried}{run.job.life}"
            slot.add(attempt_id, run, now)
            attempts.append((attempt_id, run))
            placed = TaskPlaced(task_id, attempt_id, worker, lease_id, nearest)
            self._jobs.tell(run.job, placed)
        self._dispatch(slot, attempts, cause)

    def _dispatch(
        self, slot: ActiveLease, attempts: Iterable[tuple[str, TaskRun]], cause: str
    ) -> None:
        for message in slot.messages(attempts):
            self._send(slot, message, cause)

    def _take_back(
        self, slot: ActiveLease, attempt_ids: Iterable[str], begun: bool, cause: str
    ) -> None:
        if ids := tuple(attempt_ids):
            self._send(slot, Cancel(slot.lease.lease_id, ids, begun), cause)

    def _send(self, slot: ActiveLease, message: WorkMessage, cause: str) -> None:
        self._effects.append(Send(slot.lease.lessor, message, cause=cause))
