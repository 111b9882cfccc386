"""The jobs of a node that outlive it: kept in a state, and gone on with in the next life."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from formation_p2p.api.bridge import Call, CaughtUp, JobBridge
from formation_p2p.api.job import JobHandle, TaskEnd
from formation_p2p.core.dispatch.job_events import JobEnded, JobEvent
from formation_p2p.core.dispatch.saved import SavedJob, SavedLease
from formation_p2p.core.errors import FormationError, InvalidInput, NodeClosed, StateError
from formation_p2p.core.identity import PeerId
from formation_p2p.core.peer.events import Resume, Submit
from formation_p2p.core.workload.task import Job
from formation_p2p.host.shell import Shell
from formation_p2p.host.storage.journal import Journal
from formation_p2p.host.storage.rows import JobSummary
from formation_p2p.host.storage.state import Retention, State

log = logging.getLogger(__name__)


class DurableJobs:
    """Made, opened and closed by a node. Methods are for its loop, where they say nothing else."""

    def __init__(self, path: Path, retention: Retention, desk: JobBridge, call: Call) -> None:
        self._path = path
        self._retention = retention
        self._desk = desk
        self._call = call
        self._own = PeerId("")
        self._state: State | None = None
        self._journal: Journal | None = None
        self._loaded: tuple[tuple[SavedJob, ...], tuple[SavedLease, ...]] | None = None
        self._resumed: set[str] = set()  # on the node's thread
        self._handles: dict[str, JobHandle] = {}

    # -- the life of a node -----------------------------------------------------------------------

    def open(self, own: PeerId) -> Journal:
        """In a thread, before the node's own begins. Raises StateError."""
        self._own = own
        self._state = state = State(self._path, self._retention)
        try:
            self._loaded = state.load(own)
            jobs = [saved.job for saved in self._loaded[0]]
            stories = [(job, tuple(state.history(job.job_id))) for job in jobs]
        except BaseException:
            state.close()
            self._state = None
            raise
        self._desk.on_loop(lambda: self._adopt(stories))
        self._journal = Journal(state, self._failed)
        return self._journal

    def resume(self, shell: Shell) -> None:
        """On the node's thread, with each new shell, before anything else is asked of it."""
        state, journal = self._opened()
        jobs, leases = self._loaded or ((), ())
        if self._loaded is None:  # the last shell crashed
            journal.begin_life()
            jobs, leases = state.load(self._own)
            for job_id in list(self._handles):
                missed = CaughtUp(job_id, tuple(state.history(job_id)), cause="a crash")
                self._desk.tell((missed,))
        self._loaded = None
        self._resumed = {saved.job.job_id for saved in jobs}
        shell.feed(Resume(jobs, leases))

    def stop(self) -> None:
        """In a thread, before the node leaves: jobs stay as they are, for the next life."""
        if self._journal is not None:
            self._journal.close()

    def close(self, *, left: bool) -> None:
        """In a thread, once the node's own has ended; `left` where that gave its leases back."""
        if self._state is None:
            return
        try:
            self._state.close(left=left)
        except StateError as error:
            log.error("what was stored before is there still: %s", error)

    # -- jobs -------------------------------------------------------------------------------------

    async def begin(self, job: Job) -> JobHandle:
        """Returns once the job is on the disk. Raises StateError, and then it is not kept, and
        not begun; InvalidInput for needs that no message carries."""
        state, _ = self._opened()
        # Before it is on the disk: from there a new shell may begin it first.
        handle = self._handle_of(job)
        saving = asyncio.ensure_future(asyncio.to_thread(state.save_job, job))
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            saving.add_done_callback(lambda _: self._refused(job.job_id))
            self._desk.drop((job.job_id,), NodeClosed("the submission was cancelled"))
            raise
        except FormationError as error:
            self._desk.drop((job.job_id,), error)
            raise

        def submit(shell: Shell) -> None:
            if job.job_id not in self._resumed:
                shell.feed(Submit(job))

        try:
            self._call(submit)
        except NodeClosed:
            log.info("the network stack is down; %s begins once it is up again", job.job_id)
        return handle

    def under_way(self) -> dict[str, JobHandle]:
        return {job_id: job for job_id, job in self._handles.items() if not job.is_over}

    async def job(self, job_id: str) -> JobHandle:
        """One that is kept. Raises InvalidInput where it is not, StateError."""
        if job_id in self._handles:
            return self._handles[job_id]
        state, _ = self._opened()
        job = await asyncio.to_thread(state.job, job_id)
        if job is None:
            problem = f"{job_id} is not in {self._path}; `formation jobs` lists those that are"
            raise InvalidInput("job", problem)
        events = await asyncio.to_thread(lambda: tuple(state.history(job_id)))
        handle = JobHandle(job, self._desk)
        _tell(handle, events)
        return handle

    async def summaries(self) -> tuple[JobSummary, ...]:
        """Of all that are kept, the oldest first. Raises StateError."""
        state, _ = self._opened()
        return await asyncio.to_thread(state.summaries)

    def catch_up(self, caught_up: CaughtUp) -> None:
        """Tell how tasks ended, as far as that has not been told."""
        handle = self._handles.get(caught_up.job_id)
        if handle is not None:
            missed = (
                event
                for event in caught_up.events
                if (isinstance(event, TaskEnd) and handle.result(event.task_id) is None)
                or isinstance(event, JobEnded)
            )
            _tell(handle, tuple(missed))

    # -- the insides ------------------------------------------------------------------------------

    def _opened(self) -> tuple[State, Journal]:
        if self._state is None or self._journal is None:
            raise NodeClosed("the node has not been entered; use `async with Node.join() as node`")
        return self._state, self._journal

    def _adopt(self, stories: list[tuple[Job, tuple[JobEvent, ...]]]) -> None:
        for job, events in stories:
            _tell(self._handle_of(job), events)

    def _handle_of(self, job: Job) -> JobHandle:
        handle = _Handle(job, self._desk, self._refused, self._ended)
        self._handles[job.job_id] = handle
        self._desk.adopt(job.job_id, handle)
        return handle

    def _ended(self, job_id: str) -> None:
        self._handles.pop(job_id, None)

    def _refused(self, job_id: str) -> None:
        asyncio.get_running_loop().run_in_executor(None, self._forget, job_id)

    def _forget(self, job_id: str) -> None:
        state, _ = self._opened()
        try:
            state.forget(job_id)
        except StateError as error:
            log.warning("%s was refused, but may be tried again in another life: %s", job_id, error)

    def _failed(self, error: StateError) -> None:
        """On the journal's thread: nobody is to wait for what cannot be told."""
        self._desk.on_loop(lambda: self._desk.drop(tuple(self._handles), error))


class _Handle(JobHandle):
    def __init__(
        self,
        job: Job,
        desk: JobBridge,
        refused: Callable[[str], None],
        ended: Callable[[str], None],
    ) -> None:
        super().__init__(job, desk, kept=True)
        self._refused = refused
        self._ended.add_done_callback(lambda _: ended(job.job_id))

    def fail(self, error: FormationError) -> None:
        if isinstance(error, InvalidInput):
            self._refused(self.job_id)
        super().fail(error)


def _tell(handle: JobHandle, events: tuple[JobEvent, ...]) -> None:
    for event in events:
        handle.tell(event)
    handle.told()
