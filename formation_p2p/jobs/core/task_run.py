"""A job and its tasks as the scheduler sees them, and the states that a task goes through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import Key
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import Attempt
from formation_p2p.jobs.core.outputs import Outputs
from formation_p2p.jobs.core.quorum_ballot import Ballot
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.checkpoint import Checkpoint
from formation_p2p.workload.core.inputs_from import bound
from formation_p2p.workload.core.outcome import Failed
from formation_p2p.workload.core.work import Task


class TaskState(StrEnum):
    BLOCKED = "blocked"
    WAITING = "waiting"
    DISPATCHED = "dispatched"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNPLACEABLE = "unplaceable"
    CANCELLED = "cancelled"


_LEFT: Final = {"give up": TaskState.FAILED, "cancel": TaskState.CANCELLED}
TRANSITIONS: Final = {
    TaskState.BLOCKED: {"ready": TaskState.WAITING, **_LEFT},
    TaskState.WAITING: {
        "dispatch": TaskState.DISPATCHED,
        "unplaceable": TaskState.UNPLACEABLE,
        "input lost": TaskState.BLOCKED,
        **_LEFT,
    },
    TaskState.DISPATCHED: {"success": TaskState.SUCCEEDED, "retry": TaskState.WAITING, **_LEFT},
    TaskState.SUCCEEDED: {"output lost": TaskState.WAITING},
}
# In the order in which JobEnded has them.
ENDED: Final = (
    TaskState.SUCCEEDED,
    TaskState.FAILED,
    TaskState.UNPLACEABLE,
    TaskState.CANCELLED,
)


class JobState(StrEnum):
    RUNNING = "running"
    OVERDUE = "overdue"  # its deadline has passed: what is left of it fails
    CANCELLED = "cancelled"


JOB_TRANSITIONS: Final = {
    JobState.RUNNING: {"deadline": JobState.OVERDUE, "cancel": JobState.CANCELLED},
    JobState.OVERDUE: {"cancel": JobState.CANCELLED},
}


@dataclass(slots=True, eq=False)
class TaskRun:
    """`attempts` are those that brought no result; `tried` counts all, and names the next.

    `copies` are in flight: more than one where a second attempt is to overtake the first.
    `printed_bytes` are those of the attempts in flight. `inputs` are the files of other tasks that
    it is bound to, and `near` the worker that keeps most of them. `checkpoint` is the newest
    that can be had, from which its next attempt goes on; it `is_awaiting` one that is on its way
    from the worker that it has `left`, so as to go on elsewhere. `ballot` has the answers of its
    copies, where several workers are to agree.
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
    inputs: tuple[tuple[str, Blob], ...] = ()
    near: PeerId | None = None
    checkpoint: Checkpoint | None = None
    is_awaiting: bool = False
    left: PeerId | None = None
    ballot: Ballot | None = None

    def move(self, event: str) -> bool:
        """Follow the table; False where the state has no such way out. Counts for the job."""
        state = TRANSITIONS.get(self.state, {}).get(event)
        if state is None:
            return False
        if self.state in ENDED:
            self.job.count(self.task, self.state, -1)
        self.state = state
        if state in ENDED:
            self.job.count(self.task, state)
            self.ballot = None
        return True

    @property
    def scheduling_key(self) -> SchedulingKey:
        return self.job.job.options.scheduling_key(self.task.needs, self.task.member)

    @property
    def voting(self) -> Ballot:
        """Of a job with a quorum."""
        if self.ballot is None:
            quorum = self.job.job.options.quorum
            assert quorum is not None
            self.ballot = Ballot(quorum)
        return self.ballot

    def goes_with(self, other: TaskRun) -> bool:
        """Whether they are known to have the same scheduling key."""
        task, others = self.task, other.task
        if task.needs is not others.needs or task.member is not others.member:
            return False
        return self.job is other.job

    def block(self, before: Collection[str]) -> None:
        """It waits for these tasks of its job, which are to succeed first."""
        self.state = TaskState.BLOCKED
        self.job.blocked.add(self, before)

    def bind(self) -> bool:
        """Have it read the files of other tasks as they are now. False where some were lost: then
        it waits for these again."""
        outputs = self.job.outputs
        if missing := outputs.missing(self.task):
            self.move("input lost")
            self.block(missing)
        elif self.task.inputs_from:
            inputs, self.near = outputs.of(self.task)
            self.task, self.inputs = bound(self.task, inputs), tuple(inputs.items())
        return not missing

    def next_attempt(self) -> str:
        """The id of one more attempt."""
        self.tried += 1
        self.printed_bytes = 0
        if self.job.opaque is not None:
            return self.job.opaque()
        return f"{self.task.task_id}#{self.tried}{self.job.incarnation}"

    def dispatched(self) -> None:
        self.copies += 1

    def ended(self) -> None:
        self.copies -= 1

    def printed(self, count: int) -> None:
        self.printed_bytes += count

    def output_seen(self) -> None:
        self.printed_bytes = 0

    def failed(self, failed: Failed) -> None:
        self.last_failure = failed

    def leaves(self, worker: PeerId) -> None:
        """It is to go on elsewhere, if it can."""
        self.left = worker

    def awaits(self, *, checkpoint: bool) -> None:
        self.is_awaiting = checkpoint

    def keeps(self, checkpoint: Checkpoint | None) -> None:
        self.checkpoint = checkpoint

    def record_failure(self, attempt: Attempt) -> None:
        """An attempt brought no result, and that counts."""
        self.attempts += (attempt,)

    def grow(self) -> None:
        """Ask for more memory, once, where how much it needs was learnt, and not said. It is one of
        another group then."""
        needs = replace(self.task.needs, memory_bytes=self.task.more_memory_bytes)
        self.task = replace(self.task, needs=needs, more_memory_bytes=0)

    @property
    def is_wanted(self) -> bool:
        """Whether a result of an attempt in flight would count, and its job wants it."""
        return self.state is TaskState.DISPATCHED and self.job.is_wanted

    def avoids(self, worker: PeerId) -> bool:
        """Whether an attempt there brought no result, or it has left that: elsewhere first."""
        # Asked twice of every task, most of which have none.
        return worker == self.left or (
            bool(self.attempts) and any(each.worker == worker for each in self.attempts)
        )


class Blocked:
    """The tasks of a job that wait until others of it have succeeded. Each pair of a task and one
    that it waits for is looked at once, when that one has ended."""

    def __init__(self) -> None:
        self._runs: dict[str, TaskRun] = {}
        self._left: dict[str, int] = {}  # for how many others each of them waits
        self._followers: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: TaskRun, before: Collection[str]) -> None:
        """A task, and those that it waits for: each once, and not yet ended."""
        task_id = run.task.task_id
        self._runs[task_id] = run
        self._left[task_id] = len(before)
        for each in before:
            self._followers.setdefault(each, []).append(task_id)

    def succeeded(self, task_id: str) -> list[TaskRun]:
        """Those that wait for nothing any more, now that this one has succeeded."""
        ready: list[TaskRun] = []
        for follower in self._followers.pop(task_id, ()):
            self._left[follower] -= 1
            # One that failed with another still waits for that one.
            if self._left[follower] == 0:
                ready.append(self._runs.pop(follower))
        return ready

    def upstream_failed(self, task_id: str) -> list[TaskRun]:
        """Those that will never run, now that this one brought no result: who waits for it, who
        waits for these, and so on."""
        failed: list[TaskRun] = []
        ended = [task_id]
        for each in ended:  # which grows on the way
            for follower in self._followers.pop(each, ()):
                run = self._runs.pop(follower, None)
                if run is not None:  # else it failed with another one
                    failed.append(run)
                    ended.append(follower)
        return failed

    def drain(self) -> list[TaskRun]:
        """All of them: none waits here any more."""
        runs = list(self._runs.values())
        for table in (self._runs, self._left, self._followers):
            table.clear()
        return runs


@dataclass(slots=True, eq=False)
class JobRun:
    """`due_s` is its deadline, on this machine's monotonic clock. `incarnation` ends the ids of its
    attempts, so that no two incarnations of a scheduler use one twice. One that is `durable` is
    kept on the disk: it waits while no worker is in sight. `opaque` makes the ids of attempts where
    they are not to tell that two are of one task, and it was `begun_s` on the monotonic clock."""

    job: Job
    due_s: float = float("inf")
    incarnation: str = ""
    durable: bool = False
    opaque: Callable[[], str] | None = None
    begun_s: float = 0.0
    timeout_ms: int = field(init=False)  # of an attempt; 0 for no limit
    state: JobState = JobState.RUNNING
    blocked: Blocked = field(default_factory=Blocked)
    ended: Counter[TaskState] = field(default_factory=Counter)
    outputs: Outputs = field(init=False)
    has_run: bool = False  # whether the code of some task of it has, anywhere

    def __post_init__(self) -> None:
        self.outputs = Outputs(self.job.tasks)
        timeout_s = self.job.options.timeout_s
        self.timeout_ms = 0 if timeout_s is None else max(1, round(timeout_s * 1000))

    @property
    def is_over(self) -> bool:
        return self.ended.total() == len(self.job.tasks)

    @property
    def is_wanted(self) -> bool:
        return self.state is JobState.RUNNING

    def move(self, event: str) -> None:
        """Follow the table; the state stays where it has no such way out."""
        self.state = JOB_TRANSITIONS.get(self.state, {}).get(event, self.state)

    def ran(self) -> None:
        self.has_run = True

    def is_due(self, now: Moment) -> bool:
        """Whether its deadline has passed. It is so once."""
        if self.due_s > now.mono_s:
            return False
        self.due_s = float("inf")
        self.move("deadline")
        return True

    def count(self, task: Task, ended: TaskState, more: int = 1) -> None:
        self.ended[ended] += more
        self.outputs.reader_ended(task, more)
