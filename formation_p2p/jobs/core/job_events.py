"""What a job reports to its submitter, in the order in which it happens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from formation_p2p.core.effects import Contact, Effect
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Refusal
from formation_p2p.workload.core.blob import Content
from formation_p2p.workload.core.checkpoint import Checkpoint
from formation_p2p.workload.core.code_bundle import Code
from formation_p2p.workload.core.outcome import UNMEASURED, FailureKind, Usage

if TYPE_CHECKING:  # a command that reads events of another process has no use for them
    from formation_p2p.machine.core.requirements import Requirements

# Of a larger result those that remember what happened keep only that there was one: 16,384 of them
# would hold gigabytes.
SMALL_RESULT_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of one task that brought no result. `lost` where the worker vanished with it."""

    attempt_id: str
    worker: PeerId
    why: str
    lost: bool


@dataclass(frozen=True, slots=True)
class TaskPlaced:
    """`nearest`: the task waited for this worker, which keeps most of the files that it reads of
    other tasks, or by XOR is the nearest of all that are capable and were not ruled out by an
    earlier attempt; else another one was free before. Where
    the policy or a hint has tasks wait for no certain worker, it is always false."""

    task_id: str
    attempt_id: str
    worker: PeerId
    lease_id: str
    nearest: bool


@dataclass(frozen=True, slots=True)
class TaskBegan:
    """Told of tasks that run for longer than a moment; those that end at once have just ended."""

    task_id: str
    worker: PeerId


@dataclass(frozen=True, slots=True)
class TaskPrinted:
    """Without `data` the worker asks whether all that came before is read (api/job.py): it waits
    for a reader. `JobHandle.events` answers, and leaves it out."""

    task_id: str
    is_stderr: bool
    data: bytes
    worker: PeerId


@dataclass(frozen=True, slots=True)
class TaskSucceeded:
    """`result` is the driver's encoding; where it is a record (large_result.py), `content` is what
    lay with the worker. Exactly one of these for a task, or one TaskGaveUp; and one more after each
    TaskReopened."""

    task_id: str
    worker: PeerId
    result: bytes
    ran_ms: int
    used: Usage = UNMEASURED
    content: Content | None = field(default=None, compare=False, repr=False)

    def in_brief(self) -> TaskSucceeded:
        """For those that remember what happened: without what it brought, where that is large."""
        small = self.content is None and len(self.result) <= SMALL_RESULT_BYTES
        return self if small else replace(self, result=b"", content=None)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one copy of a task brought, where several workers are to agree. `marks` say what its
    worker has in common with others, such as `org:acme` (trust/core/marks.py)."""

    attempt_id: str
    worker: PeerId
    result: bytes
    ran_ms: int
    marks: tuple[str, ...] = ()
    used: Usage = UNMEASURED
    content: Content | None = field(default=None, compare=False, repr=False)

    def as_result(self, task_id: str) -> TaskSucceeded:
        return TaskSucceeded(
            task_id, self.worker, self.result, self.ran_ms, self.used, self.content
        )

    def in_brief(self) -> Answer:
        """As of TaskSucceeded."""
        small = self.content is None and len(self.result) <= SMALL_RESULT_BYTES
        return self if small else replace(self, result=b"", content=None)


@dataclass(frozen=True, slots=True)
class TaskAnswered:
    """A copy of the task brought an answer, and more are needed: the task is placed again, with
    another worker, unless a copy of it is in flight."""

    task_id: str
    answer: Answer

    def in_brief(self) -> TaskAnswered:
        return replace(self, answer=self.answer.in_brief())


# How the reason begins for which a task was given up without an attempt.
NOT_TRIED: Final = "not tried, since each attempt of its job failed before its own code ran: "


class RetryReason(StrEnum):
    """What is known of an attempt without a result: whether what the task does elsewhere, such as
    writing to a shared folder, may be done twice."""

    FAILED = "failed"  # it ran, and said that it failed
    NOT_BEGUN = "not begun"  # it ended before the task's own code ran
    MAY_HAVE_RUN = "may have run"  # its worker was lost: it ran not at all, in part, or to its end
    RESULT_LOST = "result lost"  # it ran to its end, and its result did not arrive
    MOVED = "moved"  # it was given notice, and goes on elsewhere from what it has saved
    DENIED = "denied"  # its worker ended it, since the grant no longer allows it: it may have run


@dataclass(frozen=True, slots=True)
class TaskRetried:
    """An attempt failed or was lost; the task is placed again, elsewhere if it can be, unless a
    second attempt of it goes on. It `counts` where the task may have had a part in that."""

    task_id: str
    attempt: Attempt
    counts: bool = True
    reason: RetryReason = RetryReason.FAILED


@dataclass(frozen=True, slots=True)
class TaskRecalled:
    """An attempt was taken back before it began, since a worker waits that can run it sooner.
    The task is placed again."""

    task_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class TaskReopened:
    """The files of a task that has succeeded are lost, with the `worker` that kept them or by it,
    and tasks wait for them: its result counts no more, and it is run again."""

    task_id: str
    worker: PeerId


@dataclass(frozen=True, slots=True)
class TaskSaved:
    """This node holds a checkpoint of the task, from which it goes on if it is started again. Told
    anew when others hold it as well: `holders` are those, beside this node and the worker."""

    task_id: str
    checkpoint: Checkpoint
    holders: tuple[PeerId, ...]

    def in_brief(self) -> TaskSaved:
        """As of TaskSucceeded. A task may save twice a second for as long as it runs."""
        if self.checkpoint.content is None:
            return self
        return replace(self, checkpoint=replace(self.checkpoint, content=None))


@dataclass(frozen=True, slots=True)
class TaskGaveUp:
    """The task will bring no result. `attempts` tell why, the last one last: none where its
    job's deadline passed first, or a task brought no result for which it waited, itself or by way
    of others: `waited_for` is that one's id then. `kind` and `result` are of the last attempt that
    ran to its end, if any did."""

    task_id: str
    attempts: tuple[Attempt, ...]
    kind: FailureKind | None
    result: bytes
    waited_for: str = ""


@dataclass(frozen=True, slots=True)
class TaskDisagreed:
    """Too few of the answers are the same. `reasons` tell why no further worker may give one, where
    more were allowed; `problem` what was wrong with the function that compared them."""

    task_id: str
    answers: tuple[Answer, ...]
    reasons: tuple[tuple[PeerId, Refusal], ...] = ()
    problem: str = ""

    @property
    def why(self) -> str:
        count = len(self.answers)
        if count == 1:
            return "only one worker has answered"
        return f"too few of its {count} answers are the same"

    def in_brief(self) -> TaskDisagreed:
        return replace(self, answers=tuple(each.in_brief() for each in self.answers))


@dataclass(frozen=True, slots=True)
class TaskUnplaceable:
    """No worker can run the task, or where none is among the `reasons`, none was in sight. They
    have every worker that was considered. `troubles` are what the node finds wrong with itself,
    where none was in sight."""

    task_id: str
    reasons: tuple[tuple[PeerId, Refusal], ...]
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskCancelled:
    task_id: str


@dataclass(frozen=True, slots=True)
class CodeSent:
    """The first event of a job whose calls need code of their caller's: what goes along. A worker
    fetches it once, when it is the first time to run one of them."""

    code: Code


@dataclass(frozen=True, slots=True)
class WorkerLost:
    worker: PeerId
    why: str


class Awaited(StrEnum):
    PEERS = "peers"  # none answers: this machine is offline, or the gates are down
    WORKERS = "workers"  # peers answer, and no worker is in sight that could run the tasks
    GRANT = "grant"  # this node's has ended: told of jobs that a state keeps, the others end


@dataclass(frozen=True, slots=True)
class JobWaits:
    """No worker is in sight for tasks of the job, or this node's grant has ended, and discovery
    looks again: for some seconds, or where a state keeps the job, up to its deadline. Told once,
    and again where something else is `awaited`, or workers were in sight meanwhile."""

    awaited: Awaited


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The last event of a job: each of its tasks has ended in one of the ways above."""

    succeeded: int
    failed: int
    unplaceable: int
    cancelled: int


# How a task ends, in exactly one of these ways.
TaskEnd = TaskSucceeded | TaskGaveUp | TaskDisagreed | TaskUnplaceable | TaskCancelled
TaskNews = (
    TaskPlaced
    | TaskBegan
    | TaskPrinted
    | TaskSaved
    | TaskAnswered
    | TaskRetried
    | TaskRecalled
    | TaskReopened
)
# Of a job as a whole: these name no task.
WholeJobEvent = CodeSent | WorkerLost | JobWaits | JobEnded
JobEvent = TaskNews | TaskEnd | WholeJobEvent


@dataclass(frozen=True, slots=True)
class EmitJobEvent(Effect):
    """Hand an event of a job to its submitter."""

    job_id: str
    event: JobEvent


@dataclass(frozen=True, slots=True)
class PersistLease(Effect):
    """Store a lease, for the next incarnation of this scheduler to find it again. `marks` are as
    for ActiveLease."""

    lease_id: str
    lessor: Contact
    needs: Requirements
    priority: int
    fence: int
    device_ids: tuple[str, ...]
    marks: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ForgetLease(Effect):
    """A persisted lease has ended: given back, or lost."""

    worker: PeerId
    lease_id: str
