"""A submitted job, as its submitter sees it. Lives on the caller's asyncio loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from formation_p2p.api.bridge import Bridge
from formation_p2p.api.output import OutputPrinter
from formation_p2p.core.dispatch.job import Job
from formation_p2p.core.dispatch.job_events import (
    Attempt,
    JobEnded,
    JobEvent,
    TaskCancelled,
    TaskEnd,
    TaskGaveUp,
    TaskPlaced,
    TaskPrinted,
    TaskRecalled,
    TaskReopened,
    TaskSucceeded,
    TaskUnplaceable,
)
from formation_p2p.core.errors import (
    FormationError,
    InvalidInput,
    ResultTooLarge,
    TaskFailed,
    Unauthorized,
    Unplaceable,
)
from formation_p2p.core.identity import PeerId
from formation_p2p.core.peer.story import StoryEntry
from formation_p2p.core.placement.decision import Decision
from formation_p2p.core.refusals import Denied, Refusal
from formation_p2p.core.workload.large_result import Content, kept_size
from formation_p2p.core.workload.outcome import FailureKind
from formation_p2p.core.workload.plan import MemoryEstimate
from formation_p2p.core.workload.work import Task

# Pieces of output kept for a reader of events that lags behind, of at most 64 KiB each; past it
# the oldest are dropped. Everything else that a job tells is kept until it is read.
MAX_UNREAD_OUTPUT: Final = 1024


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How one task ended: exactly one of succeeded, failed, unplaceable and cancelled.

    `result` is the driver's encoding. `attempts` counts all that were started; `reasons` tell
    of those that brought nothing; `refusals` is why each worker did not take it. `waited_for` is
    the label, or else the id, of the task that brought no result, where this one never ran because
    of that. `nearest` is whether it ran where it waited: see TaskPlaced. Of the large result of a
    call, `result` is a record, and `content` what lay with its worker; `value_of` reads both.
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

    def error(self) -> FormationError | None:
        """What to raise for a task that brought no result, None for one that did."""
        who = f"task {self.task_id}" + (f" ({self.label})" if self.label else "")
        match self.status:
            case "succeeded":
                return None
            case "failed" if self.kind is FailureKind.DEADLINE:
                return TaskFailed(f"{who} did not end before its job's deadline; allow it longer")
            case "failed" if self.waited_for:
                return TaskFailed(
                    f"{who} did not run: it waited for {self.waited_for}, which brought no result"
                )
            case "failed":
                last = self.reasons[-1]
                why = f"{who} failed on {last.worker}: {last.why}"
                if (size := kept_size(self.kind, self.result)) is not None:
                    return ResultTooLarge(why, last.worker, size, self.result)
                return TaskFailed(why)
            case "cancelled":
                return TaskFailed(f"{who} was cancelled")
            case _:
                return self._unplaceable(who)

    def _unplaceable(self, who: str) -> Unplaceable:
        reasons = {str(peer_id): str(refusal) for peer_id, refusal in self.refusals}
        listed = "; ".join(f"{peer_id}: {why}" for peer_id, why in reasons.items())
        if not reasons:
            return Unplaceable(f"{who}: no worker was found; is one running in this network?")
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
        case TaskUnplaceable(task_id, reasons):
            return TaskResult(task_id, label, "unplaceable", refusals=reasons)
        case TaskCancelled(task_id):
            return TaskResult(task_id, label, "cancelled")


class JobHandle:
    """`await job` for the results, or `async for event in job.events()` to watch; both work.

    Cancelling what awaits it cancels the job, unless the node's state keeps it; `await
    job.results()` leaves the job alone. Made by `Node.submit`, `Node.jobs` and `Node.job`.
    """

    def __init__(
        self,
        job: Job,
        bridge: Bridge,
        *,
        sizes: tuple[MemoryEstimate, ...] = (),
        show_output: bool = False,
        ended: Callable[[str, BaseException | None], None] | None = None,
        over: Callable[[str], None] | None = None,
    ) -> None:
        self._job = job
        self._bridge = bridge
        self._kept = ended is not None
        self._sizes = sizes
        self._printer = OutputPrinter() if show_output else None
        # By task: where it was placed, and how it ended. A TaskResult is made when it is asked for.
        self._placed: dict[str, tuple[TaskPlaced, ...]] = {}
        self._ends: dict[str, TaskEnd] = {}
        self._unread: deque[JobEvent] = deque()
        self._unread_output = 0
        self._news = asyncio.Event()
        self._ended: asyncio.Future[JobEnded] = asyncio.get_running_loop().create_future()
        self._reading = False
        if ended is not None:  # called soon after
            self._ended.add_done_callback(lambda end: ended(job.job_id, end.exception()))
        if over is not None:
            self._ended.add_done_callback(lambda end: over(job.job_id))

    @property
    def job_id(self) -> str:
        return self._job.job_id

    @property
    def name(self) -> str:
        return self._job.name

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self._job.tasks

    @property
    def sizes(self) -> tuple[MemoryEstimate, ...]:
        """The estimates that tasks without explicit memory use."""
        return self._sizes

    def __await__(self) -> Generator[None, None, tuple[TaskResult, ...]]:
        return self._awaited().__await__()

    async def results(self) -> tuple[TaskResult, ...]:
        """One for each task, in their order, once all have ended. Raises NodeClosed."""
        self._check()
        await asyncio.shield(self._ended)
        return tuple(self._result(task.task_id, task.label) for task in self.tasks)

    def result(self, task_id: str) -> TaskResult | None:
        """The result of one task, None while it has not ended."""
        if task_id not in self._ends:
            return None
        return self._result(task_id, self._labels[task_id])

    async def events(self) -> AsyncIterator[JobEvent]:
        """All that happens, from the submission to JobEnded. One reader only.

        Raises NodeClosed where the node is left, or crashes, before the job ends.
        """
        self._check()
        if self._reading:
            raise InvalidInput("events", "they are read already; keep what you need")
        self._reading = True
        while True:
            while self._unread:
                event = self._unread.popleft()
                self._unread_output -= type(event) is TaskPrinted
                yield event
            if self._ended.done():
                self._ended.result()
                return
            self._news.clear()
            await self._news.wait()

    async def story(self, task: int | str = 0) -> tuple[StoryEntry, ...]:
        """The way of a task, given by its place in the job or its id: see `Node.story`.

        Raises InvalidInput for a task that the job does not have, NodeClosed.
        """
        task_id = self._task(task).task_id
        return await self._bridge.look(lambda shell: shell.peer.story(task_id))

    async def explain(self, task: int | str = 0) -> Decision:
        """Which worker is to run a task, given by its place in the job or its id, and why not the
        others: as of now, also where it has ended. `print` shows it as a table.

        Raises InvalidInput for a task that the job does not have, Unreachable.
        """
        found = self._task(task)
        key = self._job.options.scheduling_key(found.needs)
        decision = (await self._bridge.explain(key, found.task_id)).decision
        return replace(decision, code=self._job.code)

    def cancel(self) -> None:
        """Take back what waits and stop what runs. The job then ends, its events with it."""
        self._bridge.lifecycle.check_process()
        self._bridge.cancel(self.job_id)

    @property
    def is_over(self) -> bool:
        return self._ended.done()

    # For the node (JobObserver).

    def notify(self, event: JobEvent) -> None:
        """Cheap: it is called for every event of every task. `flush` must follow."""
        if self._printer is not None:
            self._printer.observe(event)
        if type(event) is TaskPlaced:
            self._placed[event.task_id] = (*self._placed.get(event.task_id, ()), event)
        elif type(event) is TaskSucceeded or isinstance(event, TaskEnd):
            self._ends[event.task_id] = event
        elif type(event) is TaskRecalled:
            self._placed[event.task_id] = self._placed[event.task_id][:-1]
        elif type(event) is TaskReopened:
            self._ends.pop(event.task_id, None)
        elif type(event) is TaskPrinted:
            if self._unread_output < MAX_UNREAD_OUTPUT:
                self._unread_output += 1
            else:
                self._unread.remove(next(x for x in self._unread if type(x) is TaskPrinted))
        elif type(event) is JobEnded and not self._ended.done():
            self._ended.set_result(event)
        self._unread.append(event)

    def flush(self) -> None:
        """Wakes the reader of the events."""
        if self._printer is not None:
            self._printer.flush()
        self._news.set()

    def fail(self, error: FormationError) -> None:
        """The node cannot go on with the job."""
        if not self._ended.done():
            self._ended.set_exception(error)
            self._ended.exception()  # seen: it may be that no caller waits
        self._news.set()

    async def _awaited(self) -> tuple[TaskResult, ...]:
        try:
            return await self.results()
        except asyncio.CancelledError:
            if not self._kept:
                self.cancel()
            raise

    def _result(self, task_id: str, label: str) -> TaskResult:
        result = result_of(self._ends[task_id], label, self._placed.get(task_id, ()))
        if result.waited_for:
            label = self._labels[result.waited_for]
            result = replace(result, waited_for=label or result.waited_for)
        return result

    def _check(self) -> None:
        """That what is to come can come to here. A job that is over can be read still."""
        if not self.is_over:
            self._bridge.lifecycle.check_loop()

    def _task(self, task: int | str) -> Task:
        for number, found in enumerate(self.tasks):
            if task in (found.task_id, number, number - len(self.tasks)):
                return found
        raise InvalidInput("task", f"{task!r} is none of the {len(self.tasks)} of this job")

    @cached_property
    def _labels(self) -> dict[str, str]:
        return {task.task_id: task.label for task in self.tasks}
