"""The jobs under way: what each tells, what an attempt without a result means, when it is over."""

from __future__ import annotations

from typing import Final

from formation_p2p.dispatch.job_events import (
    Attempt,
    JobEnded,
    JobEvent,
    TaskCancelled,
    TaskGaveUp,
    TaskRetried,
    TaskSucceeded,
    TaskUnplaceable,
    Tell,
)
from formation_p2p.dispatch.task_run import JobRun, TaskRun, TaskState
from formation_p2p.effects import Effect
from formation_p2p.errors import InvalidInput
from formation_p2p.identity import PeerId
from formation_p2p.refusals import Refusal
from formation_p2p.workload.outcome import Failed, FailureKind
from formation_p2p.workload.task import Job

# Jobs under way at once: each holds its tasks in memory.
MAX_JOBS: Final = 1_000
# A task that takes its worker down with it is not sent to a sixth one.
MAX_LOST: Final = 5


class Jobs:
    """`begin` a job; report how each of its tasks fares; then `take` what it tells."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobRun] = {}
        self._told: list[Effect] = []

    def begin(self, job: Job) -> JobRun:
        """Raises InvalidInput where too many jobs are under way, or this one already is."""
        if job.job_id in self._jobs:
            raise InvalidInput("job", f"{job.job_id} is under way already")
        if len(self._jobs) >= MAX_JOBS:
            raise InvalidInput("job", f"{MAX_JOBS} are under way; wait for one to end")
        run = self._jobs[job.job_id] = JobRun(job)
        return run

    def named(self, job_id: str) -> JobRun | None:
        return self._jobs.get(job_id)

    def take(self) -> list[Effect]:
        told, self._told = self._told, []
        return told

    def tell(self, job: JobRun, event: JobEvent) -> None:
        self._told.append(Tell(job.job.job_id, event, cause=type(event).__name__))

    # -- how a task ends ------------------------------------------------------------------------

    def succeeded(self, run: TaskRun, worker: PeerId, result: bytes, ran_ms: int) -> None:
        self._end(run, "success", TaskSucceeded(run.task.task_id, worker, result, ran_ms))

    def unplaceable(self, run: TaskRun, reasons: tuple[tuple[PeerId, Refusal], ...]) -> None:
        self._end(run, "nobody", TaskUnplaceable(run.task.task_id, reasons))

    def cancelled(self, run: TaskRun) -> None:
        self._end(run, "cancel", TaskCancelled(run.task.task_id))

    # -- how an attempt ends without a result -----------------------------------------------------

    def failed(self, run: TaskRun, worker: PeerId, failed: Failed) -> bool:
        """It ran, and failed. Returns whether the task is to be placed again."""
        run.last_failure = failed
        attempt = Attempt(worker, f"{failed.kind}: {failed.message}", lost=False)
        run.attempts.append(attempt)
        final = failed.kind is FailureKind.INVALID or run.failures >= run.task.max_attempts
        return self._goes_on(run, attempt, final)

    def lost(self, run: TaskRun, worker: PeerId, why: str) -> bool:
        """Its worker was lost while it ran. Returns whether the task is to be placed again."""
        attempt = Attempt(worker, why, lost=True)
        run.attempts.append(attempt)
        return self._goes_on(run, attempt, run.losses >= MAX_LOST)

    def returned(self, run: TaskRun, worker: PeerId, why: str) -> bool:
        """Its worker was lost while it waited there behind another: it had no part in that, and
        it does not count. Returns whether the task is to be placed again."""
        return self._goes_on(run, Attempt(worker, why, lost=True), final=False)

    # -- the insides ------------------------------------------------------------------------------

    def _goes_on(self, run: TaskRun, attempt: Attempt, final: bool) -> bool:
        if run.job.cancelled:
            self.cancelled(run)
            return False
        if final:
            last = run.last_failure
            gave_up = TaskGaveUp(
                run.task.task_id,
                tuple(run.attempts),
                None if last is None else last.kind,
                b"" if last is None else last.result,
            )
            self._end(run, "give up", gave_up)
            return False
        run.move("retry")
        self.tell(run.job, TaskRetried(run.task.task_id, attempt))
        return True

    def _end(self, run: TaskRun, how: str, event: JobEvent) -> None:
        if not run.move(how):
            return
        self.tell(run.job, event)
        if run.job.is_over:
            ended = run.job.ended
            over = JobEnded(
                ended[TaskState.SUCCEEDED],
                ended[TaskState.FAILED],
                ended[TaskState.UNPLACEABLE],
                ended[TaskState.CANCELLED],
            )
            self.tell(run.job, over)
            del self._jobs[run.job.job.job_id]
