"""A submitted job, as its submitter sees it. Lives on the caller's asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import replace
from typing import Final

from formation_p2p.api.bridge import Bridge
from formation_p2p.api.output import OutputPrinter
from formation_p2p.api.task_result import TaskEnds, TaskResult
from formation_p2p.core.errors import FormationError, InvalidInput, NodeClosed
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB, MIB
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import JobEnded, JobEvent, TaskPrinted, TaskSaved
from formation_p2p.peer.core.events import MoveTask, OutputSeen
from formation_p2p.peer.core.story import StoryEntry
from formation_p2p.placement.core.decision import Decision
from formation_p2p.workload.core.memory_estimate import MemoryEstimate
from formation_p2p.workload.core.work import Task

# Times that a task has saved which are kept for a reader of events that lags behind; past it the
# oldest are dropped. Everything else that a job tells is kept until it is read, but for output.
MAX_UNREAD: Final = 1024
# Output that is kept for it, with so much for each piece; past it the oldest is dropped. A worker
# waits for the reader after 1 MiB (drivers/driver.py), so that nothing is dropped of what 64
# tasks print at once.
MAX_UNREAD_BYTES: Final = 64 * MIB
PIECE_BYTES: Final = KIB
# An hour: longer than any checkpoint takes to be written.
MAX_GRACE_S: Final = 3600.0


class _Unread:
    """What a reader of events has not read yet, and the workers that wait until what a task prints
    there is read. `seen` tells one that it is, or with False that there is a reader."""

    def __init__(self, seen: Callable[[str, PeerId, bool], None]) -> None:
        self._seen = seen
        self._events: deque[JobEvent] = deque()
        self._saves = self._bytes = 0
        self._asking: set[tuple[str, PeerId]] = set()
        self.is_reading = self._is_left = False

    def add(self, event: JobEvent) -> None:
        if type(event) is TaskSaved:
            event = event.in_brief()
            self._saves += 1
            if self._saves > MAX_UNREAD:
                self._drop(TaskSaved)
        elif type(event) is TaskPrinted:
            if not event.data and not self._is_new_question(event):
                return
            self._bytes += len(event.data) + PIECE_BYTES
            while self._bytes > MAX_UNREAD_BYTES:
                self._drop(TaskPrinted)
        self._events.append(event)

    def begin(self) -> None:
        """There is a reader."""
        self.is_reading = True
        for asking in self._asking:
            self._seen(*asking, False)

    def take(self) -> Iterator[JobEvent]:
        """All that there is. A question of a worker is answered, and not told."""
        while self._events:
            event = self._events.popleft()
            self._forget(event)
            if type(event) is not TaskPrinted or event.data:
                yield event
            else:
                self._seen(event.task_id, event.worker, True)

    def leave(self) -> None:
        """The reader has left: none is waited for."""
        self._is_left = True
        for asking in self._asking:
            self._seen(*asking, True)

    def _is_new_question(self, event: TaskPrinted) -> bool:
        """Whether all that a task has printed was read, which its reader is to answer."""
        asking = event.task_id, event.worker
        if self._is_left:
            self._seen(*asking, True)
            return False
        if self.is_reading:
            self._seen(*asking, False)
        is_new = asking not in self._asking
        self._asking.add(asking)
        return is_new

    def _drop(self, kind: type[TaskPrinted | TaskSaved]) -> None:
        """The oldest that is unread."""
        oldest = next(event for event in self._events if type(event) is kind)
        self._events.remove(oldest)
        self._forget(oldest)

    def _forget(self, event: JobEvent) -> None:
        """It is not unread any more."""
        if type(event) is TaskSaved:
            self._saves -= 1
        elif type(event) is TaskPrinted:
            self._bytes -= len(event.data) + PIECE_BYTES
            if not event.data:
                self._asking.discard((event.task_id, event.worker))


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
        self._ends = TaskEnds({task.task_id: task.label for task in job.tasks})
        self._unread = _Unread(self._seen)
        self._news = asyncio.Event()
        self._ended: asyncio.Future[JobEnded] = asyncio.get_running_loop().create_future()
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
        async def awaited() -> tuple[TaskResult, ...]:
            try:
                return await self.results()
            except asyncio.CancelledError:
                if not self._kept:
                    self.cancel()
                raise

        return awaited().__await__()

    async def results(self) -> tuple[TaskResult, ...]:
        """One for each task, in their order, once all have ended. Raises NodeClosed."""
        self._check()
        await asyncio.shield(self._ended)
        return self._ends.results()

    def result(self, task_id: str) -> TaskResult | None:
        """The result of one task, None while it has not ended."""
        return self._ends.result(task_id)

    async def events(self) -> AsyncIterator[JobEvent]:
        """All that happens, from the submission to JobEnded. One reader only. A program that
        prints more than is read waits for the reader, as it would at a pipe.

        Raises NodeClosed where the node is left, or crashes, before the job ends.
        """
        self._check()
        if self._unread.is_reading:
            raise InvalidInput("events", "they are read already; keep what you need")
        self._unread.begin()
        try:
            while True:
                for event in self._unread.take():
                    yield event
                if self._ended.done():
                    self._ended.result()
                    return
                self._news.clear()
                await self._news.wait()
        finally:
            self._unread.leave()

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
        key = self._job.options.scheduling_key(found.needs, found.member)
        decision = (await self._bridge.explain(key, found.task_id)).decision
        return replace(decision, code=self._job.code)

    def move(self, task: int | str = 0, grace_s: float = 30.0) -> None:
        """Have a task that runs go on elsewhere, given by its place in the job or its id: it is
        given notice, has so long to save what it has, and goes on from there on another worker, if
        there is one. That is no failed attempt. One that does not run is left as it is.

        Raises InvalidInput for a task that the job does not have, NodeClosed.
        """
        self._bridge.lifecycle.check_process()
        if not 0 < grace_s <= MAX_GRACE_S:
            raise InvalidInput("grace_s", f"{grace_s:g} s is not up to {MAX_GRACE_S:g} s")
        moved = MoveTask(self.job_id, self._task(task).task_id, grace_s)
        self._bridge.call(lambda shell: shell.feed(moved))

    def cancel(self) -> None:
        """Take back what waits and stop what runs. The job then ends, its events with it."""
        self._bridge.lifecycle.check_process()
        self._bridge.cancel(self.job_id)

    @property
    def is_over(self) -> bool:
        return self._ended.done()

    # For the node (JobObserver).

    reads_placed = True

    def notify(self, event: JobEvent) -> None:
        """Cheap: it is called for every event of every task. `flush` must follow."""
        if self._printer is not None:
            self._printer.observe(event)
        self._ends.notify(event)
        if type(event) is JobEnded and not self._ended.done():
            self._ended.set_result(event)
        self._unread.add(event)

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

    def _seen(self, task_id: str, worker: PeerId, more: bool) -> None:
        seen = OutputSeen(self.job_id, task_id, worker, more)
        with contextlib.suppress(NodeClosed):  # which the reader is told
            self._bridge.call(lambda shell: shell.feed(seen))

    def _check(self) -> None:
        """That what is to come can come to here. A job that is over can be read still."""
        if not self.is_over:
            self._bridge.lifecycle.check_loop()

    def _task(self, task: int | str) -> Task:
        for number, found in enumerate(self.tasks):
            if task in (found.task_id, number, number - len(self.tasks)):
                return found
        raise InvalidInput("task", f"{task!r} is none of the {len(self.tasks)} of this job")
