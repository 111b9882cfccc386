"""How tasks ended, from the events of their job: also in a process that has no node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from formation_p2p.api.tracebacks import with_lines
from formation_p2p.code.packages import naming_package
from formation_p2p.code.untracked import missed_in
from formation_p2p.core.errors import (
    Disagreement,
    FormationError,
    ResultTooLarge,
    TaskFailed,
    Unauthorized,
    Unplaceable,
)
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Denied, Refusal, TooClose
from formation_p2p.jobs.core.job_events import (
    Answer,
    Attempt,
    CodeSent,
    JobEvent,
    TaskCancelled,
    TaskDisagreed,
    TaskEnd,
    TaskGaveUp,
    TaskPlaced,
    TaskRecalled,
    TaskReopened,
    TaskSucceeded,
    TaskUnplaceable,
)
from formation_p2p.machine.names import named, with_names
from formation_p2p.workload.core.blob import Content
from formation_p2p.workload.core.outcome import FailureKind

NONE_FOUND: Final = (
    "no worker was found; is one running in this network? `formation status` says what is wrong "
    "here"
)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How one task ended: exactly one of succeeded, failed, disagreed, unplaceable and
    cancelled.

    `result` is the driver's encoding. `attempts` counts all that were started; `reasons` tell
    of those that brought nothing; `refusals` is why each worker did not take it. `waited_for` is
    the label, or else the id, of the task that brought no result, where this one never ran because
    of that. `nearest` is whether it ran where it waited: see TaskPlaced. Of the large result of a
    call, `result` is a record, and `content` what lay with its worker; `value_of` reads both.
    `answers` are those of which too few are the same, and `problem` is what was wrong with the
    function that compared them, or with this machine where no worker was found. `left_out` is that
    of the code that went along: see Code.
    """

    task_id: str
    label: str
    status: str
    worker: PeerId | None = None
    result: bytes = b""
    ran_ms: int = 0
    attempts: int = 0
    nearest: bool = False
    reasons: tuple[Attempt, ...] = ()
    refusals: tuple[tuple[PeerId, Refusal], ...] = ()
    kind: FailureKind | None = None
    waited_for: str = ""
    content: Content | None = field(default=None, compare=False, repr=False)
    answers: tuple[Answer, ...] = ()
    problem: str = ""
    left_out: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def error(self) -> FormationError | None:
        """What to raise for a task that brought no result, None for one that did."""
        who = f"task {self.task_id}" + (f" ({self.label})" if self.label else "")
        match self.status:
            case "succeeded":
                return None
            case "failed" if self.kind is FailureKind.DEADLINE:
                return TaskFailed(f"{who} did not end before its job's deadline; allow it longer")
            case "failed" if self.kind is FailureKind.GANG:
                return TaskFailed(f"{who}: {self.result.decode(errors='replace')}")
            case "failed" if self.waited_for:
                return TaskFailed(
                    f"{who} did not run: it waited for {self.waited_for}, which brought no result"
                )
            case "failed":
                last = self.reasons[-1]
                told = naming_package(with_lines(last.why))
                why = f"{who} failed on {named(last.worker)}: {told}"
                if told := missed_in(last.why, self.left_out):
                    why = f"{why.rstrip()}\n{told}"
                from formation_p2p.workload.core.parcel import kept_size

                if (size := kept_size(self.kind, self.result)) is not None:
                    return ResultTooLarge(why, last.worker, size, self.result)
                return TaskFailed(why)
            case "disagreed":
                return self._disagreement(who)
            case "cancelled":
                return TaskFailed(f"{who} was cancelled")
            case _:
                return self._unplaceable(who)

    def _disagreement(self, who: str) -> Disagreement:
        pairs = [(str(each.worker), each.result) for each in self.answers]
        workers = ", ".join(named(worker) for worker, _ in pairs)
        why = f"{who}: too few of its {len(pairs)} answers are the same, of {workers}"
        if len(pairs) == 1:
            why = f"{who}: only {workers} has answered"
        if self.refusals:
            listed = "; ".join(
                f"{named(worker)} {with_names(refusal)}" for worker, refusal in self.refusals
            )
            why += f"; no other worker may give one: {listed}"
            if any(isinstance(each, TooClose) and each.mark for _, each in self.refusals):
                why += "; with apart=() machines of one owner check each other"
        if self.problem:
            why += f"; they could not be compared: {self.problem}"
        return Disagreement(f"{why}. `answers` of this error has all of them", pairs)

    def _unplaceable(self, who: str) -> Unplaceable:
        reasons = {str(peer_id): str(refusal) for peer_id, refusal in self.refusals}
        listed = "; ".join(f"{named(peer_id)}: {why}" for peer_id, why in reasons.items())
        if not reasons:
            why = f"no worker was found: {self.problem}" if self.problem else NONE_FOUND
            return Unplaceable(f"{who}: {why}")
        if all(isinstance(refusal, Denied) for _, refusal in self.refusals):
            return Unauthorized(f"{who}: every worker refused the grant. {listed}", reasons)
        return Unplaceable(f"{who}: no worker can run it. {listed}", reasons)


def result_of(end: TaskEnd, label: str = "", placed: Sequence[TaskPlaced] = ()) -> TaskResult:
    """How a task ended, with what was told of where it was placed."""
    match end:
        case TaskSucceeded(task_id, worker, result, ran_ms):
            nearest = next((p.nearest for p in reversed(placed) if p.worker == worker), False)
            return TaskResult(
                task_id,
                label,
                "succeeded",
                worker,
                result,
                ran_ms,
                len(placed),
                nearest,
                content=end.content,
            )
        case TaskGaveUp(task_id, attempts, kind, result, waited_for):
            return TaskResult(
                task_id,
                label,
                "failed",
                attempts[-1].worker if attempts else None,
                result,
                attempts=len(placed),
                reasons=attempts,
                kind=kind,
                waited_for=waited_for,
            )
        case TaskDisagreed(task_id, answers, reasons, problem):
            return TaskResult(
                task_id,
                label,
                "disagreed",
                attempts=len(placed),
                refusals=reasons,
                answers=answers,
                problem=problem,
            )
        case TaskUnplaceable(task_id, reasons):
            problem = "; ".join(end.troubles)
            return TaskResult(task_id, label, "unplaceable", refusals=reasons, problem=problem)
        case TaskCancelled(task_id):
            return TaskResult(task_id, label, "cancelled")


class TaskEnds:
    """Of a job: where its tasks were placed, and how they ended. A TaskResult is made when it is
    asked for. `labels` are those of its tasks, by their ids, in their order."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._placed: dict[str, tuple[TaskPlaced, ...]] = {}
        self._ends: dict[str, TaskEnd] = {}
        self._left_out: tuple[str, ...] = ()

    def notify(self, event: JobEvent) -> None:
        """Cheap: it is called for every event of every task."""
        if type(event) is TaskPlaced:
            self._placed[event.task_id] = (*self._placed.get(event.task_id, ()), event)
        elif type(event) is TaskSucceeded or isinstance(event, TaskEnd):
            self._ends[event.task_id] = event
        elif type(event) is TaskRecalled:
            self._placed[event.task_id] = self._placed[event.task_id][:-1]
        elif type(event) is TaskReopened:
            self._ends.pop(event.task_id, None)
        elif type(event) is CodeSent:
            self._left_out = event.code.left_out

    def result(self, task_id: str) -> TaskResult | None:
        """None while it has not ended."""
        return self._of(task_id) if task_id in self._ends else None

    def results(self) -> tuple[TaskResult, ...]:
        """Of all tasks, once they have ended."""
        return tuple(map(self._of, self._labels))

    def _of(self, task_id: str) -> TaskResult:
        labels = self._labels
        result = result_of(self._ends[task_id], labels[task_id], self._placed.get(task_id, ()))
        if self._left_out:
            result = replace(result, left_out=self._left_out)
        if result.waited_for:
            result = replace(result, waited_for=labels[result.waited_for] or result.waited_for)
        return result
