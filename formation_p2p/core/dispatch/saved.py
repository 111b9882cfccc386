"""What a scheduler leaves behind for its next life, and what that begins with."""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.dispatch.job import Job
from formation_p2p.core.dispatch.job_events import Attempt
from formation_p2p.core.dispatch.task_run import TaskState
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
    """A lease that was held, and the attempts under way on it: their ids and their tasks'."""

    lease_id: str
    lessor: Contact
    needs: Requirements
    priority: int
    fence: int
    device_ids: tuple[str, ...]
    attempts: tuple[tuple[str, str], ...]
