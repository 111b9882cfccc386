"""The status of a task in a build's words, from assessed to completed, each with its reason.

A task fails or is cancelled from any status before completed. The words are those of Formation's
tasks: "pending assessment" while it is decided which worker is responsible, "assigned" once that is
known, "claimed" when a worker has leased what the task needs and was sent it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.job_events import (
    JobEvent,
    JobWaits,
    TaskAnswered,
    TaskBegan,
    TaskCancelled,
    TaskDisagreed,
    TaskGaveUp,
    TaskPlaced,
    TaskRecalled,
    TaskReopened,
    TaskRetried,
    TaskSucceeded,
    TaskUnplaceable,
)
from formation_p2p.placement.core.decision import Decision


class TaskStatus(StrEnum):
    PENDING_ASSESSMENT = "pending assessment"
    ASSIGNED = "assigned"
    CLAIMED = "claimed"
    IN_PROGRESS = "in progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_S: Final = TaskStatus
STATUS_TRANSITIONS: Final[dict[TaskStatus, dict[str, TaskStatus]]] = {
    _S.PENDING_ASSESSMENT: {"assess": _S.ASSIGNED},
    _S.ASSIGNED: {"assess": _S.ASSIGNED, "claim": _S.CLAIMED, "again": _S.PENDING_ASSESSMENT},
    _S.CLAIMED: {"begin": _S.IN_PROGRESS, "again": _S.PENDING_ASSESSMENT},
    _S.IN_PROGRESS: {"complete": _S.COMPLETED, "again": _S.PENDING_ASSESSMENT},
    _S.COMPLETED: {"again": _S.PENDING_ASSESSMENT},
}


@dataclass(frozen=True, slots=True)
class StatusChange:
    task_id: str
    status: TaskStatus
    reason: str


class Statuses:
    """Of the tasks of one job. `named` is how people call a worker, or a task by its id."""

    def __init__(self, task_ids: Iterable[str], named: Callable[[str], str]) -> None:
        self._named = named
        self._now = dict.fromkeys(task_ids, TaskStatus.PENDING_ASSESSMENT)
        self._in_flight = Counter[str]()  # attempts of each task

    def of(self, task_id: str) -> TaskStatus:
        return self._now[task_id]

    def assessed(self, task_id: str, decision: Decision) -> list[StatusChange]:
        """It is known which workers could run it. That comes beside the events of the job: it has
        no effect on a task that is further already."""
        if self._now[task_id] is not TaskStatus.PENDING_ASSESSMENT or not decision.ranked:
            return []
        capable = len(decision.ranked)
        free = [each for each in decision.ranked if each.lacking is None]
        first = (free or decision.ranked)[0]
        workers = "1 worker is" if capable == 1 else f"{capable} workers are"
        how = "the nearest" if decision.policy == "xor" else f"the best by {decision.policy}"
        room = f"{len(free)} with room" if free else "none with room yet"
        name = self._named(first.profile.peer_id)
        return [self._move(task_id, "assess", f"to {name}: {workers} capable, {room}; it is {how}")]

    def observed(self, event: JobEvent) -> list[StatusChange]:
        """What an event of the job changes."""
        match event:
            case TaskPlaced(task_id, _, worker, lease_id, nearest):
                self._in_flight[task_id] += 1
                name = self._named(worker)
                how = "the responsible one" if nearest else "the first that was free"
                changes = []
                if self._now[task_id] is TaskStatus.PENDING_ASSESSMENT:
                    changes.append(self._move(task_id, "assess", f"to {name}, {how}"))
                if self._now[task_id] is TaskStatus.ASSIGNED:  # else a second attempt of it
                    reason = f"by {name}, {how}, under the lease {lease_id}"
                    changes.append(self._move(task_id, "claim", reason))
                return changes
            case TaskBegan(task_id, worker):
                return self._began(task_id, worker)
            case TaskSucceeded(task_id, worker, _, ran_ms):
                began = self._began(task_id, worker)
                reason = f"on {self._named(worker)}, in {ran_ms / 1000:.1f} s"
                return [*began, self._move(task_id, "complete", reason)]
            case TaskRetried(task_id, attempt):
                how = "lost on" if attempt.lost else "failed on"
                reason = f"{how} {self._named(attempt.worker)}: {attempt.why}; it is placed again"
                return [self._again(task_id, reason)]
            case TaskAnswered(task_id, answer):
                reason = f"{self._named(answer.worker)} has answered; more answers are needed"
                return [self._again(task_id, reason)]
            case TaskDisagreed(task_id):
                return [self._end(task_id, TaskStatus.FAILED, event.why)]
            case TaskRecalled(task_id):
                reason = "taken back before it began; it is placed again"
                return [self._again(task_id, reason)]
            case TaskReopened(task_id, worker):
                reason = f"its result is lost with {self._named(worker)}; it runs again"
                return [self._move(task_id, "again", reason)]
            case TaskGaveUp(task_id, attempts, _, _, waited_for):
                why = attempts[-1].why if attempts else "its deadline passed"
                if waited_for:
                    why = f"it waited for {self._named(waited_for)}, which has no result"
                return [self._end(task_id, TaskStatus.FAILED, why)]
            case TaskUnplaceable(task_id, reasons):
                first = next((f": {why}" for _, why in reasons), "")
                return [self._end(task_id, TaskStatus.FAILED, f"no worker can run it{first}")]
            case TaskCancelled(task_id):
                return [self._end(task_id, TaskStatus.CANCELLED, "it was cancelled")]
            case JobWaits(awaited):
                pending = (x for x, s in self._now.items() if s is TaskStatus.PENDING_ASSESSMENT)
                return [
                    StatusChange(x, TaskStatus.PENDING_ASSESSMENT, f"it waits for {awaited}")
                    for x in pending
                ]
            case _:
                return []

    def _began(self, task_id: str, worker: PeerId) -> list[StatusChange]:
        if self._now[task_id] is not TaskStatus.CLAIMED:
            return []
        return [self._move(task_id, "begin", f"on {self._named(worker)}")]

    def _again(self, task_id: str, reason: str) -> StatusChange:
        """An attempt has ended; another one of the task may be in flight."""
        self._in_flight[task_id] -= 1
        if self._in_flight[task_id] > 0:
            return StatusChange(task_id, self._now[task_id], reason)
        return self._move(task_id, "again", reason)

    def _move(self, task_id: str, event: str, reason: str) -> StatusChange:
        now = self._now[task_id]
        status = self._now[task_id] = STATUS_TRANSITIONS.get(now, {}).get(event, now)
        return StatusChange(task_id, status, reason)

    def _end(self, task_id: str, status: TaskStatus, reason: str) -> StatusChange:
        self._now[task_id] = status
        return StatusChange(task_id, status, reason)
