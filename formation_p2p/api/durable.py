"""The jobs that a node keeps in a state, so that they outlive it, and goes on with when it is
entered again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from formation_p2p.api.bridge import Bridge
from formation_p2p.api.job import JobHandle
from formation_p2p.api.reference import JobPacker
from formation_p2p.content.job_data import JobData
from formation_p2p.core.errors import FormationError, InvalidInput, NodeClosed, StateError
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import JobEnded, JobEvent, TaskEnd
from formation_p2p.jobs.core.saved import SavedJob, SavedLease
from formation_p2p.peer.core.events import Resume, Submit
from formation_p2p.peer.shell import Shell
from formation_p2p.placement.core.policy import PlacementPolicy
from formation_p2p.placement.policies import parse_policy
from formation_p2p.state.journal import Journal, JournalParameters
from formation_p2p.state.rows import JobSummary
from formation_p2p.state.state import Retention, State
from formation_p2p.workload.core.memory_estimate import MemoryEstimate

log = logging.getLogger(__name__)


class DurableJobs:
    """Made by a node, opened and closed by its services. Methods are for the node's loop, unless
    they say otherwise."""

    def __init__(
        self, path: Path, retention: Retention, bridge: Bridge, over: Callable[[str], None]
    ) -> None:
        self._path = path
        self._retention = retention
        self._bridge = bridge
        self._data = JobData(bridge.packer.blobs, path.with_name(f"{path.name}.calls"))
        self._over = over  # called with the job of which all tasks have ended
        self._own = PeerId("")
        self._state: State | None = None
        self._journal: Journal | None = None
        self._loaded: tuple[tuple[SavedJob, ...], tuple[SavedLease, ...]] | None = None
        self._resumed: set[str] = set()  # on the node's thread
        self._handles: dict[str, JobHandle] = {}
        self._left = False

    def open(
        self, own: PeerId, closing: ExitStack, parameters: JournalParameters | None = None
    ) -> Journal:
        """In a thread, before the node's own starts. What is opened is closed by `closing`. Raises
        StateError."""
        self._own = own
        self._state = state = State(self._path, self._retention)
        closing.callback(self._close, state)
        self._loaded = state.load(own)
        jobs = [saved.job for saved in self._loaded[0]]
        self._data.load({job.job_id for job in jobs})
        stories = [(job, tuple(state.history(job.job_id))) for job in jobs]
        self._bridge.on_loop(lambda: self._adopt(stories))
        self._journal = Journal(state, self._failed, parameters)
        closing.callback(self._journal.close)
        return self._journal

    def resume(self, shell: Shell) -> None:
        """On the node's thread, with each new shell, before anything else is asked of it."""
        state, journal = self._opened()
        jobs, leases = self._loaded or ((), ())
        if self._loaded is None:  # the last shell crashed
            journal.begin_incarnation()
            jobs, leases = state.load(self._own)
            for job_id in list(self._handles):
                events = tuple(state.history(job_id))
                self._bridge.in_turn(partial(self._catch_up, job_id, events))
        self._loaded = None
        self._resumed = {saved.job.job_id for saved in jobs}
        shell.feed(Resume(jobs, leases))

    def stop(self) -> None:
        """In a thread, before the node leaves: jobs stay as they are, for the next incarnation."""
        self._left = True
        if self._journal is not None:
            self._journal.close()

    def _close(self, state: State) -> None:
        try:
            state.close(left=self._left)
        except StateError as error:
            log.error("what was stored before is there still: %s", error)

    # Jobs.

    def packer(self, job_id: str) -> JobPacker:
        """For what is large in the calls of a job that begins, in a thread."""
        return JobPacker(self._bridge.packer, self._data, job_id)

    def let_go(self, job_id: str) -> None:
        """A job is over, or does not begin: nothing is kept for it any more."""
        asyncio.get_running_loop().run_in_executor(None, self._data.release, job_id)

    async def begin(
        self, job: Job, sizes: tuple[MemoryEstimate, ...], *, show_output: bool
    ) -> JobHandle:
        """Returns once the job is on the disk. Raises StateError, and then it is not kept, and
        not begun; InvalidInput for a policy without a name, and needs that no message carries."""
        if not _has_a_name(job.options.policy):
            problem = "the node's state keeps named policies only; join without a state for yours"
            raise InvalidInput("policy", problem)
        if job.options.quorum is not None:
            job.options.quorum.pack()  # raises
        state, _ = self._opened()
        # Before it is on the disk: from there a new shell may begin it first.
        handle = self._handle_of(job, sizes, show_output=show_output)

        def save() -> None:
            self._data.sync(job.job_id)
            state.save_job(job)

        saving = asyncio.ensure_future(asyncio.to_thread(save))
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            saving.add_done_callback(lambda _: self._refused(job.job_id))
            self._bridge.drop((job.job_id,), NodeClosed("the submission was cancelled"))
            raise
        except FormationError as error:
            self._bridge.drop((job.job_id,), error)
            raise

        def submit(shell: Shell) -> None:
            if job.job_id not in self._resumed:
                shell.feed(Submit(job, durable=True))

        try:
            self._bridge.call(submit)
        except NodeClosed:
            log.info("the network stack is down; %s begins once it is up again", job.job_id)
        return handle

    def has_ended(self, job_id: str) -> bool:
        """Whether the state keeps the job, and it has ended. Raises StateError."""
        state, _ = self._opened()
        return state.has_ended(job_id)

    @property
    def in_flight(self) -> dict[str, JobHandle]:
        return {job_id: job for job_id, job in self._handles.items() if not job.is_over}

    async def job(self, job_id: str) -> JobHandle:
        """Raises InvalidInput for a job that the state does not keep, StateError."""
        if job_id in self._handles:
            return self._handles[job_id]
        state, _ = self._opened()
        story = await asyncio.to_thread(state.story, job_id)
        if story is None:
            problem = f"{job_id} is not in {self._path}; `formation jobs` lists those that are"
            raise InvalidInput("job", problem)
        job, events = story
        if not isinstance(events[-1] if events else None, JobEnded):
            # It was dropped here, since the disk failed or its submission was cancelled.
            raise StateError(
                f"{self._path} does not say how {job_id} ended; ask again, or go on with it by "
                "`formation resume`"
            )
        handle = JobHandle(job, self._bridge)
        _tell(handle, events)
        return handle

    async def summaries(self) -> tuple[JobSummary, ...]:
        """Of all that are kept, the oldest first. Raises StateError."""
        state, _ = self._opened()
        return await asyncio.to_thread(state.summaries)

    def _opened(self) -> tuple[State, Journal]:
        if self._state is None or self._journal is None:
            raise NodeClosed("the node has not been entered; use `async with Node.join() as node`")
        return self._state, self._journal

    def _adopt(self, stories: Collection[tuple[Job, tuple[JobEvent, ...]]]) -> None:
        for job, events in stories:
            _tell(self._handle_of(job, ()), events)

    def _catch_up(self, job_id: str, events: tuple[JobEvent, ...]) -> None:
        """Tells how tasks ended while the stack was down."""
        handle = self._handles.get(job_id)
        if handle is not None:
            missed = (
                event
                for event in events
                if (isinstance(event, TaskEnd) and handle.result(event.task_id) is None)
                or isinstance(event, JobEnded)
            )
            _tell(handle, missed)

    def _handle_of(
        self, job: Job, sizes: tuple[MemoryEstimate, ...], *, show_output: bool = False
    ) -> JobHandle:
        handle = JobHandle(
            job, self._bridge, sizes=sizes, show_output=show_output, ended=self._ended
        )
        self._handles[job.job_id] = handle
        self._bridge.adopt(job, handle)
        return handle

    def _ended(self, job_id: str, error: BaseException | None) -> None:
        if isinstance(error, InvalidInput):
            self._refused(job_id)
        if error is None or isinstance(error, InvalidInput):
            self._over(job_id)
            self.let_go(job_id)
        self._handles.pop(job_id, None)

    def _refused(self, job_id: str) -> None:
        asyncio.get_running_loop().run_in_executor(None, self._forget, job_id)

    def _forget(self, job_id: str) -> None:
        state, _ = self._opened()
        try:
            state.forget(job_id)
        except StateError as error:
            log.warning("%s was refused; another incarnation may try it again: %s", job_id, error)

    def _failed(self, error: StateError) -> None:
        """On the journal's thread: what waits for events that cannot be stored ends."""
        self._bridge.on_loop(lambda: self._bridge.drop(tuple(self._handles), error))


def _tell(handle: JobHandle, events: Iterable[JobEvent]) -> None:
    for event in events:
        handle.notify(event)
    handle.flush()


def _has_a_name(policy: PlacementPolicy) -> bool:
    """By which another incarnation of the node, which may not have its code, can make it again."""
    try:
        return parse_policy(str(policy)) == policy
    except InvalidInput:
        return False
