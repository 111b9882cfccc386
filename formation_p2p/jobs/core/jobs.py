"""The jobs of a scheduler, and its outbox: what ends a task, what a lost attempt means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import InvalidInput, ensure
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Refusal
from formation_p2p.jobs.core import job_events
from formation_p2p.jobs.core.checkpoints import Checkpoints
from formation_p2p.jobs.core.fetch import SchedulerEffect
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import Answer, Attempt, Awaited, JobEvent, RetryReason
from formation_p2p.jobs.core.output_holders import OutputHolders
from formation_p2p.jobs.core.parameters import DISPATCH_DEFAULTS, DispatchParameters
from formation_p2p.jobs.core.task_run import ENDED, JobRun, JobState, TaskRun, TaskState
from formation_p2p.placement.core.learnt import Learner, Learnt
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.records.core.profile import Profile
from formation_p2p.workload.core.outcome import Failed, FailureKind, is_unstarted, lacks_module
from formation_p2p.workload.core.parcel import is_large


class Outbox:
    """What is to be done about one event, in the order in which it is done. Messages come first,
    since workers wait for them; then job events; acknowledgements last: a result is acknowledged
    once it has been reported."""

    def __init__(self) -> None:
        self._effects: list[SchedulerEffect] = []
        self._events: list[SchedulerEffect] = []
        self._acknowledgements: list[SchedulerEffect] = []

    def emit(self, effect: SchedulerEffect) -> None:
        self._effects.append(effect)

    def notify(self, job_id: str, event: JobEvent) -> None:
        self._events.append(job_events.EmitJobEvent(job_id, event, cause=type(event).__name__))

    def acknowledge(self, effect: SchedulerEffect) -> None:
        self._acknowledgements.append(effect)

    def flush_events(self) -> None:
        """Report what has happened so far before anything else is emitted."""
        self._effects += self._events
        self._events.clear()

    def take(self) -> list[SchedulerEffect]:
        effects = [*self._effects, *self._events, *self._acknowledgements]
        if effects:
            self._effects, self._events, self._acknowledgements = [], [], []
        return effects


class Jobs:
    """`begin` a job, and say how each of its tasks fares: the outbox has its events. Others only
    read `runs`, and hand `checkpoints` and `holders` what they are told of these. `opaque` names
    the attempts of jobs with a quorum: not after their tasks. `marks` are those of a worker."""

    def __init__(
        self,
        outbox: Outbox,
        parameters: DispatchParameters = DISPATCH_DEFAULTS,
        opaque: Callable[[], str] | None = None,
        marks: Callable[[Profile], frozenset[str]] = lambda profile: frozenset(),
    ) -> None:
        self._outbox = outbox
        self._opaque = opaque
        self._parameters = parameters
        self.learner = Learner()
        self.runs: dict[str, JobRun] = {}
        self._ready: list[TaskRun] = []
        self._unbound: dict[JobRun, None] = {}
        self.checkpoints = Checkpoints(outbox.emit, outbox.acknowledge, outbox.notify)
        self.holders = OutputHolders(outbox.emit, marks)

    def begin(
        self, job: Job, now: Moment, incarnation: str = "", *, durable: bool = False
    ) -> JobRun:
        """Raises InvalidInput where too many jobs are running, or this one already is."""
        if job.job_id in self.runs:
            raise InvalidInput("job", f"{job.job_id} is running already")
        if len(self.runs) >= (limit := self._parameters.max_jobs):
            raise InvalidInput("job", f"{limit} are running; wait for one to end")
        deadline_s = job.options.deadline_s
        due_s = float("inf") if deadline_s is None else now.mono_s + deadline_s
        opaque = None if job.options.quorum is None else self._opaque
        run = self.runs[job.job_id] = JobRun(
            self._by_preset(job), due_s, incarnation, durable, opaque, now.mono_s
        )
        if job.code is not None:
            self.notify(run, job_events.CodeSent(job.code))
        return run

    def _by_preset(self, job: Job) -> Job:
        """A job whose policy is to be learnt goes by one preset."""
        if not isinstance(job.options.policy, Learnt):
            return job
        policy = self.learner.choose(job.kind, len(job.tasks))
        return replace(job, options=replace(job.options, policy=policy))

    def live(self, task_id: str) -> tuple[str, SchedulingKey] | None:
        """The job and the scheduling key of a task whose job has not ended."""
        for run in self.runs.values():
            for task in run.job.tasks:
                if task.task_id == task_id:
                    return run.job.job_id, run.job.options.scheduling_key(task.needs, task.member)
        return None

    def overdue(self, now: Moment) -> list[JobRun]:
        """Those whose deadline has passed, each once."""
        return [run for run in self.runs.values() if run.is_due(now)]

    def next_deadline_s(self) -> float:
        return min((run.due_s for run in self.runs.values()), default=float("inf"))

    def take_ready(self) -> list[TaskRun]:
        """Tasks that are to be placed by a key of their own: those for which they waited have
        succeeded, or they ask for more memory now."""
        ready, self._ready = self._ready, []
        return ready

    def take_unbound(self) -> list[JobRun]:
        """Jobs of which tasks are bound to files that are lost, or were made again."""
        unbound, self._unbound = list(self._unbound), {}
        return unbound

    def notify(self, job: JobRun, event: JobEvent) -> None:
        self._outbox.notify(job.job.job_id, event)

    def began(self, run: TaskRun, worker: PeerId) -> None:
        """It has run for longer than a moment; what cannot start may take as long to fail."""
        self.notify(run.job, job_events.TaskBegan(run.task.task_id, worker))

    def took(self, run: TaskRun, now: Moment) -> None:
        """A task has its result: what that tells of the policy that placed it."""
        job = run.job.job
        if isinstance(job.options.policy, Learnt):
            turnaround_s = now.mono_s - run.job.begun_s
            self.learner.took(job.kind, job.options.policy.preset, turnaround_s)

    def succeeded(self, run: TaskRun, succeeded: job_events.TaskSucceeded) -> None:
        run.job.ran()
        self._end(run, "success", succeeded)

    def unplaceable(self, run: TaskRun, reasons: tuple[tuple[PeerId, Refusal], ...]) -> None:
        self._end(run, "unplaceable", job_events.TaskUnplaceable(run.task.task_id, reasons))

    def waits(self, job: JobRun, awaited: Awaited) -> None:
        """No worker is in sight for some of its tasks."""
        self.notify(job, job_events.JobWaits(awaited))

    def cancelled(self, run: TaskRun) -> None:
        self._end(run, "cancel", job_events.TaskCancelled(run.task.task_id))

    def failed(self, run: TaskRun, attempt_id: str, worker: PeerId, failed: Failed) -> bool:
        """It ran, and failed. Returns whether the task is to be placed again as it was. One that
        had less memory than it takes may ask for more, and that does not count."""
        before = run.last_failure
        run.failed(failed)
        unstarted = is_unstarted(failed)
        if not unstarted:
            run.job.ran()
        attempt = Attempt(attempt_id, worker, f"{failed.kind}: {failed.message}", lost=False)
        task = run.task
        reason = RetryReason.NOT_BEGUN if unstarted else RetryReason.FAILED
        retried = job_events.TaskRetried(task.task_id, attempt, reason=reason)
        uncounted = replace(retried, counts=False)
        if failed.kind is FailureKind.MEMORY and task.more_memory_bytes > task.needs.memory_bytes:
            if self._goes_on(run, uncounted):
                run.grow()
                self._ready.append(run)
            return False
        if failed.kind is FailureKind.ENVIRONMENT:  # a refusal of its worker
            return self._goes_on(run, uncounted)
        run.record_failure(attempt)
        failures = sum(not each.lost for each in run.attempts)
        # One worker may lack a package that others have. What two lack is sent by none.
        again_missing = lacks_module(failed) and before is not None and lacks_module(before)
        # Its worker keeps the result, which is larger than its caller takes: so is the next.
        kept = failed.kind is FailureKind.OUTPUT and is_large(task.needs.driver, failed.result)
        hopeless = failed.kind is FailureKind.INVALID or again_missing or kept
        final = hopeless or failures >= run.job.job.options.attempts
        return self._goes_on(run, retried, final)

    def not_tried(self, run: TaskRun, failed: TaskRun) -> None:
        """Another task of its job has `failed` wherever it could, before its own code ran, and so
        have all that were tried."""
        last = failed.attempts[-1]
        why = f"{job_events.NOT_TRIED}{last.why}"
        run.record_failure(Attempt("", last.worker, why, lost=False))
        kind = None if failed.last_failure is None else failed.last_failure.kind
        self._give_up(run, kind, b"")

    def input_lost(self, run: TaskRun, attempt_id: str, worker: PeerId, failed: Failed) -> bool:
        """Its worker could not have a file of another task: that one is run again where the file
        is lost. Returns whether the task is to be placed again."""
        run.failed(failed)
        attempt = Attempt(attempt_id, worker, f"{failed.kind}: {failed.message}", lost=True)
        run.record_failure(attempt)
        losses, never = sum(each.lost for each in run.attempts), run.job.outputs.never(run.task)
        final = losses >= self._parameters.max_lost or never is not None
        reason = RetryReason.NOT_BEGUN
        retried = job_events.TaskRetried(run.task.task_id, attempt, reason=reason)
        if not self._goes_on(run, retried, final):
            return False
        name = failed.result.decode(errors="replace")
        for maker, keeper in run.job.outputs.lost(run, name, worker):
            maker.move("output lost")
            self.holders.reopened(maker)
            self.notify(run.job, job_events.TaskReopened(maker.task.task_id, keeper))
            if maker.bind():
                self._ready.append(maker)
        self._unbound[run.job] = None
        return True

    def lost(
        self,
        run: TaskRun,
        attempt_id: str,
        worker: PeerId,
        why: str,
        *,
        counts: bool,
        reason: RetryReason = RetryReason.MAY_HAVE_RUN,
    ) -> bool:
        """Its worker was lost, or its result. That counts where it ran, not where it waited there
        behind another, or the worker had to make room. Returns whether the task is to be placed
        again."""
        self.checkpoints.lost(run)
        attempt = Attempt(attempt_id, worker, why, lost=True)
        if counts:
            run.record_failure(attempt)
        losses = sum(each.lost for each in run.attempts)
        final = counts and losses >= self._parameters.max_lost
        retried = job_events.TaskRetried(run.task.task_id, attempt, counts, reason)
        return self._goes_on(run, retried, final)

    def answered(self, run: TaskRun, answer: Answer) -> bool:
        """A copy brought an answer, and more are needed. Returns whether another is to be
        placed."""
        run.job.ran()
        return self._goes_on(run, job_events.TaskAnswered(run.task.task_id, answer))

    def disagreed(
        self,
        run: TaskRun,
        answers: tuple[Answer, ...],
        reasons: tuple[tuple[PeerId, Refusal], ...],
        problem: str = "",
    ) -> None:
        disagreed = job_events.TaskDisagreed(run.task.task_id, answers, reasons, problem)
        self._end(run, "give up", disagreed)

    def recalled(self, run: TaskRun, attempt_id: str) -> bool:
        """It was taken back before it began. Returns whether the task is to be placed again."""
        return self._goes_on(run, job_events.TaskRecalled(run.task.task_id, attempt_id))

    def moved(self, run: TaskRun, attempt_id: str, worker: PeerId, why: str) -> bool:
        """It was given notice, has saved what it has, and goes on elsewhere. Returns whether it is
        to be placed again."""
        self.checkpoints.moved(run)
        run.leaves(worker)
        attempt = Attempt(attempt_id, worker, why, lost=False)
        reason = RetryReason.MOVED
        moved = job_events.TaskRetried(run.task.task_id, attempt, counts=False, reason=reason)
        return self._goes_on(run, moved)

    def stopped(self, run: TaskRun) -> None:
        """Nothing of it is in flight, and its job does not want it any more."""
        if run.job.state is JobState.CANCELLED:
            self.cancelled(run)
        else:
            self._give_up(run, FailureKind.DEADLINE, b"")

    def stop_blocked(self, job: JobRun) -> None:
        """The job does not want them any more."""
        for run in job.blocked.drain():
            self.stopped(run)

    def gang_ended(self, run: TaskRun, why: str) -> None:
        """It was for a member of a gang that has ended."""
        self._give_up(run, FailureKind.GANG, why.encode())

    def upstream_failed(self, job: JobRun, task_id: str) -> None:
        """A task brought no result: nor will those that wait for it, themselves or by way of
        others."""
        for run in job.blocked.upstream_failed(task_id):
            run.move("give up")
            job.outputs.gave_up(run.task.task_id)
            upstream = FailureKind.UPSTREAM
            self.notify(
                job, job_events.TaskGaveUp(run.task.task_id, (), upstream, b"", waited_for=task_id)
            )

    def _goes_on(self, run: TaskRun, event: JobEvent, final: bool = False) -> bool:
        if run.copies:  # another attempt of it is in flight, and may yet bring its result
            self.notify(run.job, event)
            return False
        if not run.job.is_wanted:
            self.stopped(run)
            return False
        if final:
            last = run.last_failure
            kind, result = (None, b"") if last is None else (last.kind, last.result)
            self._give_up(run, kind, result)
            return False
        run.move("retry")
        self.notify(run.job, event)
        return True

    def _give_up(self, run: TaskRun, kind: FailureKind | None, result: bytes) -> None:
        self._end(
            run, "give up", job_events.TaskGaveUp(run.task.task_id, run.attempts, kind, result)
        )

    def _end(self, run: TaskRun, how: str, event: JobEvent) -> None:
        if not run.move(how):
            return
        self.notify(run.job, event)
        self.checkpoints.ended(run)
        task_id, job = run.task.task_id, run.job
        if run.state is not TaskState.SUCCEEDED:
            job.outputs.gave_up(task_id)
            if job.blocked:
                self.upstream_failed(job, task_id)
        elif job.blocked:
            for each in job.blocked.succeeded(task_id):
                self._unblocked(each)
        self.close(job)

    def _unblocked(self, run: TaskRun) -> None:
        """All that it waited for have succeeded. One of them may have been run again since, for the
        files that it made."""
        if (never := run.job.outputs.never(run.task)) is not None:
            run.block((never,))
            self.upstream_failed(run.job, never)
        elif run.bind():
            run.move("ready")
            self._ready.append(run)

    def close(self, job: JobRun) -> None:
        """Report the end of a job of which every task has ended."""
        if job.is_over:
            self.notify(job, job_events.JobEnded(*(job.ended[state] for state in ENDED)))
            self.holders.over(job)
            del self.runs[job.job.job_id]

    def validate(self) -> None:
        """Raises InvariantBroken."""
        for job_id, run in self.runs.items():
            ensure(not run.is_over, f"{job_id} is over, and kept")
