"""The tasks that an earlier life of a scheduler left, as this one goes on with them."""

from __future__ import annotations

from formation_p2p.core.dispatch.saved import SavedJob
from formation_p2p.core.dispatch.task_run import JobRun, TaskRun, TaskState


def revive(saved: SavedJob, job: JobRun, life: str) -> tuple[list[TaskRun], list[str]]:
    """Those to be done now, and the ids of those that brought no result: who waits for one of these
    may not know it yet. `job` has just begun; what has ended counts for it, and is not told again.

    `life` goes with the ids of attempts from now on: some of those before may not be known.
    """
    job.life = life
    begun = {each.task_id: each for each in saved.begun}
    ended = {each.task_id: each.ended for each in saved.begun if each.ended is not None}
    runs: list[TaskRun] = []
    for task in saved.job.tasks:
        known = begun.get(task.task_id)
        if known is not None and known.ended is not None:
            job.ended[known.ended] += 1
            continue
        run = TaskRun(task, job, task.key)
        if known is not None:
            run.tried, run.attempts = known.tried, known.attempts
        before = {x: None for x in task.after if ended.get(x) is not TaskState.SUCCEEDED}
        if before and known is None:
            run.state = TaskState.BLOCKED
            job.blocked.add(run, before)
        else:
            runs.append(run)
    return runs, [task_id for task_id, how in ended.items() if how is not TaskState.SUCCEEDED]
