"""A job and its tasks as the scheduler sees them, and the states that a task goes through."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from formation_p2p.core.dispatch.blocked import Blocked
from formation_p2p.core.dispatch.job import Job
from formation_p2p.core.dispatch.job_events import Attempt
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import Key
from formation_p2p.core.placement.scheduling_key import SchedulingKey
from formation_p2p.core.workload.outcome import Failed
from formation_p2p.core.workload.task import Task


class TaskState(StrEnum):
    BLOCKED = "blocked"
    WAITING = "waiting"
    DISPATCHED = "dispatched"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNPLACEABLE = "unplaceable"
    CANCELLED = "cancelled"


TRANSITIONS: Final = {
    TaskState.BLOCKED: {
        "ready": TaskState.WAITING,
        "give up": TaskState.FAILED,
        "cancel": TaskState.CANCELLED,
    },
    TaskState.WAITING: {
        "dispatch": TaskState.DISPATCHED,
        "nobody": TaskState.UNPLACEABLE,
        "give up": TaskState.FAILED,
        "cancel": TaskState.CANCELLED,
    },
    TaskState.DISPATCHED: {
        "success": TaskState.SUCCEEDED,
        "retry": TaskState.WAITING,
        "give up": TaskState.FAILED,
        "cancel": TaskState.CANCELLED,
    },
}


@dataclass(slots=True, eq=False)
class TaskRun:
    """`attempts` are those that brought no result; `tried` counts all, and names the next.

    `copies` are under way: more than one where a second attempt is to overtake the first.
    `printed_bytes` are those of the attempts under way.
    """

    task: Task
    job: JobRun
    key: Key
    state: TaskState = TaskState.WAITING
    attempts: tuple[Attempt, ...] = ()  # a hundred thousand of these wait without any
    tried: int = 0
    copies: int = 0
    last_failure: Failed | None = None
    printed_bytes: int = 0

    def move(self, event: str) -> bool:
        """Follow the table; False where the state has no such way out. Counts for the job."""
        state = TRANSITIONS.get(self.state, {}).get(event)
        if state is None:
            return False
        self.state = state
        if state not in TRANSITIONS:
            self.job.ended[state] += 1
        return True

    @property
    def scheduling_key(self) -> SchedulingKey:
        return self.job.job.options.scheduling_key(self.task.needs)

    @property
    def can_grow(self) -> bool:
        """Whether how much memory it needs was learnt, and not said, and may be more."""
        return self.task.more_memory_bytes > self.task.needs.memory_bytes

    def grow(self) -> None:
        """Ask for more memory, once. It is one of another group then."""
        needs = replace(self.task.needs, memory_bytes=self.task.more_memory_bytes)
        self.task = replace(self.task, needs=needs, more_memory_bytes=0)

    @property
    def failures(self) -> int:
        return sum(not attempt.lost for attempt in self.attempts)

    @property
    def losses(self) -> int:
        return sum(attempt.lost for attempt in self.attempts)

    @property
    def is_wanted(self) -> bool:
        """Whether a result of an attempt under way would count, and its job wants it."""
        return self.state is TaskState.DISPATCHED and not (self.job.cancelled or self.job.overdue)

    def avoids(self, worker: PeerId) -> bool:
        """Whether an attempt there brought no result: elsewhere first."""
        # Asked twice of every task, most of which have none.
        return bool(self.attempts) and any(each.worker == worker for each in self.attempts)


@dataclass(slots=True, eq=False)
class JobRun:
    """`due_s` is its deadline, on this machine's monotonic clock. `life` ends the names of its
    attempts, so that no two lives of a scheduler use one twice."""

    job: Job
    life: str = ""
    timeout_ms: int = field(init=False)  # of an attempt; 0 for no limit
    due_s: float = float("inf")
    cancelled: bool = False
    overdue: bool = False
    blocked: Blocked = field(default_factory=Blocked)
    ended: dict[TaskState, int] = field(
        default_factory=lambda: {
            TaskState.SUCCEEDED: 0,
            TaskState.FAILED: 0,
            TaskState.UNPLACEABLE: 0,
            TaskState.CANCELLED: 0,
        }
    )

    def __post_init__(self) -> None:
        timeout_s = self.job.options.timeout_s
        self.timeout_ms = 0 if timeout_s is None else max(1, round(timeout_s * 1000))

    @property
    def is_over(self) -> bool:
        return sum(self.ended.values()) == len(self.job.tasks)
