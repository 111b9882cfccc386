"""What comes of attempts at their workers: they begin, print, end, or are lost with their lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.dispatch.dispatcher import Dispatcher
from formation_p2p.core.dispatch.job_events import TaskBegan, TaskPrinted, WorkerLost
from formation_p2p.core.dispatch.jobs import Jobs
from formation_p2p.core.dispatch.task_group import TaskGroup
from formation_p2p.core.dispatch.task_run import TaskRun, TaskState
from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.negotiation.held_lease import HeldState
from formation_p2p.core.negotiation.lessee import LeaseLost
from formation_p2p.core.negotiation.messages import TaskOutput, TaskStarted
from formation_p2p.core.refusals import Faulty, Preempted
from formation_p2p.core.trust.experience import Experience
from formation_p2p.core.workload.outcome import Ended, FailureKind, Succeeded


class Attempts:
    """Tasks to be placed again wait first in their group. `experienced` gets to know what each
    worker did."""

    def __init__(
        self,
        jobs: Jobs,
        dispatcher: Dispatcher,
        experienced: Callable[[PeerId, Experience, Moment], None],
        max_printed_bytes: int,
    ) -> None:
        self._jobs = jobs
        self._dispatcher = dispatcher
        self._experienced = experienced
        self._max_printed_bytes = max_printed_bytes

    def began(self, active: ActiveLease, message: TaskStarted, now: Moment) -> bool:
        """One runs for longer than a moment. Returns whether that is of any interest."""
        run = active.attempts.get(message.attempt_id)
        if run is None or not run.is_wanted:
            return False
        active.started(message.attempt_id, now)
        self._jobs.notify(run.job, TaskBegan(run.task.task_id, active.worker))
        return True

    def printed(self, active: ActiveLease, message: TaskOutput) -> None:
        run = active.attempts.get(message.attempt_id)
        if run is not None and run.is_wanted and run.printed_bytes < self._max_printed_bytes:
            run.printed(len(message.data))
            printed = TaskPrinted(run.task.task_id, message.is_stderr, message.data)
            self._jobs.notify(run.job, printed)

    def ended(
        self, group: TaskGroup, active: ActiveLease, ended: Sequence[Ended], now: Moment
    ) -> None:
        """Results, or why there is none. Each counts once."""
        group.estimates.took(active.mean_s(ended, now))
        for each in ended:
            self._ended(group, active, each, now)

    def lost(self, group: TaskGroup, active: ActiveLease, event: LeaseLost, now: Moment) -> None:
        """All that are in flight on a lease, with it."""
        runs = list(active.attempts.items())
        why = str(event.refusal)
        # A worker runs one at a time, in order: only the oldest was running. It had no part in
        # the loss where it had to make room, or where this scheduler was away meanwhile.
        excused = isinstance(event.refusal, Preempted) or event.state is HeldState.ADOPTED
        blamed = None if excused else next(iter(runs), None)
        if blamed is not None:
            self._experienced(active.worker, Experience.LOST, now)
            in_flight = (run for _, run in runs if run.state is TaskState.DISPATCHED)
            for job in dict.fromkeys(run.job for run in in_flight):
                self._jobs.notify(job, WorkerLost(active.worker, why))
        again = []
        for attempt_id, run in runs:
            active.remove(attempt_id, now)
            is_over = run.state is not TaskState.DISPATCHED
            report = self._jobs.lost if (attempt_id, run) == blamed else self._jobs.returned
            if not is_over and report(run, attempt_id, active.worker, why):
                again.append(run)
        for run in reversed(again):
            group.queues.wait(run, first=True)

    def _ended(self, group: TaskGroup, active: ActiveLease, ended: Ended, now: Moment) -> None:
        attempt_id, outcome = ended.attempt_id, ended.outcome
        recalled = attempt_id in active.recalled
        run = active.remove(attempt_id, now)
        if run is None or run.state is not TaskState.DISPATCHED:
            return  # known before, or another attempt of the task was faster
        worker = active.worker
        if isinstance(outcome, Succeeded):
            group.candidates.succeeded(worker)
            self._experienced(worker, Experience.SUCCESS, now)
            ran_ms = ended.ran_us // 1000
            self._jobs.succeeded(run, worker, outcome.result, ran_ms, ended.used)
            if run.copies:
                self._cancel_copies(group, run, f"{attempt_id} was faster")
            return
        if recalled and outcome.kind is FailureKind.CANCELLED:
            again = self._jobs.recalled(run, attempt_id)
        else:
            if outcome.kind is FailureKind.DRIVER:
                group.candidates.refused(worker, Faulty(outcome.message), now)
                self._experienced(worker, Experience.ERROR, now)
            again = self._jobs.failed(run, attempt_id, worker, outcome)
        if again:
            group.queues.wait(run, first=True)

    def _cancel_copies(self, group: TaskGroup, run: TaskRun, cause: str) -> None:
        for active in group.leases.values():
            copies = [a for a, other in active.attempts.items() if other is run]
            self._dispatcher.cancel(active, copies, cause)
