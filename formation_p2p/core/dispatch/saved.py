"""What a scheduler leaves for its next incarnation, and how that goes on with it."""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.dispatch.job import Job
from formation_p2p.core.dispatch.job_events import Attempt
from formation_p2p.core.dispatch.task_run import JobRun, TaskRun, TaskState
from formation_p2p.core.effects import Contact
from formation_p2p.core.resources.requirements import Requirements


@dataclass(frozen=True, slots=True)
class SavedTask:
    """A task that has been begun: `tried` attempts were placed, `attempts` brought nothing.

    `ended` is how it ended; None while it is still to be done.
    """

    task_id: str
    tried: int
    attempts: tuple[Attempt, ...]
    ended: TaskState | None


@dataclass(frozen=True, slots=True)
class SavedJob:
    """`begun` are those of the job's tasks of which there is more to know than that they wait."""

    job: Job
    begun: tuple[SavedTask, ...]


@dataclass(frozen=True, slots=True)
class SavedLease:
    """A lease that was held, and the attempts in flight on it: their ids and their tasks'."""

    lease_id: str
    lessor: Contact
    needs: Requirements
    priority: int
    fence: int
    device_ids: tuple[str, ...]
    attempts: tuple[tuple[str, str], ...]


def revive(saved: SavedJob, job: JobRun) -> tuple[list[TaskRun], list[str]]:
    """The tasks to be done now, and the ids of those that brought no result: those that wait for
    one of these may not know it yet. `job` has just begun; what has ended counts for it, and is not
    reported again."""
    begun = {each.task_id: each for each in saved.begun}
    ended = {each.task_id: each.ended for each in saved.begun if each.ended is not None}
    runs: list[TaskRun] = []
    for task in saved.job.tasks:
        known = begun.get(task.task_id)
        before = {x: None for x in task.after if ended.get(x) is not TaskState.SUCCEEDED}
        if known is None and before:
            TaskRun(task, job, task.key).block(before)
        elif known is None:
            runs.append(TaskRun(task, job, task.key))
        elif known.ended is None:
            tried, attempts = known.tried, known.attempts
            runs.append(TaskRun(task, job, task.key, tried=tried, attempts=attempts))
        else:
            job.count(known.ended)
    return runs, [task_id for task_id, how in ended.items() if how is not TaskState.SUCCEEDED]
