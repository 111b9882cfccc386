"""What a scheduler leaves for its next incarnation, and how that goes on with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import Answer, Attempt
from formation_p2p.jobs.core.task_run import JobRun, TaskRun, TaskState
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.checkpoint import Checkpoint
from formation_p2p.workload.core.inputs_from import outputs_of


@dataclass(frozen=True, slots=True)
class SavedTask:
    """A task that has been begun: `tried` attempts were placed, `attempts` brought nothing.

    `ended` is how it ended; None while it is still to be done. Where it succeeded, and is one of
    `with_outputs`, `outputs` are its files, and `worker` keeps them. `checkpoint` is the newest
    that was held, `answers` are those of its copies.
    """

    task_id: str
    tried: int
    attempts: tuple[Attempt, ...]
    ended: TaskState | None
    worker: PeerId | None = None
    outputs: Mapping[str, Blob] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    answers: tuple[Answer, ...] = ()


@dataclass(frozen=True, slots=True)
class SavedJob:
    """`begun` are those of the job's tasks of which there is more to know than that they wait."""

    job: Job
    begun: tuple[SavedTask, ...]


@dataclass(frozen=True, slots=True)
class SavedLease:
    """A lease that was held, and the attempts in flight on it: their ids and their tasks'.
    `marks` are as for ActiveLease."""

    lease_id: str
    lessor: Contact
    needs: Requirements
    priority: int
    fence: int
    device_ids: tuple[str, ...]
    attempts: tuple[tuple[str, str], ...]
    marks: tuple[str, ...] | None = None


def with_outputs(job: Job) -> frozenset[str]:
    """The tasks whose files the next incarnation is to know: those that others read, and those that
    several workers hold."""
    if job.options.copies > 1:
        return frozenset(task.task_id for task in job.tasks)
    return frozenset(each.task_id for task in job.tasks for each in task.inputs_from)


def files_in(result: bytes) -> Mapping[str, Blob]:
    """Those that a result names: none where it is not one of a process."""
    try:
        return outputs_of(result)
    except InvalidInput:
        return {}


@dataclass(frozen=True, slots=True)
class Revived:
    """Of a job: the tasks that are `left` to be done now, the ids of those that `failed`, since
    who waits for one of these may not know it yet, and what those that succeeded have `made`: the
    worker, and the files."""

    left: list[TaskRun]
    failed: list[str]
    made: list[tuple[TaskRun, PeerId, Mapping[str, Blob]]]


def revive(saved: SavedJob, job: JobRun) -> Revived:
    """`job` has just begun; what has ended counts for it, and is not reported again."""
    begun = {each.task_id: each for each in saved.begun}
    ended = {each.task_id: each.ended for each in saved.begun if each.ended is not None}
    runs: list[TaskRun] = []
    made: list[tuple[TaskRun, PeerId, Mapping[str, Blob]]] = []
    unknown = SavedTask("", 0, (), None)
    for task in saved.job.tasks:
        known = begun.get(task.task_id, unknown)
        state = known.ended or TaskState.WAITING
        run = TaskRun(task, job, task.key, state, known.attempts, known.tried)
        if known.ended is None and job.job.options.quorum is not None:
            for answer in known.answers:
                run.voting.add(answer)
        if known.ended is not None:
            job.count(task, known.ended)
            if known.worker is not None:
                job.outputs.made(run, known.worker, known.outputs)
                made.append((run, known.worker, known.outputs))
            if known.ended is not TaskState.SUCCEEDED:
                job.outputs.gave_up(task.task_id)
        elif before := {x: None for x in task.after if ended.get(x) is not TaskState.SUCCEEDED}:
            run.block(before)
        else:
            runs.append(run)
    for run in runs:
        run.bind()
    failed = [task_id for task_id, how in ended.items() if how is not TaskState.SUCCEEDED]
    return Revived(runs, failed, made)
