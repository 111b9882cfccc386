"""What workers report of attempts: that they run, what they print and save, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Denied, Faulty, GrantEnded, Preempted, Unbuildable
from formation_p2p.jobs.core.active_lease import ActiveLease
from formation_p2p.jobs.core.attempts import Attempts
from formation_p2p.jobs.core.fetch import (
    FetchEvent,
    FetchResult,
    OutputsCopied,
    ResultFetched,
    StopFetch,
)
from formation_p2p.jobs.core.job_events import (
    Answer,
    RetryReason,
    TaskPrinted,
    TaskSucceeded,
    WorkerLost,
)
from formation_p2p.jobs.core.jobs import Jobs, Outbox
from formation_p2p.jobs.core.quorum_elections import Elections
from formation_p2p.jobs.core.task_group import TaskGroup
from formation_p2p.jobs.core.task_run import JobRun, TaskRun, TaskState
from formation_p2p.leases.core.failed_environments import on_one_line
from formation_p2p.leases.core.held_lease import HeldState
from formation_p2p.leases.core.lessee import LeaseLost
from formation_p2p.leases.core.messages import (
    OutputRead,
    ResultAck,
    TaskCheckpoint,
    TaskOutput,
    TaskStarted,
)
from formation_p2p.leases.core.session import Send
from formation_p2p.machine.core.environment import packages_of
from formation_p2p.trust.core.experience import Experience
from formation_p2p.workload.core.blob import MAX_BLOB_BYTES, Content
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.outcome import Ended, Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.parcel import blob_of, is_large


@dataclass(slots=True, eq=False)
class Reports:
    """Tasks to be placed again wait first in their group. `experienced` gets to know what each
    worker did."""

    _jobs: Jobs
    _outbox: Outbox
    _attempts: Attempts
    _elections: Elections
    _experienced: Callable[[PeerId, Experience, Moment], None]
    _max_printed_bytes: int

    def began(self, active: ActiveLease, message: TaskStarted, now: Moment) -> bool:
        """One runs for longer than a moment. Returns whether that is of any interest."""
        run = active.attempts.get(message.attempt_id)
        if run is None or not run.is_wanted:
            return False
        told = active.began == message.attempt_id  # once as it was prepared, and again as it runs
        active.started(message.attempt_id, now)
        if not told:
            self._jobs.began(run, active.worker)
        return True

    def printed(self, active: ActiveLease, message: TaskOutput) -> None:
        run = active.attempts.get(message.attempt_id)
        if run is not None and run.is_wanted and run.printed_bytes < self._max_printed_bytes:
            run.printed(len(message.data))
            task_id = run.task.task_id
            printed = TaskPrinted(task_id, message.is_stderr, message.data, active.worker)
            self._jobs.notify(run.job, printed)

    def seen(self, active: ActiveLease, attempt_ids: Iterable[str], *, more: bool) -> None:
        """What these print has a reader, which has read it, with `more`."""
        for attempt_id in attempt_ids:
            if more:
                active.attempts[attempt_id].output_seen()
            answer = OutputRead(active.lease.lease_id, attempt_id, more)
            self._outbox.emit(Send(active.lease.lessor, answer, cause="what it printed is read"))

    def saved(self, active: ActiveLease, message: TaskCheckpoint, now: Moment) -> None:
        """An attempt has saved a checkpoint. Its worker has it, whatever other peers it names."""
        run = active.attempts.get(message.attempt_id)
        if run is None or not run.is_wanted or run.job.job.options.quorum is not None:
            return  # no copy goes on from what another worker says
        cause = f"{message.attempt_id} has saved"
        blob = replace(message.checkpoint.blob, sources=(active.lease.lessor,))
        checkpoint = replace(message.checkpoint, blob=blob)
        if not self._jobs.checkpoints.saved(run, checkpoint, now, cause):
            self._experienced(active.worker, Experience.ERROR, now)

    def lost(self, group: TaskGroup, active: ActiveLease, event: LeaseLost, now: Moment) -> None:
        """All that are in flight on a lease, with it."""
        runs = list(active.attempts.items())
        why = str(event.refusal)
        # A worker runs one at a time, in order: only the oldest was running. It had no part in
        # the loss where it had to make room or gave notice, where a grant ended, or where this
        # scheduler was away meanwhile.
        excused = active.leaving or isinstance(event.refusal, Preempted | Denied | GrantEnded)
        excused = excused or event.state is HeldState.ADOPTED
        blamed = None if excused else next(iter(runs), None)
        if blamed is not None:
            self._experienced(active.worker, Experience.LOST, now)
            in_flight = (run for _, run in runs if run.state is TaskState.DISPATCHED)
            for job in dict.fromkeys(run.job for run in in_flight):
                self._jobs.notify(job, WorkerLost(active.worker, why))
        again = []
        for attempt_id, (run, _) in list(active.fetching.items()):
            self._stop_fetch(active, attempt_id, now, why)
            if run.state is TaskState.DISPATCHED and self._jobs.lost(
                run,
                attempt_id,
                active.worker,
                why,
                counts=not excused,
                reason=RetryReason.RESULT_LOST,
            ):
                again.append(run)
        denied = isinstance(event.refusal, Denied)
        reason = RetryReason.DENIED if denied else RetryReason.MAY_HAVE_RUN
        for attempt_id, run in runs:
            active.remove(attempt_id, now)
            counts = (attempt_id, run) == blamed
            if run.state is TaskState.DISPATCHED and self._jobs.lost(
                run, attempt_id, active.worker, why, counts=counts, reason=reason
            ):
                again.append(run)
        for run in reversed(again):
            group.queues.wait(run, first=True)

    def ended(
        self, group: TaskGroup, active: ActiveLease, all_ended: Iterable[Ended], now: Moment
    ) -> None:
        """Results, or why there are none. Each counts once. The worker may forget those that are
        not being fetched."""
        told = [x.attempt_id for x in all_ended if self._ended(group, active, x, now)]
        self._forget(active, told, "results have arrived")

    def _ended(self, group: TaskGroup, active: ActiveLease, ended: Ended, now: Moment) -> bool:
        """Whether the worker may forget it."""
        if ended.attempt_id in active.fetching:
            return False
        run = active.attempts.get(ended.attempt_id)
        if (
            run is not None
            and run.state is TaskState.DISPATCHED
            and is_large(run.task.needs.driver, ended.outcome.result)
        ):
            ended = self._judged(active, run, ended, now)
            if isinstance(ended.outcome, Succeeded):
                return False
        elif run is not None:
            lease = active.lease
            if self._jobs.holders.takes(run, lease.lease_id, lease.lessor, ended, now):
                active.fetch(ended)
                return False
        recalled = ended.attempt_id in active.recalled
        run = active.remove(ended.attempt_id, now)
        # Else it was known before, or another attempt of the task was faster.
        if run is not None and run.state is TaskState.DISPATCHED:
            self._counted(group, active.worker, run, ended, now, recalled=recalled)
            if run.is_awaiting:
                active.moved.append(run)
        return True

    def _judged(self, active: ActiveLease, run: TaskRun, ended: Ended, now: Moment) -> Ended:
        """With a record: as its worker sent it, unless that is one of something else than a large
        result. The fetch of one that succeeded has begun."""
        outcome = ended.outcome
        try:
            if isinstance(outcome, Failed):
                blob_of(outcome.result, active.worker, MAX_BLOB_BYTES)
                return ended
            if not run.is_wanted:
                failed = Failed(FailureKind.CANCELLED, "its job does not want the result")
                return replace(ended, outcome=failed)
            most = CallContext.decode(run.task.shared).max_result_bytes
            blob = blob_of(outcome.result, active.worker, most)
        except InvalidInput as problem:
            self._experienced(active.worker, Experience.ERROR, now)
            kind = outcome.kind if isinstance(outcome, Failed) else FailureKind.OUTPUT
            return replace(ended, outcome=Failed(kind, str(problem)))
        attempt_id, job_id = ended.attempt_id, run.job.job.job_id
        active.fetch(ended)
        cause = f"the result of {attempt_id} is large"
        self._outbox.emit(FetchResult(active.lease.lease_id, attempt_id, job_id, blob, cause=cause))
        return ended

    def fetch_ended(
        self, group: TaskGroup, active: ActiveLease, event: FetchEvent, now: Moment
    ) -> None:
        """A large result is here, or does not come."""
        found = active.fetched(event.attempt_id, now)
        if found is None:
            return
        run, ended = found
        if run.state is TaskState.DISPATCHED and isinstance(event, ResultFetched):
            self._counted(group, active.worker, run, ended, now, content=event.content)
        elif run.state is TaskState.DISPATCHED and not isinstance(event, ResultFetched):
            why = f"its result did not arrive: {event.why}"
            group.candidates.refused(active.worker, Faulty(why), now)
            self._experienced(active.worker, Experience.ERROR, now)
            lost, reason = event.attempt_id, RetryReason.RESULT_LOST
            if self._jobs.lost(run, lost, active.worker, why, counts=True, reason=reason):
                group.queues.wait(run, first=True)
        self._forget(active, [event.attempt_id], "a large result is fetched, or lost")

    def copied(
        self, group: TaskGroup, active: ActiveLease, event: OutputsCopied, now: Moment
    ) -> None:
        """Others hold what an attempt has made, or could not: its result counts."""
        found = active.fetched(event.attempt_id, now)
        if found is None:
            return
        run, ended = found
        if run.state is TaskState.DISPATCHED:
            result = self._jobs.holders.result(event.attempt_id, ended.outcome.result)
            ended = replace(ended, outcome=Succeeded(result))
            self._counted(group, active.worker, run, ended, now)
        else:
            self._jobs.holders.dropped(event.attempt_id)
        self._forget(active, [event.attempt_id], "others hold its outputs")

    def stop_fetching(self, active: ActiveLease, job: JobRun, now: Moment, cause: str) -> None:
        """The job does not want its results any more."""
        for attempt_id, (run, _) in list(active.fetching.items()):
            if run.job is job:
                self._stop_fetch(active, attempt_id, now, cause)
                if not run.copies and run.state is TaskState.DISPATCHED:
                    self._jobs.stopped(run)
                self._forget(active, [attempt_id], cause)

    def _stop_fetch(self, active: ActiveLease, attempt_id: str, now: Moment, cause: str) -> None:
        active.fetched(attempt_id, now)
        self._jobs.holders.dropped(attempt_id)
        stop = StopFetch(active.worker, active.lease.lease_id, attempt_id, cause=cause)
        self._outbox.emit(stop)

    def _forget(self, active: ActiveLease, attempt_ids: list[str], cause: str) -> None:
        """Have the worker forget results."""
        if attempt_ids:
            message = ResultAck(active.lease.lease_id, tuple(attempt_ids))
            self._outbox.acknowledge(Send(active.lease.lessor, message, cause=cause))

    def _counted(
        self,
        group: TaskGroup,
        worker: PeerId,
        run: TaskRun,
        ended: Ended,
        now: Moment,
        *,
        recalled: bool = False,
        content: Content | None = None,
    ) -> None:
        outcome: Outcome = ended.outcome
        made = None
        if isinstance(outcome, Succeeded):
            made = run.job.outputs.read(run.task.task_id, outcome.result)
            if made is None:
                outcome = Failed(FailureKind.OUTPUT, "files for which other tasks wait are missing")
        if isinstance(outcome, Failed):
            self._failed(group, worker, run, replace(ended, outcome=outcome), now, recalled)
            return
        group.candidates.back_off.succeeded(worker)
        attempt_id, task_id = ended.attempt_id, run.task.task_id
        result, ran_ms = outcome.result, ended.ran_us // 1000
        if run.job.job.options.quorum is None:
            self._experienced(worker, Experience.SUCCESS, now)
            succeeded = TaskSucceeded(task_id, worker, result, ran_ms, ended.used, content)
        else:
            answer = Answer(attempt_id, worker, result, ran_ms, (), ended.used, content)
            chosen = self._elections.chosen(group, run, answer, now)
            if chosen is None:
                return
            succeeded = chosen.as_result(task_id)
            made = run.job.outputs.read(task_id, chosen.result)
        run.job.outputs.made(run, succeeded.worker, made or {})
        self._jobs.took(run, now)
        self._jobs.succeeded(run, succeeded)
        if run.copies:
            for other in group.leases.values():
                copies = [a for a, copy in other.attempts.items() if copy is run]
                self._attempts.cancel(other, copies, f"{attempt_id} was faster")

    def _failed(
        self,
        group: TaskGroup,
        worker: PeerId,
        run: TaskRun,
        ended: Ended,
        now: Moment,
        recalled: bool,
    ) -> None:
        """It brought no result. That is no failure of the task where it was taken back."""
        attempt_id, outcome = ended.attempt_id, ended.outcome
        assert isinstance(outcome, Failed)
        if recalled and outcome.kind is FailureKind.CANCELLED:
            again = self._jobs.recalled(run, attempt_id)
        elif recalled and outcome.kind is FailureKind.MOVED:
            again = self._jobs.moved(run, attempt_id, worker, outcome.message)
        elif outcome.kind is FailureKind.LOST:
            self._experienced(worker, Experience.LOST, now)
            again = self._jobs.lost(run, attempt_id, worker, outcome.message, counts=True)
        elif outcome.kind is FailureKind.INPUT and run.inputs:
            again = self._jobs.input_lost(run, attempt_id, worker, outcome)
        else:
            if outcome.kind is FailureKind.ENVIRONMENT:
                name = packages_of(group.key.needs.environment)
                refusal = Unbuildable(name, on_one_line(outcome))
                group.candidates.refused(worker, refusal, now)
                group.candidates.bar(((worker, refusal),))
            if outcome.kind is FailureKind.DRIVER:
                group.candidates.refused(worker, Faulty(outcome.message), now)
                self._experienced(worker, Experience.ERROR, now)
            again = self._jobs.failed(run, attempt_id, worker, outcome)
            if not again and group.fails_anywhere(run, ended.ran_us / 1e6, now):
                for waiting in group.queues.drain(run.job):
                    self._jobs.not_tried(waiting, run)
        if again:
            group.queues.wait(run, first=True)
