"""A job: the tasks that a person submits together, and the options that they share."""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import shown
from formation_p2p.placement.core.task_options import DEFAULT_OPTIONS, TaskOptions
from formation_p2p.workload.core.code_bundle import Code
from formation_p2p.workload.core.derive import refuse_cycles, refuse_many
from formation_p2p.workload.core.work import MAX_TASKS, Task


@dataclass(frozen=True, slots=True)
class Job:
    """Each task has its own needs; `options` hold for all of them. `code` is what the shared part
    of some refers to, for people to be told. Raises InvalidInput."""

    job_id: str
    tasks: tuple[Task, ...]
    name: str = ""
    options: TaskOptions = DEFAULT_OPTIONS
    code: Code | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.tasks) <= MAX_TASKS:
            raise InvalidInput("tasks", f"a job has 1 to {MAX_TASKS} tasks, not {len(self.tasks)}")
        if len({task.task_id for task in self.tasks}) < len(self.tasks):
            raise InvalidInput("tasks", "two of them have the same id")
        if self.options.quorum is not None and any(task.member for task in self.tasks):
            problem = "a member of a gang runs its tasks alone; leave it out, or submit to the node"
            raise InvalidInput("quorum", problem)
        if any(task.after or task.inputs_from for task in self.tasks):
            _check_order(self.tasks)

    @property
    def kind(self) -> str:
        """Under which it is remembered which policy was good for it."""
        first = self.tasks[0]
        return first.kind or f"{first.needs.driver} {self.name}".rstrip()


def _check_order(tasks: tuple[Task, ...]) -> None:
    """That each waits for others of its job alone, and none for itself in the end."""
    index = {task.task_id: number for number, task in enumerate(tasks)}
    refuse_many(sum(len(task.after) for task in tasks))
    unknown = next((name for task in tasks for name in task.after if name not in index), None)
    if unknown is not None:
        raise InvalidInput("after", f"{shown(unknown)} is not a task of this job")
    for task in tasks:
        stray = next((x.task_id for x in task.inputs_from if x.task_id not in task.after), None)
        if stray is not None:
            problem = f"{task.task_id} reads a file of {shown(stray)}, and does not wait for it"
            raise InvalidInput("inputs", problem)
    refuse_cycles(list(index), [tuple(index[name] for name in task.after) for task in tasks])
