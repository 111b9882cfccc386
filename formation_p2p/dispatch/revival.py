"""The tasks that an earlier life of a scheduler left, as this one goes on with them."""

from __future__ import annotations

from formation_p2p.dispatch.saved import SavedJob
from formation_p2p.dispatch.task_run import JobRun, TaskRun


def revive(saved: SavedJob, job: JobRun, life: str) -> list[TaskRun]:
    """Those still to be done. `job` has just begun; what has ended counts for it, and is not told
    again.

    `life` goes with the ids of attempts from now on: some of those before may not be known.
    """
    job.life = life
    begun = {each.task_id: each for each in saved.begun}
    runs: list[TaskRun] = []
    for task in saved.job.tasks:
        known = begun.get(task.task_id)
        if known is not None and known.ended is not None:
            job.ended[known.ended] += 1
            continue
        run = TaskRun(task, job, task.key)
        if known is not None:
            run.tried, run.attempts = known.tried, known.attempts
        runs.append(run)
    return runs
