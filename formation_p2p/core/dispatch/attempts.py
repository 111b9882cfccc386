"""How attempts fare at their workers: they begin, print, end, or are lost with their lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.dispatch.dispatcher import Dispatcher
from formation_p2p.core.dispatch.job_events import TaskBegan, TaskPrinted, WorkerLost
from formation_p2p.core.dispatch.jobs import Jobs
from formation_p2p.core.dispatch.task_group import TaskGroup
from formation_p2p.core.dispatch.task_run import TaskRun, TaskState
from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.negotiation.messages import TaskOutput, TaskStarted
from formation_p2p.core.refusals import Faulty, Preempted, Refusal
from formation_p2p.core.trust.experience import Experience
from formation_p2p.core.units import MIB
from formation_p2p.core.workload.outcome import Ended, FailureKind, Succeeded

# Of one attempt; what comes after is dropped, since whoever keeps it would fill a disk. Our own
# workers pass on 16 MiB (host/drivers/output.py), and say so where there is more.
MAX_PRINTED_BYTES: Final = 64 * MIB


class Attempts:
    """Jobs are told, tasks to be placed again wait first in their group, and `experienced` is told
    what each worker did."""

    def __init__(
        self,
        jobs: Jobs,
        dispatcher: Dispatcher,
        experienced: Callable[[PeerId, Experience, Moment], None],
    ) -> None:
        self._jobs = jobs
        self._dispatcher = dispatcher
        self._experienced = experienced

    def began(self, slot: ActiveLease, message: TaskStarted, now: Moment) -> bool:
        """One runs for longer than a moment. Returns whether that is of any interest."""
        run = slot.attempts.get(message.attempt_id)
        if run is None or not run.is_wanted:
            return False
        slot.began, slot.began_s = message.attempt_id, now.mono_s
        self._jobs.tell(run.job, TaskBegan(run.task.task_id, slot.worker))
        return True

    def printed(self, slot: ActiveLease, message: TaskOutput) -> None:
        run = slot.attempts.get(message.attempt_id)
        if run is not None and run.is_wanted and run.printed_bytes < MAX_PRINTED_BYTES:
            run.printed_bytes += len(message.data)
            printed = TaskPrinted(run.task.task_id, message.is_stderr, message.data)
            self._jobs.tell(run.job, printed)

    def ended(
        self, group: TaskGroup, slot: ActiveLease, ended: Sequence[Ended], now: Moment
    ) -> None:
        """Results, or why there is none. Each counts once."""
        group.took(slot.mean_s(ended, now))
        for each in ended:
            self._ended(group, slot, each, now)

    def lost(self, group: TaskGroup, slot: ActiveLease, refusal: Refusal, now: Moment) -> None:
        """All that are under way on a lease, with it."""
        runs = list(slot.attempts.items())
        why = str(refusal)
        # A worker runs one at a time, in order: only the oldest was running. It had no part in
        # the loss where it had to make room, or where this scheduler was away meanwhile.
        blamed = None if isinstance(refusal, Preempted) or slot.adopted else next(iter(runs), None)
        if blamed is not None:
            self._experienced(slot.worker, Experience.LOST, now)
            under_way = (run for _, run in runs if run.state is TaskState.DISPATCHED)
            for job in dict.fromkeys(run.job for run in under_way):
                self._jobs.tell(job, WorkerLost(slot.worker, why))
        again = []
        for attempt_id, run in runs:
            slot.remove(attempt_id, now)
            is_over = run.state is not TaskState.DISPATCHED
            report = self._jobs.lost if (attempt_id, run) == blamed else self._jobs.returned
            if not is_over and report(run, attempt_id, slot.worker, why):
                again.append(run)
        for run in reversed(again):
            group.wait(run, first=True)

    # -- the insides ------------------------------------------------------------------------------

    def _ended(self, group: TaskGroup, slot: ActiveLease, ended: Ended, now: Moment) -> None:
        attempt_id, outcome = ended.attempt_id, ended.outcome
        recalled = attempt_id in slot.recalled
        run = slot.remove(attempt_id, now)
        if run is None or run.state is not TaskState.DISPATCHED:
            return  # told before, or another attempt of the task was faster
        worker = slot.worker
        if isinstance(outcome, Succeeded):
            group.succeeded(worker)
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
                group.back_off(worker, Faulty(outcome.message), now)
                self._experienced(worker, Experience.ERROR, now)
            again = self._jobs.failed(run, attempt_id, worker, outcome)
        if again:
            group.wait(run, first=True)

    def _cancel_copies(self, group: TaskGroup, run: TaskRun, cause: str) -> None:
        for slot in group.slots.values():
            copies = [a for a, other in slot.attempts.items() if other is run]
            self._dispatcher.cancel(slot, copies, cause)
