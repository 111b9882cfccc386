"""The calls of one `node.map`: items go in as fast as the results are taken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sized,
)
from contextlib import ExitStack, closing
from functools import cached_property, lru_cache, partial
from itertools import count, cycle, repeat
from operator import length_hint
from typing import Any, Final, Generic, TypeVar

from formation_p2p.api.bridge import Bridge
from formation_p2p.api.calls import (
    BATCH_BYTES,
    BATCH_CALLS,
    LOOK_AHEAD_BYTES,
    Batcher,
    PackedFunction,
    bytes_of_end,
    name_of,
    packed_function,
    size_of,
    value_of_end,
)
from formation_p2p.api.code import CallCode
from formation_p2p.api.output import OutputPrinter, Progress, reporting
from formation_p2p.api.tracebacks import SHORTLY
from formation_p2p.core.errors import FormationError, InvalidInput
from formation_p2p.environments.prepare import resolved
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import JobEnded, JobEvent, TaskEnd, TaskSucceeded
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.workload.core.parcel import LARGE_BYTES, Parcel

log = logging.getLogger(__name__)

# Items taken of the iterable whose results the caller has not taken yet. A scheduler places some
# ten thousand small tasks in a second, so that this keeps it busy through a pause of the caller's
# loop of 200 ms; at 2 KiB each it is 8 MiB.
LOOK_AHEAD: Final = 4096
# ...and of those that are large: their memory is used again as calls end, which costs a quarter of
# new memory. It is half of what a node holds (content/memory.py), and keeps some ten workers
# busy with calls of 10 ms.
LOOK_AHEAD_LARGE: Final = 96
# Handed over together: the ends of fewer would cost a crossing each.
BATCH_LARGE: Final = 24
# Items are taken for so long at a time: an iterable that computes them must not stop the loop.
TAKE_S: Final = 0.01


class Flow:
    """Items go in, as jobs, as fast as their results are taken; the ends of their tasks come out.

    On the caller's loop. `took` gives back the room of one; `close` must be called.
    """

    def __init__(
        self,
        jobs: Bridge,
        code: CallCode,
        function: Callable[..., Any],
        items: Iterable[Any] | AsyncIterable[Any],
        more: tuple[Iterable[Any], ...],
        options: TaskOptions,
        buffersize: int,
        *,
        trust_results: bool,
        show_output: bool,
        progress: bool | Progress,
    ) -> None:
        self.value_of_end = partial(value_of_end, code=code, trust_results=trust_results)
        self._submitter = jobs
        self._call_code = code
        self._function = function
        self._items = items
        self._more_items = more
        self._room = buffersize
        self._enough_room = min(BATCH_CALLS, max(1, buffersize // 2))
        self._held_bytes = 0
        self._held_large = 0
        self._result_bytes = 0  # of all results so far
        self._fed = self._in_flight = 0
        self._ended: list[tuple[int, TaskEnd]] = []
        self._more = True
        self._failure: BaseException | None = None
        self.news = asyncio.Event()
        self._taken = asyncio.Event()
        self.jobs: set[str] = set()
        self._packed: PackedFunction | None = None
        # An edit of its code does not change a map that runs.
        self._batcher = Batcher(jobs.packer, lru_cache(1)(code.of), options)
        self._reader: asyncio.Task[None] | None = None
        self.printer = OutputPrinter() if show_output else None
        self._succeeded = self._failed = 0
        self._reporting = ExitStack()
        self.is_endless = all(map(_has_no_end, (items, *more)))
        lengths = [len(each) for each in (items, *more) if isinstance(each, Sized)]
        total = min(lengths) if len(lengths) == 1 + len(more) else None
        self._report = self._reporting.enter_context(reporting(progress, total))

    async def ends(self) -> AsyncIterator[list[tuple[int, TaskEnd]]]:
        """Each with its item's number, as they come: as many as there are at a time."""
        options = await resolved(self._batcher.options, self._submitter.with_environment)
        self._batcher.options = options
        packer, python = self._submitter.packer, options.needs.python
        self._packed = packed_function(self._function, packer, python)
        if not self._call_code.is_current(self._packed.modules):
            await asyncio.to_thread(self._call_code.of, self._packed.modules)
        iterator: Iterator[Any] | None = None
        if isinstance(self._items, AsyncIterable):
            self._reader = asyncio.create_task(self._read(self._items))
            self._reader.add_done_callback(self._read_ended)
        else:
            more = self._more_items  # `zip` would hold a lone item, which may be large, longer
            iterator = zip(self._items, *more, strict=False) if more else iter(self._items)
        while True:
            self._submitter.lifecycle.check_process()
            while iterator is not None and self._more and self._has_room:
                self._feed(iterator)
                await asyncio.sleep(0)
            if self._failure is not None:
                raise self._failure
            if self._ended:
                ends, self._ended = self._ended, []
                yield ends
            elif not self._more and not self._in_flight:
                return
            else:
                self.news.clear()
                await self.news.wait()

    def took(self, end: TaskEnd) -> None:
        self._room += 1
        if type(end) is TaskSucceeded:
            self._held_bytes -= bytes_of_end(end)
        self._taken.set()

    def close(self) -> None:
        """Cancel all that is in flight."""
        self._reporting.close()
        if self._reader is not None:
            self._reader.cancel()
        for job_id in self.jobs:
            self._submitter.cancel(job_id)
        self.jobs.clear()
        if self._packed is not None and self._packed.parcel is not None:
            self._submitter.packer.release(self._packed.parcel)
            self._packed = self._packed._replace(parcel=None)

    @property
    def _has_room(self) -> bool:
        """For a batch worth the crossing; where nothing is in flight, for one item."""
        if not self._in_flight and not self._ended:
            return self._room > 0
        return self._room >= self._enough_room and not self._is_full

    @property
    def _is_full(self) -> bool:
        """Whether what is held, with the results of what is in flight, is as much as may be. Those
        are taken to be as large as the others were."""
        if self._held_large > LOOK_AHEAD_LARGE - BATCH_LARGE:
            return True
        coming = self._in_flight * self._result_bytes // max(1, self._succeeded)
        return self._held_bytes + coming >= LOOK_AHEAD_BYTES

    def _feed(self, items: Iterator[Any]) -> None:
        """Hand over the next items, up to one batch."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + TAKE_S
        most = min(self._room, BATCH_CALLS)
        arguments: list[bytes | Parcel] = []
        size = large = 0
        try:
            for item in items:
                arguments.append(self._batcher.dumps(item if self._more_items else (item,), {}))
                size += size_of(arguments[-1])
                large += _is_large(arguments[-1])
                is_enough = size >= BATCH_BYTES or large >= BATCH_LARGE
                if is_enough or len(arguments) >= most or loop.time() >= until_s:
                    break
            else:
                self._more = False
        except BaseException:
            self._submitter.packer.release_all(arguments)
            raise
        if arguments:
            self._hand_over(arguments, size)

    async def _read(self, items: AsyncIterable[Any]) -> None:
        """Hand over what an asynchronous iterable brings, whatever of it comes in one turn of the
        loop at once."""
        loop = asyncio.get_running_loop()
        arguments: list[bytes | Parcel] = []

        def flush() -> None:
            if arguments:
                taken, arguments[:] = arguments[:], []
                try:
                    self._hand_over(taken, sum(map(size_of, taken)))
                except FormationError as error:
                    self.fail(error)

        try:
            async for item in items:
                if not arguments:
                    loop.call_soon(flush)
                arguments.append(self._batcher.dumps((item,), {}))
                if len(arguments) >= BATCH_CALLS or size_of(arguments[-1]) > LARGE_BYTES:
                    flush()
                while self._room <= len(arguments) or self._is_full:
                    self._taken.clear()
                    await self._taken.wait()
            flush()
        finally:
            taken, arguments[:] = arguments[:], []
            self._submitter.packer.release_all(taken)

    def _read_ended(self, reader: asyncio.Task[None]) -> None:
        self._more = False
        error = None if reader.cancelled() else reader.exception()
        if error is not None:
            self.fail(error)
        self.news.set()

    def _hand_over(self, arguments: list[bytes | Parcel], size: int) -> None:
        assert self._packed is not None, "it is packed before its items are taken"
        calls = [(self._packed, each) for each in arguments]
        job, parcels = self._batcher.job_of(calls, name_of(self._function))
        large = frozenset(task for task, parcel in parcels.items() if _is_large(parcel))
        batch = _Batch(self, job, self._fed, size // len(arguments), large)
        self._submitter.begin(job, batch, parcels)
        self.jobs.add(job.job_id)
        self._fed += len(arguments)
        self._in_flight += len(arguments)
        self._room -= len(arguments)
        self._held_bytes += batch.bytes_each * len(arguments)
        self._held_large += len(large)

    def end(self, number: int, end: TaskEnd, sent_bytes: int, *, was_large: bool) -> None:
        self._in_flight -= 1
        self._held_bytes -= sent_bytes
        self._held_large -= was_large
        if type(end) is TaskSucceeded:
            size = bytes_of_end(end)
            self._held_bytes += size
            self._result_bytes += size
            self._succeeded += 1
        else:
            self._failed += 1
        self._ended.append((number, end))

    def flush(self) -> None:
        """Some have ended, or printed something."""
        if self.printer is not None:
            self.printer.flush()
        if self._failure is None:
            try:
                self._report(self._succeeded, self._failed)
            except Exception as error:
                log.debug("the caller's own progress raised", exc_info=True)
                self._failure = error  # the caller's own, which it gets
        self.news.set()

    def fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.news.set()


def _has_no_end(items: object) -> bool:
    """As far as their type says so."""
    return isinstance(items, count | cycle | repeat) and length_hint(items, -1) < 0


def _is_large(arguments: bytes | Parcel) -> bool:
    """Whether they have memory of their own."""
    return type(arguments) is Parcel and arguments.blob is not None


class _Batch:
    """One job of the flow, as the node sees it (`JobObserver`)."""

    reads_placed = False

    def __init__(
        self, flow: Flow, job: Job, first: int, bytes_each: int, large: Collection[str]
    ) -> None:
        """`large` are those of its tasks whose arguments have memory of their own."""
        self.bytes_each = bytes_each
        self.is_over = False
        self._job_id = job.job_id
        self._flow = flow
        self._large = large
        self._numbers = {task.task_id: first + index for index, task in enumerate(job.tasks)}

    def notify(self, event: JobEvent) -> None:
        if self._flow.printer is not None:
            self._flow.printer.observe(event)
        if type(event) is TaskSucceeded or isinstance(event, TaskEnd):
            number = self._numbers.pop(event.task_id, None)
            if number is not None:
                is_large = event.task_id in self._large
                self._flow.end(number, event, self.bytes_each, was_large=is_large)
        elif type(event) is JobEnded:
            self.is_over = True
            self._flow.jobs.discard(self._job_id)

    def flush(self) -> None:
        self._flow.flush()

    def fail(self, error: FormationError) -> None:
        self.is_over = True
        self._flow.fail(error)


# What `node.map` returns: the results of many calls, all at once or as they come.

R = TypeVar("R")

_ENDLESS: Final = (
    "the items have no end, so there is no list of their results; take the results one by one: "
    "`async for result in node.map(…)`, or of a SyncNode "
    "`for result in node.executor(…).map(function, items, buffersize=64)`"
)


class Mapped(Coroutine[Any, Any, list[R]], Generic[R]):
    """`await` it for the list of all results, or take one after the other with `async for`; once.

    Nothing happens until then. Stopping half-way cancels what is in flight. For asyncio it is a
    coroutine: `create_task`, `wait_for` and `gather` take it.
    """

    def __init__(self, flow: Callable[[], Flow], ordered: bool) -> None:
        self._flow = flow
        self._ordered = ordered

    def __repr__(self) -> str:
        return (
            "<calls of map: `await` them for the list, or `async for` one result after the other>"
        )

    def __aiter__(self) -> AsyncIterator[R]:
        return self._in_order() if self._ordered else self._as_they_come()

    def __await__(self) -> Generator[Any, Any, list[R]]:
        return self._all().__await__()

    # As a coroutine, which is what asyncio makes tasks of.

    def send(self, value: Any) -> Any:
        return self._awaited.send(value)

    def throw(self, *error: Any) -> Any:
        return self._awaited.throw(*error)

    def close(self) -> None:
        self._awaited.close()

    @cached_property
    def _awaited(self) -> Coroutine[Any, Any, list[R]]:
        return self._all()

    # How the results are handed out.

    async def _all(self) -> list[R]:
        values: dict[int, R] = {}
        with SHORTLY, closing(self._flow()) as flow:
            if flow.is_endless:
                raise InvalidInput("items", _ENDLESS)
            async for ends in flow.ends():
                if any(type(end) is not TaskSucceeded for _, end in ends):
                    ends.sort(key=lambda numbered: numbered[0])
                for number, end in ends:
                    values[number] = flow.value_of_end(end)
                    flow.took(end)
        return [values[number] for number in range(len(values))]

    async def _as_they_come(self) -> AsyncIterator[R]:
        with SHORTLY, closing(self._flow()) as flow:
            async for ends in flow.ends():
                for _, end in ends:
                    flow.took(end)
                    yield flow.value_of_end(end)

    async def _in_order(self) -> AsyncIterator[R]:
        early: dict[int, TaskEnd] = {}
        due = 0
        with SHORTLY, closing(self._flow()) as flow:
            async for ends in flow.ends():
                early.update(ends)
                while (end := early.pop(due, None)) is not None:
                    due += 1
                    flow.took(end)
                    yield flow.value_of_end(end)
