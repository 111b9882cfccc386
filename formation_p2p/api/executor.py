"""A `concurrent.futures.Executor` whose calls run on whichever machines can.

A thread of its own pickles the calls and completes the futures, as that of ProcessPoolExecutor
does: `Feeder`.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, get_args, overload

from formation_p2p.api.arguments import ArgumentPickler
from formation_p2p.api.bridge import Bridge
from formation_p2p.api.calls import (
    BATCH_BYTES,
    BATCH_CALLS,
    LOOK_AHEAD_BYTES,
    Batcher,
    LargeFunctions,
    PackedCall,
    PackedFunction,
    name_of,
    size_of,
    value_of_end,
)
from formation_p2p.api.code import CallCode
from formation_p2p.api.output import OutputPrinter
from formation_p2p.api.reference import Reference
from formation_p2p.api.task_result import NONE_FOUND
from formation_p2p.api.tracebacks import SHORTLY, shorten
from formation_p2p.core.errors import FormationError, Unplaceable
from formation_p2p.jobs.core.job_events import (
    JobEnded,
    JobEvent,
    TaskEnd,
    TaskPlaced,
    TaskPrinted,
    TaskRetried,
    TaskSucceeded,
)
from formation_p2p.machine.core.capability import Capability, amounts
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.workload.core.parcel import Parcel

log = logging.getLogger(__name__)

T = TypeVar("T")


# Calls handed over that no worker has taken yet. Where the network takes them in at once the number
# doubles, up to what is some 400 ms of small tasks, so that a fast network never waits for the
# next; where it does not, it halves.
FIRST_WAITING: Final = 16
LAST_WAITING: Final = 4096
AT_ONCE_S: Final = 0.1

# The events of tasks that an executor reads, and the printer of its calls' output.
_TOLD: Final = frozenset[type[JobEvent]]({TaskPlaced, *get_args(TaskEnd)})
_PRINTED: Final = frozenset[type[JobEvent]]({*_TOLD, TaskPrinted, TaskRetried})


class CallFuture(Future[T]):
    """Can be cancelled until a worker has been sent its call, the task `task_id`."""

    def __init__(self, feeder: Feeder) -> None:
        super().__init__()
        self._feeder = feeder
        self.task_id = ""

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled and self.task_id:
            self._feeder.forgo(self)
        return cancelled

    def refuse(self, error: Exception) -> None:
        """Its call is not sent."""
        if self.set_running_or_notify_cancel():
            self.set_exception(error)


@dataclass(slots=True)
class Call:
    """`pickled` are its arguments, where they are pickled already."""

    future: CallFuture[Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    pickled: bytes | Parcel | None = None


@dataclass(frozen=True, slots=True)
class _Shut:
    """No more calls come; those that wait are cancelled or not, and those that run stopped or not.
    With `left` the node was left, and those that run fail with this."""

    cancel: bool
    stop: bool
    left: FormationError | None


@dataclass(frozen=True, slots=True)
class _Failed:
    """The node cannot go on with these tasks."""

    task_ids: list[str]
    error: FormationError


_Note = Call | CallFuture[Any] | _Shut | _Failed | JobEvent


class Feeder:
    """The executor's thread and its state. It does not refer to the executor, so that one which the
    application has dropped is collected."""

    def __init__(
        self,
        jobs: Bridge,
        code: CallCode,
        options: TaskOptions,
        max_workers: int | None,
        trust_results: bool,
        printer: OutputPrinter | None,
    ) -> None:
        self._jobs = jobs
        self._printer = printer
        self._code = code
        self._options = options
        self._max_workers = max_workers
        self._trust_results = trust_results
        self._lock = threading.Lock()
        self._closed = ""
        # What is small is copied at once: the caller may change it.
        self._copying = threading.Lock()
        self._copier = ArgumentPickler(jobs.packer, options.needs.python)
        self._thread: threading.Thread | None = None
        # Everything that happens, in one order: calls, events of their tasks, ends.
        self._notes: queue.SimpleQueue[_Note] = queue.SimpleQueue()
        # Below: the thread's alone.
        self._shut = False
        self._pending: deque[Call] = deque()
        self._futures: dict[str, CallFuture[Any]] = {}
        self._unplaced: set[str] = set()
        self._forgone: dict[str, set[str]] = {}  # tasks whose futures were cancelled, by job
        self._waiting = FIRST_WAITING
        self._handed_s = float("-inf")
        self._held_back = False
        self._batcher = Batcher(jobs.packer, code.of, options)
        self._functions = LargeFunctions(jobs.packer, options.needs.python)
        self._sizes: dict[str, int] = {}  # of the arguments of what is under way
        self._held_bytes = 0

    def add(self, call: Call) -> None:
        if not self._closed:
            with self._copying:
                call.pickled = self._copier.small(call.args, call.kwargs)
            if call.pickled is not None:
                call.args, call.kwargs = (), {}
        with self._lock:
            if self._closed:
                self._drop(call)
                raise RuntimeError(f"cannot schedule new futures after {self._closed}")
            self._notes.put(call)
            if self._thread is None:
                # In the context of the first call: what is traced belongs to its span.
                run = partial(contextvars.copy_context().run, self._run)
                self._thread = threading.Thread(target=run, name="formation-executor", daemon=True)
                self._thread.start()

    def forgo(self, future: CallFuture[Any]) -> None:
        """It was cancelled."""
        self._notes.put(future)

    def shut(self, *, cancel: bool, stop: bool = False, left: FormationError | None = None) -> None:
        if self._jobs.lifecycle.is_foreign:
            return  # its own process shuts it
        with self._lock:
            self._closed = self._closed or ("the node was closed" if left else "shutdown")
            if self._thread is not None:
                self._notes.put(_Shut(cancel, stop, left))

    def join(self) -> None:
        """Until all is done. From a callback of a future, which runs here, this returns at once."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        try:
            while not (self._shut and not self._pending and not self._futures):
                self._note(self._notes.get())
                for _ in range(self._notes.qsize()):
                    self._note(self._notes.get())
                while self._forgone:
                    job_id, task_ids = self._forgone.popitem()
                    self._jobs.cancel(job_id, frozenset(task_ids))
                self._hand_over()
        except Exception as error:
            # A fault of ours. What waits for a future must not wait for ever.
            log.exception("the executor failed; please report this")
            with self._lock:
                self._closed = f"its thread failed: {error!r}"
            while not self._notes.empty():
                self._note(self._notes.get())
            self._cancel_pending()
            self._fail(list(self._futures), error)
        finally:
            self._functions.release()

    def _note(self, note: _Note) -> None:
        if self._printer is not None and not isinstance(note, Call | CallFuture | _Shut | _Failed):
            self._printer.observe(note)
            self._printer.flush()  # before the result is there
        if type(note) is Call:
            self._pending.append(note)
        elif type(note) is TaskPlaced:
            self._begun(note.task_id)
        elif type(note) is TaskSucceeded or isinstance(note, TaskEnd):
            self._begun(note.task_id)
            self._held_bytes -= self._sizes.pop(note.task_id, 0)
            future = self._futures.pop(note.task_id, None)
            if future is not None:
                self._complete(future, note)
        elif type(note) is _Failed:
            self._fail(note.task_ids, note.error)
        elif isinstance(note, CallFuture):
            if note.task_id in self._unplaced:
                self._begun(note.task_id)
                job_id = note.task_id.rpartition("/")[0]
                self._forgone.setdefault(job_id, set()).add(note.task_id)
        elif type(note) is _Shut:
            self._shut = True
            if note.cancel:
                self._cancel_pending()
            if note.stop:
                for job_id in {task_id.rpartition("/")[0] for task_id in self._futures}:
                    self._jobs.cancel(job_id)
            if note.left is not None:
                self._fail(list(self._futures), note.left)

    def _begun(self, task_id: str) -> None:
        """From now on its future cannot be cancelled, if it has not been."""
        if task_id in self._unplaced:
            self._unplaced.discard(task_id)
            if not self._futures[task_id].set_running_or_notify_cancel():
                del self._futures[task_id]

    def _complete(self, future: Future[Any], end: TaskEnd) -> None:
        try:
            value = value_of_end(end, self._code, trust_results=self._trust_results)
            future.set_result(value)
        except Exception as error:  # noqa: BLE001 - whatever the function raised
            shorten(error)
            future.set_exception(error)

    def _fail(self, task_ids: Iterable[str], error: Exception) -> None:
        for task_id in task_ids:
            self._begun(task_id)
            self._held_bytes -= self._sizes.pop(task_id, 0)
            future = self._futures.pop(task_id, None)
            if future is not None:
                future.set_exception(error)

    def _drop(self, call: Call) -> None:
        if call.pickled is not None:
            self._jobs.packer.release_all([call.pickled])

    def _cancel_pending(self) -> None:
        for call in self._pending:
            self._drop(call)
            call.future.cancel()
            call.future.set_running_or_notify_cancel()
        self._pending.clear()

    def _hand_over(self) -> None:
        """As many calls as may wait for a worker, in jobs."""
        if not self._pending or len(self._unplaced) > self._waiting // 2:
            return
        self._adapt()
        room = self._waiting - len(self._unplaced)
        if self._max_workers is not None:
            room = min(room, self._max_workers - len(self._sizes))
        while room > 0 and self._pending and self._held_bytes < LOOK_AHEAD_BYTES:
            room -= self._hand_over_batch(min(room, BATCH_CALLS))
        self._held_back = bool(self._pending)

    def _adapt(self) -> None:
        now_s = time.monotonic()
        if self._held_back:  # else there was room for more: that says nothing of the pace
            at_once = now_s - self._handed_s < AT_ONCE_S
            waiting = self._waiting * 2 if at_once else self._waiting // 2
            self._waiting = min(max(waiting, FIRST_WAITING), LAST_WAITING)
        self._handed_s = now_s

    def _hand_over_batch(self, most: int) -> int:
        """One job. Returns how many calls are in it."""
        futures: list[CallFuture[Any]] = []
        calls: list[PackedCall] = []
        # A function that comes again and again is pickled once for the batch.
        functions: dict[int, tuple[object, PackedFunction]] = {}
        size = 0
        name = ""
        while self._pending and len(calls) < most and size < BATCH_BYTES:
            call = self._pending.popleft()
            if call.future.cancelled():
                call.future.set_running_or_notify_cancel()
                self._drop(call)
                continue
            try:
                key = id(call.function)
                if key not in functions:
                    functions[key] = call.function, self._functions.packed(call.function)
                arguments = call.pickled
                if arguments is None:
                    arguments = self._batcher.dumps(call.args, call.kwargs)
            except Exception as error:
                self._drop(call)
                # What cannot be pickled raises what it likes; it is the caller's to see.
                log.debug("a call could not be pickled", exc_info=True)
                call.future.refuse(error)
                continue
            name = name or name_of(call.function)
            size += size_of(arguments)
            calls.append((functions[key][1], arguments))
            futures.append(call.future)
        enclosed = [each.parcel for _, each in functions.values() if each.parcel is not None]
        if calls:
            self._begin(calls, enclosed, futures, name, size)
        else:
            self._jobs.packer.release_all(enclosed)
        return len(calls)

    def _begin(
        self,
        calls: list[PackedCall],
        enclosed: list[Parcel],
        futures: list[CallFuture[Any]],
        name: str,
        size: int,
    ) -> None:
        """`enclosed` are the parcels of their functions."""
        batcher = self._batcher
        try:
            if batcher.options.env is not None:
                batcher.options = self._jobs.with_environment(batcher.options)
            job, parcels = batcher.job_of(calls, name, self._copier.modules)
        except FormationError as error:
            self._jobs.packer.release_all(enclosed)
            for future in futures:
                future.refuse(error)
            return
        task_ids = [task.task_id for task in job.tasks]
        self._futures.update(zip(task_ids, futures, strict=True))
        self._unplaced.update(task_ids)
        for task_id, future in zip(task_ids, futures, strict=True):
            future.task_id = task_id
            if future.cancelled():  # before it knew of its task
                self.forgo(future)
        each_bytes = size // len(calls)
        self._sizes.update(dict.fromkeys(task_ids, each_bytes))
        self._held_bytes += each_bytes * len(calls)
        try:
            batch = _Batch(task_ids, self._notes, printed=self._printer is not None)
            parcels |= {f"function {number}": each for number, each in enumerate(enclosed)}
            self._jobs.begin(job, batch, parcels, on_loop=False)
        except FormationError as error:
            self._fail(task_ids, error)


class _Batch:
    """One job of the executor, as the node's thread sees it (`JobObserver`)."""

    reads_placed = True

    def __init__(
        self, task_ids: list[str], notes: queue.SimpleQueue[_Note], *, printed: bool
    ) -> None:
        """Of those that are `printed` it tells what they print."""
        self.is_over = False
        self._told = _PRINTED if printed else _TOLD
        self._task_ids = task_ids
        self._notes = notes

    def notify(self, event: JobEvent) -> None:
        if type(event) in self._told:
            self._notes.put(event)
        elif type(event) is JobEnded:
            self.is_over = True

    def flush(self) -> None:
        """Nothing waits for the end of a batch of events."""

    def fail(self, error: FormationError) -> None:
        self.is_over = True
        self._notes.put(_Failed(self._task_ids, error))


def how_many_fit(bridge: Bridge, options: TaskOptions) -> int:
    """From any thread, which waits. See `NodeExecutor.parallelism`."""
    key = options.scheduling_key(options.needs)
    found = bridge.explain_and_wait(key, "a call")
    decision = found.decision
    if not decision.ranked:
        reasons = {str(peer_id): str(refusal) for peer_id, refusal in decision.rejected}
        listed = "; ".join(f"{peer_id}: {why}" for peer_id, why in reasons.items())
        problem = listed or "; ".join(found.troubles) or NONE_FOUND
        raise Unplaceable(f"no worker can run a call: {problem}", reasons)
    return sum(_fit(each.profile.capability, options.needs) for each in decision.ranked)


def _fit(capability: Capability, needs: Requirements) -> int:
    """At least one, where discovery found that it fits."""
    pairs = zip(amounts(capability), amounts(needs), strict=True)
    fits = [has // need for has, need in pairs if need]
    if needs.gpu_count:
        shares = needs.gpu_count * needs.gpu_share_milli
        fits.append(len(capability.gpus) * WHOLE_GPU_MILLI // shares)
    return max(1, min(fits))


A = TypeVar("A")
P = ParamSpec("P")


class NodeExecutor(Executor):
    """Made by `Node.executor` and `SyncNode.executor`. Use it from any thread.

    A future's exception is what the function raised, from a RemoteTraceback that tells where;
    TaskRaised where that cannot be raised here as itself; TaskFailed where the machine failed;
    NotPlain where what it returned needs `trust_results`; Unplaceable where no worker can run it;
    NodeClosed where the node was left first.
    """

    def __init__(
        self,
        jobs: Bridge,
        code: CallCode,
        options: TaskOptions,
        max_workers: int | None = None,
        *,
        trust_results: bool = False,
        show_output: bool = False,
        owner: object = None,
    ) -> None:
        """`owner` lives as long as this does."""
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        self._owner = owner
        self._asks, self._max_workers = (jobs, options), max_workers
        self._check = jobs.lifecycle.check_process
        self._printer = OutputPrinter() if show_output else None
        self._feeder = Feeder(jobs, code, options, max_workers, trust_results, self._printer)
        # What was submitted is done also where the executor is dropped without a shutdown.
        self._dropped = weakref.finalize(self, self._feeder.shut, cancel=False)
        self._dropped.atexit = False

    @overload
    def submit(
        self,
        fn: Callable[Concatenate[A, P], T],
        reference: Reference[A],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Future[T]: ...

    @overload
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]: ...

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have `fn(*args, **kwargs)` run somewhere. Arguments that are small are copied at once.
        Those of a call that has more than 256 KiB are pickled soon after, and so is the function
        with what it uses: do not change them until the future runs. The future can be cancelled
        until a worker has been sent the call. A reference goes anywhere;
        type checkers know it as the first argument. Raises RuntimeError after the shutdown, and
        NodeClosed in a process that was forked from the node's."""
        self._check()
        if self._printer is not None:
            self._printer.below_here()
        future: CallFuture[T] = CallFuture(self._feeder)
        self._feeder.add(Call(future, fn, args, kwargs))
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """As `Executor.map`, with the `buffersize` of Python 3.14: so many items are ahead of the
        caller, so that they may have no end; without it all are taken at once. `chunksize` has
        nothing left to do here: calls travel together in any case. `Node.map` is faster."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        until_s = None if timeout is None else time.monotonic() + timeout
        items = zip(*iterables, strict=False)
        futures = deque(self.submit(fn, *args) for args in islice(items, buffersize))

        def results() -> Iterator[T]:
            with SHORTLY, ExitStack() as leaving:
                leaving.callback(cancel)
                while futures:
                    futures[0].result(None if until_s is None else until_s - time.monotonic())
                    futures.extend(self.submit(fn, *args) for args in islice(items, 1))
                    yield futures.popleft().result()

        def cancel() -> None:
            while futures:  # the frame of an exception refers to them
                futures.pop().cancel()

        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take nothing more; with `cancel_futures` have what is not under way yet cancelled.
        Waits for all that was submitted unless told otherwise."""
        self._feeder.shut(cancel=cancel_futures)
        if wait:
            self._feeder.join()

    def abort(self) -> None:
        """Take nothing more, cancel what waits, and stop what runs: its futures fail with
        TaskFailed. Does not wait."""
        self._feeder.shut(cancel=True, stop=True)

    def parallelism(self) -> int:
        """How many calls could run at once on the workers that the network knows of, if those had
        nothing else to do. Waits for the network, at most 15 s.

        Raises Unplaceable where no worker can run one, Unreachable, NodeClosed.
        """
        self._check()
        fit = how_many_fit(*self._asks)
        return min(fit, self._max_workers or fit)

    def node_left(self, error: FormationError) -> None:
        """For the node: what waits is cancelled, what runs fails with this."""
        self._feeder.shut(cancel=True, left=error)
