"""Attempts: sent to leases, taken back, made twice."""

from __future__ import annotations

from collections.abc import Iterable

from formation_p2p.core.effects import Moment
from formation_p2p.jobs.core.active_lease import ActiveLease
from formation_p2p.jobs.core.job_events import TaskPlaced
from formation_p2p.jobs.core.jobs import Jobs, Outbox
from formation_p2p.jobs.core.quorum_elections import Elections
from formation_p2p.jobs.core.task_group import TaskGroup
from formation_p2p.jobs.core.task_run import TaskRun
from formation_p2p.leases.core.in_flight import MAX_IN_FLIGHT_BYTES
from formation_p2p.leases.core.messages import Cancel
from formation_p2p.leases.core.session import Send


class Attempts:
    def __init__(self, jobs: Jobs, outbox: Outbox, elections: Elections) -> None:
        self._jobs = jobs
        self._elections = elections
        self._outbox = outbox

    def fill(self, group: TaskGroup, depth: int, coming: int, now: Moment, cause: str) -> None:
        """Give leases more to do, up to `depth` each, or as deep as pays for 0. So many more
        leases are `coming` for what waits."""
        leases = [
            active
            for active in group.leases.values()
            if group.employs(active, now) and not group.estimates.is_stuck(active, now)
        ]
        if len(leases) > 1 and group.queues.waiting < len(leases):
            # There is not something for each of them: first those for which a task waits.
            waiting = group.queues.lengths()
            leases.sort(key=lambda active: active.worker not in waiting)
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
        leases, estimates = list(group.leases.values()), group.estimates
        idle = [x for x in leases if not x.attempts and group.employs(x, now)]
        kept: set[ActiveLease] = set()
        for active in leases:
            behind, again_s = estimates.to_recall(active, bool(idle), now)
            self.cancel(active, behind, cause, begun=False)
            group.wake_by(again_s)
            due_s = estimates.overtake_s(active)
            if due_s == float("inf"):
                continue
            run = active.attempts[active.began]
            elsewhere = (x for x in idle if x.worker != active.worker and group.suits(run, x))
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

    def give_up(self, group: TaskGroup, *, durable: bool) -> None:
        """No worker was found, time and again: for `durable` jobs as well, or for the others."""
        reasons = group.candidates.reasons()
        for job in group.queues.jobs():
            if durable or not job.durable:
                for run in group.queues.drain(job):
                    self._jobs.unplaceable(run, reasons)

    def end_all(self, group: TaskGroup, why: str) -> None:
        """All that wait and all that run: its gang has ended, or without a `why` as cancelled."""
        runs = (run for active in group.leases.values() for run in active.runs)
        for run in (*group.queues.drain(), *runs):
            if why:
                self._jobs.gang_ended(run, why)
            else:
                self._jobs.cancelled(run)

    def repeat(self, active: ActiveLease, cause: str) -> None:
        """The worker may have missed any of it: send once more what to run, and what not."""
        active.shared_blobs.forget()
        self._dispatch(active, active.attempts.items(), cause)
        self.cancel(active, [a for a, run in active.attempts.items() if not run.is_wanted], cause)
        self.cancel(active, active.recalled, cause, begun=False)

    def cancel(
        self, active: ActiveLease, attempt_ids: Iterable[str], cause: str, *, begun: bool = True
    ) -> None:
        """Have the worker take these back, and end them where they have begun and `begun`."""
        if ids := tuple(attempt_ids):
            message = Cancel(active.lease.lease_id, ids, begun)
            self._outbox.emit(Send(active.lease.lessor, message, cause=cause))

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
        if active.lease.scheduling_key.quorum is not None:
            self._elections.copies.update(sent=len(attempts))
        self._dispatch(active, attempts, cause)

    def _dispatch(
        self, active: ActiveLease, attempts: Iterable[tuple[str, TaskRun]], cause: str
    ) -> None:
        for message in active.messages(attempts):
            self._outbox.emit(Send(active.lease.lessor, message, cause=cause))
