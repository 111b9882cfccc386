"""Thread bridge: submits jobs to the node's thread, and dispatches what that tells to the
application's loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import Final, Protocol, assert_never

from formation_p2p.api.pending import Call, PendingQueries
from formation_p2p.core.dispatch.job import Job
from formation_p2p.core.dispatch.job_events import EmitJobEvent, JobEvent
from formation_p2p.core.errors import FormationError, InvalidInput, NodeClosed
from formation_p2p.core.peer.effects import Explained, RejectRequest, UserEffect
from formation_p2p.core.peer.events import CancelJob, Submit

log = logging.getLogger(__name__)

# Effects dispatched in one turn of the caller's loop: some 2 ms of its time.
AT_A_TURN: Final = 1024


class JobObserver(Protocol):
    """Receives the events of a job: those that have come, then `flush` once for all of them."""

    @property
    def is_over(self) -> bool: ...

    def tell(self, event: JobEvent) -> None: ...

    def flush(self) -> None: ...

    def fail(self, error: FormationError) -> None: ...


class JobBridge:
    """A job's events go to its `JobObserver`: on the loop, or on the node's thread, where the
    observer must hand them over and return. Answers go to `queries`.

    `call` runs a function on the node's thread. `begun` is called with each job that is submitted,
    in the thread that submits it.
    """

    def __init__(self, call: Call, begun: Callable[[Job], None]) -> None:
        self.queries = PendingQueries(call, self.on_loop)
        self.call = call
        self._begun = begun
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_jobs: dict[str, JobObserver] = {}
        self._thread_jobs: dict[str, JobObserver] = {}
        self._inbox: deque[UserEffect | Callable[[], None]] = deque()
        self._woken = False

    def open(self) -> None:
        """On the loop that this is for."""
        self._loop = asyncio.get_running_loop()

    def begin(self, job: Job, observer: JobObserver, *, on_loop: bool = True) -> None:
        """Submit a job. With `on_loop` on the loop; else from any thread, and its events are told
        on the node's. Raises NodeClosed."""
        observers = self._loop_jobs if on_loop else self._thread_jobs
        observers[job.job_id] = observer
        self._begun(job)
        try:
            self.call(lambda shell: shell.feed(Submit(job)))
        except NodeClosed:
            del observers[job.job_id]
            raise

    def adopt(self, job: Job, observer: JobObserver) -> None:
        """On the loop: a job that is submitted elsewhere."""
        self._loop_jobs[job.job_id] = observer

    def cancel(self, job_id: str) -> None:
        """On the loop: take back what waits of a job, and stop what runs, unless it is over."""
        if job_id in self._loop_jobs:
            with contextlib.suppress(NodeClosed):  # the job ends with the node
                self.call(lambda shell: shell.feed(CancelJob(job_id)))

    def drop(self, job_ids: Iterable[str], error: FormationError) -> None:
        """On the loop: these jobs end with this error."""
        for job_id in job_ids:
            observer = self._loop_jobs.pop(job_id, None)
            if observer is not None:
                observer.fail(error)

    def fail(self, error: FormationError, spared: Container[str] = ()) -> None:
        """On the loop: all that is pending ends with this error, except the jobs spared."""
        for observers in (self._loop_jobs, self._thread_jobs):
            # Those that another thread began come and go there meanwhile.
            for job_id in [job_id for job_id in list(observers) if job_id not in spared]:
                observer = observers.pop(job_id, None)
                if observer is not None:
                    observer.fail(error)
        self.queries.fail(error)

    def on_loop(self, function: Callable[[], object]) -> None:
        """From any thread."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            # The application closed its loop without leaving the node: nothing reads the inbox.
            self._inbox.clear()

    def tell(self, effects: Iterable[UserEffect]) -> None:
        """On the node's thread: hand over, and wake the loop once for all of them."""
        for effect in effects:
            if _deliver(effect, self._thread_jobs) is None:
                self._inbox.append(effect)
        self._wake()

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
                    self._answer(item)
            except Exception:
                # A fault of ours with one event must not keep the others from their jobs.
                log.exception("an event could not be handed on; please report this")
        for observer in touched:
            observer.flush()
        self._wake()

    def _answer(self, effect: UserEffect) -> None:
        match effect:
            case Explained():
                self.queries.explained(effect)
            case RejectRequest(what, why):
                error = InvalidInput(what, why)
                if not self.queries.reject(what, error):
                    log.error("%s", error)  # its caller does not wait any more
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
            observer.tell(effect.event)
            if observer.is_over:
                observers.pop(effect.job_id, None)
    elif type(effect) is RejectRequest:
        observer = observers.pop(effect.what, None)
        if observer is not None:
            observer.fail(InvalidInput(effect.what, effect.why))
    return observer
