"""Where jobs are handed in, and from which their events are handed out: between the caller's
threads and the node's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable
from dataclasses import dataclass
from typing import Final

from formation_p2p.api.job import JobObserver
from formation_p2p.core.dispatch.job_events import EmitJobEvent, JobEvent
from formation_p2p.core.effects import Effect
from formation_p2p.core.errors import FormationError, InvalidInput, NodeClosed
from formation_p2p.core.peer.effects import RejectRequest, UserEffect
from formation_p2p.core.peer.events import CancelJob, Submit
from formation_p2p.core.placement.decision import Decision
from formation_p2p.core.placement.policy import PlacementPolicy
from formation_p2p.core.placement.scheduling_key import SchedulingKey
from formation_p2p.core.workload.task import Job
from formation_p2p.host.shell import Shell

log = logging.getLogger(__name__)

# Effects handed out in one turn of the caller's loop: some 2 ms of its time.
AT_A_TURN: Final = 1024


@dataclass(frozen=True, slots=True)
class CaughtUp(Effect):
    """What was stored of a job while its events could not be handed out."""

    job_id: str
    events: tuple[JobEvent, ...]


ApiEffect = UserEffect | CaughtUp

# Has the node's thread do something. Raises NodeClosed.
Call = Callable[[Callable[[Shell], None]], None]


class JobBridge:
    """A job's events go to its `JobObserver`: on the loop, or, for one begun `aside`, on the node's
    thread, where it must hand them over and return. All else goes to `rest`, on the loop. `begun`
    is told of each job that is submitted here, by whoever submits it. `decide` says on the loop who
    would run a task of these terms and this name now."""

    def __init__(
        self,
        call: Call,
        rest: Callable[[ApiEffect], None],
        begun: Callable[[Job], None],
        decide: Callable[[SchedulingKey, str], Awaitable[Decision]],
    ) -> None:
        self._call = call
        self.decide = decide
        self._begun = begun
        self._rest = rest
        self._loop: asyncio.AbstractEventLoop | None = None
        self._jobs: dict[str, JobObserver] = {}
        self._aside: dict[str, JobObserver] = {}
        self._inbox: deque[ApiEffect] = deque()
        self._woken = False

    def open(self) -> None:
        """On the loop that this is for."""
        self._loop = asyncio.get_running_loop()

    def begin(self, job: Job, told: JobObserver, policy: PlacementPolicy) -> None:
        """Submit a job. Raises NodeClosed."""
        self._begin(job, told, policy, self._jobs)

    def begin_aside(self, job: Job, told: JobObserver, policy: PlacementPolicy) -> None:
        """The same from any thread, and without the loop."""
        self._begin(job, told, policy, self._aside)

    def cancel(self, job_id: str) -> None:
        """Take back what waits of a job, and stop what runs. Nothing, where it is over."""
        if job_id in self._jobs:
            with contextlib.suppress(NodeClosed):  # and the job with it
                self._call(lambda shell: shell.feed(CancelJob(job_id)))

    def adopt(self, job_id: str, told: JobObserver) -> None:
        """On the loop: a job that somebody else submits, or has submitted."""
        self._jobs[job_id] = told

    def drop(self, job_ids: Iterable[str], error: FormationError) -> None:
        """On the loop: of these jobs no more is told, but this error."""
        for job_id in job_ids:
            told = self._jobs.pop(job_id, None)
            if told is not None:
                told.fail(error)

    def close(self, error: FormationError, spared: Container[str] = ()) -> None:
        """On the loop: whatever is pending ends with this error, but for the jobs spared."""
        for jobs in (self._jobs, self._aside):
            # Those begun aside come and go on other threads meanwhile.
            for job_id in [job_id for job_id in list(jobs) if job_id not in spared]:
                told = jobs.pop(job_id, None)
                if told is not None:
                    told.fail(error)

    def on_loop(self, function: Callable[[], None]) -> None:
        """From any thread."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            # The application closed its loop without leaving: nobody is there to be told.
            self._inbox.clear()

    def tell(self, effects: Iterable[ApiEffect]) -> None:
        """On the node's thread: hand over, waking the loop once for all of them."""
        for effect in effects:
            aside = None
            if type(effect) is EmitJobEvent:
                aside = self._aside.get(effect.job_id)
            elif type(effect) is RejectRequest:
                aside = self._aside.get(effect.what)
            if aside is None:
                self._inbox.append(effect)
            else:
                self._tell_aside(aside, effect)
        if self._inbox and not self._woken:
            self._woken = True
            self.on_loop(self._drain)

    # -- the insides ------------------------------------------------------------------------------

    def _begin(
        self, job: Job, told: JobObserver, policy: PlacementPolicy, jobs: dict[str, JobObserver]
    ) -> None:
        jobs[job.job_id] = told
        self._begun(job)
        try:
            self._call(lambda shell: shell.feed(Submit(job, policy)))
        except NodeClosed:
            del jobs[job.job_id]
            raise

    def _tell_aside(self, told: JobObserver, effect: ApiEffect) -> None:
        if type(effect) is EmitJobEvent:
            told.tell(effect.event)
            if told.is_over:
                self._aside.pop(effect.job_id, None)
        elif type(effect) is RejectRequest:
            self._aside.pop(effect.what, None)
            told.fail(InvalidInput(effect.what, effect.why))

    def _drain(self) -> None:
        # Before the inbox is read: what comes after that wakes the loop again.
        self._woken = False
        touched: dict[str, JobObserver] = {}
        for _ in range(AT_A_TURN):
            if not self._inbox:
                break
            try:
                self._hand_out(self._inbox.popleft(), touched)
            except Exception:
                # A fault of ours with one event must not keep the others from their jobs.
                log.exception("an event could not be handed on; please report this")
        for told in touched.values():
            told.told()
        if self._inbox and not self._woken:
            self._woken = True
            self.on_loop(self._drain)

    def _hand_out(self, effect: ApiEffect, touched: dict[str, JobObserver]) -> None:
        if type(effect) is EmitJobEvent:
            job_id = effect.job_id
            told = self._jobs.get(job_id)
            if told is not None:
                touched[job_id] = told
                told.tell(effect.event)
                if told.is_over:
                    del self._jobs[job_id]
        elif type(effect) is RejectRequest and effect.what in self._jobs:
            self._jobs.pop(effect.what).fail(InvalidInput(effect.what, effect.why))
        else:
            self._rest(effect)
