"""A scheduler's disk: what is written in order, what is performed once it is, what a crash leaves.

As the shell does it in production: `EmitJobEvent`, `PersistLease`, `ForgetLease` and a `ResultAck`
are noted in order, written in batches, and performed when their batch is on the disk. A crash loses
what was not written yet; a full disk keeps everything that was to be written waiting. From what is
written the next incarnation begins (`jobs/core/saved.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

from formation_p2p.assembly import PeerEffect
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core import job_events
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.saved import (
    SavedJob,
    SavedLease,
    SavedTask,
    files_in,
    with_outputs,
)
from formation_p2p.jobs.core.task_run import TaskState
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.checkpoint import Checkpoint

if TYPE_CHECKING:
    from simulations.simulator.world import World

# A full disk is tried again this often.
TRY_AGAIN_S: Final = 1.0

_ENDED: Final[dict[type[job_events.JobEvent], TaskState]] = {
    job_events.TaskSucceeded: TaskState.SUCCEEDED,
    job_events.TaskGaveUp: TaskState.FAILED,
    job_events.TaskDisagreed: TaskState.FAILED,
    job_events.TaskUnplaceable: TaskState.UNPLACEABLE,
    job_events.TaskCancelled: TaskState.CANCELLED,
}

# What a lease has on the disk.
_HELD: Final = tuple(part.name for part in fields(SavedLease) if part.name != "attempts")


@dataclass(slots=True)
class Stored:
    """A job on the disk, and all that it told, in order."""

    job: Job
    events: list[job_events.JobEvent] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], job_events.JobEnded)


class Disk:
    """Of one scheduler, over all of its incarnations. `latency_s` is how long a write takes."""

    def __init__(self, world: World, latency_s: Callable[[], float]) -> None:
        self.jobs: dict[str, Stored] = {}
        self.settled: set[str] = set()  # the tasks that have ended
        self.is_full = False
        self._world = world
        self.latency_s = latency_s
        self._leases: dict[tuple[PeerId, str], job_events.PersistLease] = {}
        self._waiting: list[tuple[PeerEffect, Callable[[PeerEffect], None]]] = []
        self._writing: int | None = None
        self._writes = 0

    def submit(self, job: Job) -> bool:
        """Whether it is stored: before anything else knows of it."""
        if self.is_full:
            return False
        self.jobs[job.job_id] = Stored(job)
        return True

    def forget(self, job_id: str) -> None:
        """A job that was refused."""
        del self.jobs[job_id]

    def note(self, effect: PeerEffect, perform: Callable[[PeerEffect], None]) -> None:
        """Write it after what was noted before, then have it performed."""
        self._waiting.append((effect, perform))
        self._write()

    def crash(self, written: bool) -> None:
        """What was not written is lost. A batch that was being written is there, or is not."""
        if self._writing is not None and written:
            for effect, _ in self._waiting[: self._writing]:
                self._keep(effect)
        self._waiting.clear()
        self._writing = None
        self._writes += 1

    def saved(self) -> tuple[tuple[SavedJob, ...], tuple[SavedLease, ...]]:
        """What the next incarnation begins with."""
        jobs = [stored for stored in self.jobs.values() if not stored.is_over]
        in_flight: dict[tuple[PeerId, str], dict[str, str]] = {}
        saved = tuple(SavedJob(stored.job, _begun(stored, in_flight)) for stored in jobs)
        leases = tuple(
            SavedLease(
                **{name: getattr(hold, name) for name in _HELD},
                attempts=tuple(in_flight.get(key, {}).items()),
            )
            for key, hold in self._leases.items()
        )
        return saved, leases

    def _write(self) -> None:
        if self._writing is None and self._waiting:
            self._writing = len(self._waiting)
            self._world.after(self.latency_s(), self._written, self._writes)

    def _written(self, write: int) -> None:
        if self._writing is None or write != self._writes:
            return  # the machine crashed meanwhile
        if self.is_full:
            self._world.after(TRY_AGAIN_S, self._written, write)
            return
        batch = self._waiting[: self._writing]
        del self._waiting[: self._writing]
        self._writing = None
        for effect, _ in batch:
            self._keep(effect)
        for effect, perform in batch:
            perform(effect)
        self._write()

    def _keep(self, effect: PeerEffect) -> None:
        match effect:
            case job_events.EmitJobEvent(job_id, event):
                stored = self.jobs.get(job_id)
                if stored is not None and not stored.is_over:
                    stored.events.append(event)
                    if isinstance(event, job_events.TaskReopened):
                        self.settled.discard(event.task_id)
                    if isinstance(event, job_events.TaskEnd):
                        self.settled.add(event.task_id)
            case job_events.PersistLease(lease_id, lessor):
                self._leases[lessor.peer_id, lease_id] = effect
            case job_events.ForgetLease(worker, lease_id):
                self._leases.pop((worker, lease_id), None)


def _begun(
    stored: Stored, in_flight: dict[tuple[PeerId, str], dict[str, str]]
) -> tuple[SavedTask, ...]:
    """Of one job; `in_flight` gets its attempts that have not ended, by their lease."""
    tried: Counter[str] = Counter()
    attempts: defaultdict[str, list[job_events.Attempt]] = defaultdict(list)
    answers: defaultdict[str, list[job_events.Answer]] = defaultdict(list)
    ended: dict[str, TaskState] = {}
    placed: dict[str, job_events.TaskPlaced] = {}
    saved: dict[str, Checkpoint] = {}
    # Of tasks whose files are still looked after: who keeps them.
    kept = with_outputs(stored.job)
    none: tuple[PeerId | None, Mapping[str, Blob]] = (None, {})
    keepers: dict[str, tuple[PeerId | None, Mapping[str, Blob]]] = {}
    for event in stored.events:
        match event:
            case job_events.TaskPlaced(task_id, attempt_id):
                tried[task_id] += 1
                placed[attempt_id] = event
            case job_events.TaskRetried(task_id, attempt, counts):
                if counts:
                    attempts[task_id].append(attempt)
                placed.pop(attempt.attempt_id, None)
            case job_events.TaskSaved(task_id, checkpoint):
                saved[task_id] = checkpoint
            case job_events.TaskAnswered(task_id, answer):
                answers[task_id].append(answer)
                placed.pop(answer.attempt_id, None)
            case job_events.TaskRecalled(_, attempt_id):
                placed.pop(attempt_id, None)
            case job_events.TaskReopened(task_id):
                ended.pop(task_id, None)
                saved.pop(task_id, None)
                answers.pop(task_id, None)
                keepers.pop(task_id, None)
                placed = {a: known for a, known in placed.items() if known.task_id != task_id}
            case _ if isinstance(event, job_events.TaskEnd):
                if isinstance(event, job_events.TaskSucceeded) and event.task_id in kept:
                    keepers[event.task_id] = event.worker, files_in(event.result)
                ended[event.task_id] = _ENDED[type(event)]
    for attempt_id, each in placed.items():
        if each.task_id not in ended:
            in_flight.setdefault((each.worker, each.lease_id), {})[attempt_id] = each.task_id
    return tuple(
        SavedTask(
            task_id,
            tried[task_id],
            tuple(attempts[task_id]),
            ended.get(task_id),
            *keepers.get(task_id, none),
            checkpoint=saved.get(task_id),
            answers=tuple(answers.get(task_id, ())),
        )
        for task_id in {**tried, **ended}
    )
