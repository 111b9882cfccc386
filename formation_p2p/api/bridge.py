"""Thread bridge: jobs, questions and transfers go from the application's loop to the node's thread,
and what that tells comes back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from concurrent import futures
from typing import Any, Final, Protocol, TypeVar, assert_never

from formation_p2p.api.lifecycle import Lifecycle
from formation_p2p.api.reference import NO_PARCELS, HeldParcels, Packer
from formation_p2p.assembly import UserEffect
from formation_p2p.core.effects import OwnedEvent
from formation_p2p.core.errors import (
    FormationError,
    InvalidInput,
    NodeClosed,
    RemoteError,
    Unreachable,
)
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import EmitJobEvent, JobEvent, TaskPlaced
from formation_p2p.peer.core.effects import Explained, RejectRequest
from formation_p2p.peer.core.events import CancelJob, Explain, Submit
from formation_p2p.peer.errand import Errand
from formation_p2p.peer.shell import Shell
from formation_p2p.placement.core.decision import Discovery
from formation_p2p.placement.core.task_options import SchedulingKey, TaskOptions
from formation_p2p.workload.core.parcel import Parcel

log = logging.getLogger(__name__)

T = TypeVar("T")

# Has the node's thread do something. Raises NodeClosed.
Call = Callable[[Callable[[Shell], None]], None]

# Effects dispatched in one turn of the caller's loop: some 2 ms of its time.
AT_A_TURN: Final = 1024
# Discovery takes two lookups; a lookup ends, or gives up on its last peer, within this.
EXPLAIN_S: Final = 15.0


class JobObserver(Protocol):
    """Receives the events of a job: those that have come, then `flush` once for all of them. Where
    it does not read where tasks are placed, the loop is not woken for that."""

    @property
    def reads_placed(self) -> bool: ...

    @property
    def is_over(self) -> bool: ...

    def notify(self, event: JobEvent) -> None: ...

    def flush(self) -> None: ...

    def fail(self, error: FormationError) -> None: ...


class Owner(Protocol):
    """Receives the events of what a program has, such as a gang, on the loop."""

    def notify(self, event: Any, /) -> None: ...

    def fail(self, error: FormationError) -> None: ...


class Bridge:
    """A job's events go to its `JobObserver`: on the loop, or on the node's thread, where the
    observer must hand them over and return. Methods are for the loop unless they say otherwise.

    `call` runs a function on the node's thread. `begun` is called with each job that is submitted,
    in the thread that submits it. `lifecycle` is the node's. What `packer` made of the arguments of
    a job is released as its tasks end. `owners` have what features tell of, by its id.
    `with_environment` makes the environment of a job, in a thread of its caller's.
    """

    def __init__(
        self,
        call: Call,
        begun: Callable[[Job], None],
        lifecycle: Lifecycle,
        packer: Packer,
        with_environment: Callable[[TaskOptions], TaskOptions] = lambda options: options,
    ) -> None:
        self.call = call
        self.with_environment = with_environment
        self.packer = packer
        self._parcels = HeldParcels(packer)
        self._begun = begun
        self.lifecycle = lifecycle
        self._loop_jobs: dict[str, JobObserver] = {}
        self._thread_jobs: dict[str, JobObserver] = {}
        self._inbox: deque[UserEffect | Callable[[], None]] = deque()
        self._woken = False
        self._explained: dict[int, asyncio.Future[Explained]] = {}
        self._thread_explained: dict[int, futures.Future[Explained]] = {}
        self._pending: set[asyncio.Future[Any]] = set()
        self.owners: dict[str, Owner] = {}
        self._numbers = itertools.count(1)

    def fail(self, error: FormationError, spared: Container[str] = ()) -> None:
        """All that is pending ends with this error, except the jobs spared."""
        jobs = [*self._loop_jobs, *self._thread_jobs]
        self.drop([job_id for job_id in jobs if job_id not in spared], error)
        for future in self._pending:
            _settle(future, error)
        for owner in list(self.owners.values()):
            owner.fail(error)

    # -- jobs -------------------------------------------------------------------------------------

    def begin(
        self,
        job: Job,
        observer: JobObserver,
        parcels: Mapping[str, Parcel] = NO_PARCELS,
        *,
        on_loop: bool = True,
    ) -> None:
        """Submit a job. With `on_loop` on the loop; else from any thread, and its events are told
        on the node's. `parcels` are those of its tasks, by their ids, and others that it needs to
        its end. Raises NodeClosed, InvalidInput on another loop."""
        if on_loop:
            self.lifecycle.check_loop()
        observers = self._loop_jobs if on_loop else self._thread_jobs
        observers[job.job_id] = observer
        self._parcels.hold(job.job_id, parcels)
        self._begun(job)
        try:
            self.call(lambda shell: shell.feed(Submit(job)))
        except NodeClosed:
            del observers[job.job_id]
            self._parcels.job_ended(job.job_id)
            raise

    def adopt(self, job: Job, observer: JobObserver) -> None:
        """A job that is submitted elsewhere."""
        self._loop_jobs[job.job_id] = observer

    def cancel(self, job_id: str, waiting: frozenset[str] = frozenset()) -> None:
        """As CancelJob says, unless it is over."""
        if job_id in self._loop_jobs or job_id in self._thread_jobs:
            with contextlib.suppress(NodeClosed):  # the job ends with the node
                self.call(lambda shell: shell.feed(CancelJob(job_id, waiting)))

    def drop(self, job_ids: Iterable[str], error: FormationError) -> None:
        """These jobs end with this error."""
        for job_id in job_ids:
            self._parcels.job_ended(job_id)
            for observers in (self._loop_jobs, self._thread_jobs):
                # Those that another thread began come and go there meanwhile.
                observer = observers.pop(job_id, None)
                if observer is not None:
                    observer.fail(error)

    # -- questions and transfers ------------------------------------------------------------------

    async def explain(self, key: SchedulingKey | None, name: str) -> Discovery:
        """As in peer/core/events.py. Raises InvalidInput, Unreachable."""
        self.lifecycle.check_loop()
        number = next(self._numbers)
        future: asyncio.Future[Explained] = asyncio.get_running_loop().create_future()
        self._explained[number] = future
        try:
            self.call(lambda shell: shell.feed(Explain(number, key, name)))
            explained = await self._answer(future, EXPLAIN_S)
        except TimeoutError:
            raise Unreachable("the network did not answer; are its gates running?") from None
        finally:
            del self._explained[number]
        return Discovery(explained.decision, explained.trace)

    def explain_and_wait(self, key: SchedulingKey, name: str) -> Discovery:
        """As `explain`. From any thread, which waits."""
        number = next(self._numbers)
        future: futures.Future[Explained] = futures.Future()
        self._thread_explained[number] = future
        troubles: list[str] = []

        def ask(shell: Shell) -> None:
            troubles.extend(shell.stack.witness.troubles)
            shell.feed(Explain(number, key, name))

        try:
            self.call(ask)
            explained = future.result(EXPLAIN_S)
        except TimeoutError:
            raise Unreachable("the network did not answer; are its gates running?") from None
        finally:
            del self._thread_explained[number]
        return Discovery(explained.decision, explained.trace, tuple(troubles))

    async def look(self, at: Callable[[Shell], T]) -> T:
        """What `at` returns on the node's thread."""
        self.lifecycle.check_loop()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def look(shell: Shell) -> None:
            seen = at(shell)
            self.on_loop(lambda: _settle(future, seen))

        self.call(look)
        try:
            return await self._answer(future, EXPLAIN_S)
        except TimeoutError:
            raise NodeClosed("the network stack is down; ask again once it has restarted") from None

    async def perform(self, do: Callable[[Shell], Awaitable[T]]) -> T:
        """What `do` returns on the node's thread, where it ends when the caller is cancelled.
        Raises what it raises of FormationError."""
        self.lifecycle.check_loop()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        errand = Errand(do, lambda outcome: self.on_loop(lambda: _settle(future, outcome)))
        try:
            self.call(errand.start)
            return await self._answer(future, None)
        except asyncio.CancelledError:
            with contextlib.suppress(NodeClosed):
                self.call(errand.cancel)
            raise

    async def _answer(self, future: asyncio.Future[T], within_s: float | None) -> T:
        self._pending.add(future)
        try:
            return await asyncio.wait_for(future, within_s)
        finally:
            self._pending.discard(future)

    # -- what the node's thread tells -------------------------------------------------------------

    def on_loop(self, function: Callable[[], object]) -> None:
        """From any thread."""
        try:
            self.lifecycle.loop.call_soon_threadsafe(function)
        except RuntimeError:
            # The application closed its loop without leaving the node: nothing reads the inbox.
            self._inbox.clear()

    def notify(self, effects: Iterable[UserEffect]) -> None:
        """On the node's thread: hand over, and wake the loop once for all of them."""
        for effect in effects:
            if self._parcels:
                self._parcels.told(effect)
            if type(effect) is Explained and effect.query in self._thread_explained:
                self._thread_explained[effect.query].set_result(effect)
            elif _deliver(effect, self._thread_jobs) is None and self._is_read(effect):
                self._inbox.append(effect)
        self._wake()

    def _is_read(self, effect: UserEffect) -> bool:
        if type(effect) is not EmitJobEvent or type(effect.event) is not TaskPlaced:
            return True
        observer = self._loop_jobs.get(effect.job_id)
        return observer is None or observer.reads_placed  # it may be adopted soon

    def in_turn(self, function: Callable[[], None]) -> None:
        """On the node's thread: call this on the loop, after what was told before."""
        self._inbox.append(function)
        self._wake()

    @property
    def unread(self) -> int:
        """How many effects the loop has not taken yet."""
        return len(self._inbox)

    def _wake(self) -> None:
        if self._inbox and not self._woken:
            self._woken = True
            self.on_loop(self._drain)

    def _drain(self) -> None:
        # Before the inbox is read: what comes after that wakes the loop again.
        self._woken = False
        touched: set[JobObserver] = set()
        for _ in range(AT_A_TURN):
            if not self._inbox:
                break
            try:
                item = self._inbox.popleft()
                if callable(item):
                    item()
                elif (observer := _deliver(item, self._loop_jobs)) is not None:
                    touched.add(observer)
                else:
                    self._answered(item)
            except Exception:
                # A fault of ours with one event must not keep the others from their jobs.
                log.exception("an event could not be handed on; please report this")
        for observer in touched:
            observer.flush()
        self._wake()

    def _answered(self, effect: UserEffect) -> None:
        match effect:
            case Explained(query):
                if query in self._explained:
                    _settle(self._explained[query], effect)
            case RejectRequest(what, why):
                error = InvalidInput(what, why)
                future = self._explained.get(int(what)) if what.isdecimal() else None
                if future is None or not _settle(future, error):
                    log.error("%s", error)  # its caller does not wait any more
            case OwnedEvent(owned, event):
                if (owner := self.owners.get(owned)) is not None:
                    owner.notify(event)
            case EmitJobEvent():
                pass  # of a job that was dropped
            case _:
                assert_never(effect)


def _deliver(effect: UserEffect, observers: dict[str, JobObserver]) -> JobObserver | None:
    """Tell the observer of this job, if it is one of these. Returns it."""
    observer = None
    if type(effect) is EmitJobEvent:
        observer = observers.get(effect.job_id)
        if observer is not None:
            observer.notify(effect.event)
            if observer.is_over:
                observers.pop(effect.job_id, None)
    elif type(effect) is RejectRequest:
        observer = observers.pop(effect.what, None)
        if observer is not None:
            observer.fail(InvalidInput(effect.what, effect.why))
    return observer


def _settle(future: asyncio.Future[Any], outcome: object) -> bool:
    """With a result or an error. Returns whether it was waited for still."""
    if future.done():
        return False
    if isinstance(outcome, FormationError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    return True


class Breaking:
    """The reader may be made after that. It is told in the very turn of the loop in which the news
    comes: the end of its socket is read no earlier, and without the news it would be a clean
    end."""

    __slots__ = ("_error", "_reader")

    def __init__(self) -> None:
        self._error: RemoteError | None = None
        self._reader: asyncio.StreamReader | None = None

    def told(self, error: RemoteError) -> None:
        self._error = error
        if self._reader is not None:
            self._reader.set_exception(error)

    def follow(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        if self._error is not None:
            reader.set_exception(self._error)
