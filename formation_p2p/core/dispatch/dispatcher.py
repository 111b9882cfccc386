"""What leases are given to run: how much of what waits, what is taken back, what is tried twice."""

from __future__ import annotations

from collections.abc import Iterable

from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.dispatch.job_events import TaskPlaced
from formation_p2p.core.dispatch.outbox import Outbox
from formation_p2p.core.dispatch.stragglers import idle_of, is_stuck, overtake_s, to_recall
from formation_p2p.core.dispatch.task_group import TaskGroup
from formation_p2p.core.dispatch.task_run import TaskRun
from formation_p2p.core.effects import Moment
from formation_p2p.core.negotiation.in_flight import MAX_IN_FLIGHT_BYTES
from formation_p2p.core.negotiation.messages import Cancel, WorkMessage
from formation_p2p.core.negotiation.session import Send


class Dispatcher:
    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def fill(self, group: TaskGroup, depth: int, coming: int, now: Moment, cause: str) -> None:
        """Give leases more to do, up to `depth` each, or as deep as pays for 0. So many more
        leases are `coming` for what waits."""
        leases = [
            active
            for active in group.leases.values()
            if not active.lease.is_suspect
            and not group.candidates.is_barred(active.worker)
            and not group.candidates.is_failing(active.worker, now)
            and not is_stuck(active, group.estimates, now)
        ]
        for left, active in zip(range(len(leases), 0, -1), leases, strict=True):
            deep = depth or group.estimates.depth(active.lease.window)
            in_flight = len(active.attempts)
            if in_flight * 2 > deep or active.load.total_bytes * 2 > MAX_IN_FLIGHT_BYTES:
                continue  # half of it is still to be done: more at once costs less
            share = -(-group.queues.waiting // (left + coming))
            count = min(deep - in_flight, share)
            taken = group.queues.take(active.worker, count, active.has_room_for, now)
            self._place(active, taken, now, cause)

    def rebalance(self, group: TaskGroup, now: Moment, cause: str) -> set[ActiveLease]:
        """No task waits here: see to what waits on a lease, and to what is slow. Returns the idle
        leases that are to be kept, since a slow task gets its second attempt there soon."""
        candidates, estimates = group.candidates, group.estimates
        idle = [
            active
            for active in idle_of(group.leases.values())
            if not candidates.is_barred(active.worker)
            and not candidates.is_failing(active.worker, now)
        ]
        kept: set[ActiveLease] = set()
        for active in list(group.leases.values()):
            behind, again_s = to_recall(active, estimates, bool(idle), now)
            self._cancel(active, behind, False, cause)
            group.wake_by(again_s)
            due_s = overtake_s(active, estimates)
            if due_s == float("inf"):
                continue
            run = active.attempts[active.began]
            elsewhere = (x for x in idle if x.worker != active.worker and not run.avoids(x.worker))
            other = next(elsewhere, None)
            if other is None:
                continue
            idle.remove(other)
            if due_s <= now.mono_s:
                self._place(other, [(run, False)], now, "it takes long elsewhere")
            else:
                kept.add(other)
                group.wake_by(due_s)
        return kept

    def repeat(self, active: ActiveLease, cause: str) -> None:
        """The worker may have missed any of it: send once more what to run, and what not."""
        active.shared_blobs.forget()
        self._dispatch(active, active.attempts.items(), cause)
        self.cancel(active, [a for a, run in active.attempts.items() if not run.is_wanted], cause)
        self._cancel(active, active.recalled, False, cause)

    def cancel(self, active: ActiveLease, attempt_ids: Iterable[str], cause: str) -> None:
        """Have the worker end these, begun or not."""
        self._cancel(active, attempt_ids, True, cause)

    def _place(
        self, active: ActiveLease, taken: Iterable[tuple[TaskRun, bool]], now: Moment, cause: str
    ) -> None:
        attempts: list[tuple[str, TaskRun]] = []
        worker, lease_id = active.worker, active.lease.lease_id
        notify = self._outbox.notify
        for run, nearest in taken:
            run.move("dispatch")
            attempt_id = run.next_attempt()
            active.add(attempt_id, run, now)
            attempts.append((attempt_id, run))
            placed = TaskPlaced(run.task.task_id, attempt_id, worker, lease_id, nearest)
            notify(run.job.job.job_id, placed)
        self._dispatch(active, attempts, cause)

    def _dispatch(
        self, active: ActiveLease, attempts: Iterable[tuple[str, TaskRun]], cause: str
    ) -> None:
        for message in active.messages(attempts):
            self._send(active, message, cause)

    def _cancel(
        self, active: ActiveLease, attempt_ids: Iterable[str], begun: bool, cause: str
    ) -> None:
        if ids := tuple(attempt_ids):
            self._send(active, Cancel(active.lease.lease_id, ids, begun), cause)

    def _send(self, active: ActiveLease, message: WorkMessage, cause: str) -> None:
        self._outbox.emit(Send(active.lease.lessor, message, cause=cause))
