"""A lease in force, and the attempts in flight under it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import ensure
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.task_run import TaskRun
from formation_p2p.leases.core.held_lease import HeldLease
from formation_p2p.leases.core.in_flight import BATCH_BYTES, InFlight, SharedBlobs
from formation_p2p.leases.core.messages import Assignment, Dispatch
from formation_p2p.workload.core.outcome import Ended, Succeeded


@dataclass(slots=True, eq=False)
class ActiveLease:
    """A lease in force and what runs under it, by attempt id, the oldest first.

    `shared_blobs` are what the worker has of what tasks share, `load` how much is in flight.
    `began` is the attempt that was last reported to run for long, and `began_s` when; `cleared` the
    one behind which nothing waits any more by its slowness. `recalled` are being taken back.
    `fetching` are those that have ended, and whose results are on their way: their runs, and how
    they ended. `heard_s` is since when the worker has reported the end of no attempt, `idle_s`
    since when none is in flight or fetched. One that is `leaving` gets nothing more to do, and
    `moved` are the tasks that go on elsewhere from what its worker has. Where several workers are
    to agree, `marks` are those of its worker that count, as it was when the lease was granted: what
    it has announced expires while a task runs. None where they are not known.
    """

    lease: HeldLease
    attempts: dict[str, TaskRun] = field(default_factory=dict)
    shared_blobs: SharedBlobs = field(default_factory=SharedBlobs)
    load: InFlight = field(default_factory=InFlight)
    began: str = ""
    began_s: float = float("inf")
    cleared: str = ""
    recalled: set[str] = field(default_factory=set)
    fetching: dict[str, tuple[TaskRun, Ended]] = field(default_factory=dict)
    idle_s: float = float("inf")
    heard_s: float = float("-inf")
    leaving: bool = False
    moved: list[TaskRun] = field(default_factory=list)
    marks: frozenset[str] | None = None

    @property
    def worker(self) -> PeerId:
        return self.lease.lessor.peer_id

    def add(self, attempt_id: str, run: TaskRun, now: Moment) -> None:
        if not self.attempts:
            self.heard_s = now.mono_s
        self.attempts[attempt_id] = run
        self.load.add(len(run.task.payload), run.task.shared)
        run.dispatched()
        self.idle_s = float("inf")

    def remove(self, attempt_id: str, now: Moment) -> TaskRun | None:
        run = self._remove(attempt_id)
        if run is not None:
            run.ended()
            self._idle(now)
        return run

    def fetch(self, ended: Ended) -> None:
        """One of the attempts has ended, and is in flight until its result is here."""
        run = self._remove(ended.attempt_id)
        assert run is not None
        self.fetching[ended.attempt_id] = run, ended

    def fetched(self, attempt_id: str, now: Moment) -> tuple[TaskRun, Ended] | None:
        """Its result is here, or does not come."""
        found = self.fetching.pop(attempt_id, None)
        if found is not None:
            found[0].ended()
            self._idle(now)
        return found

    @property
    def runs(self) -> Iterator[TaskRun]:
        """Of all that is in flight, on the worker or on its way back."""
        yield from self.attempts.values()
        yield from (run for run, _ in self.fetching.values())

    @property
    def is_busy(self) -> bool:
        return bool(self.attempts or self.fetching)

    def leave(self) -> None:
        """It ends soon: all that is in flight comes back, or ends."""
        self.leaving = True
        self.recalled.update(self.attempts)

    @property
    def is_left(self) -> bool:
        """Whether it is to be given back, with nothing of value at its worker."""
        return (
            self.leaving and not self.is_busy and not any(each.is_awaiting for each in self.moved)
        )

    def _remove(self, attempt_id: str) -> TaskRun | None:
        run = self.attempts.pop(attempt_id, None)
        if run is not None:
            self.load.remove(len(run.task.payload), run.task.shared)
            self.recalled.discard(attempt_id)
        return run

    def _idle(self, now: Moment) -> None:
        if not self.is_busy:
            self.idle_s = now.mono_s

    def has_room_for(self, run: TaskRun) -> bool:
        """For one whose checkpoint is on its way, none has."""
        return not run.is_awaiting and self.load.has_room_for(run.task.payload, run.task.shared)

    @property
    def slow(self) -> str | None:
        """The attempt that runs, where it has been running for longer than a moment."""
        first = next(iter(self.attempts), None)
        return first if first == self.began else None

    def ran(self, ended: Iterable[Ended], now: Moment) -> tuple[int, float]:
        """How many of the lease's attempts brought a result, and for how many seconds they ran
        together. It runs one at a time, so that they cannot have taken longer than the worker was
        silent before, whatever it says."""
        ran = [
            each.ran_us
            for each in ended
            if each.attempt_id in self.attempts and isinstance(each.outcome, Succeeded)
        ]
        silent_s, self.heard_s = now.mono_s - self.heard_s, now.mono_s
        return len(ran), min(sum(ran) / 1e6, silent_s) if ran else 0.0

    def started(self, attempt_id: str, now: Moment) -> None:
        """It runs for longer than a moment."""
        self.began, self.began_s = attempt_id, now.mono_s

    def recall(self, behind: list[str], slow: str) -> None:
        """These are being taken back: nothing is to wait behind the slow one."""
        self.cleared = slow
        self.recalled.update(behind)

    def recall_all(self) -> list[str]:
        """All are being taken back, as far as they have not begun: these were not before."""
        new = [attempt_id for attempt_id in self.attempts if attempt_id not in self.recalled]
        self.recalled.update(new)
        return new

    def behind(self, slow: str) -> list[str]:
        return [a for a in self.attempts if a != slow and a not in self.recalled]

    def messages(self, attempts: Iterable[tuple[str, TaskRun]]) -> Iterator[Dispatch]:
        """What brings these to the worker, with what it does not have yet of what they share."""
        lease = self.lease
        blobs: list[tuple[int, bytes]] = []
        assignments: list[Assignment] = []
        size = 0
        for attempt_id, run in attempts:
            task = run.task
            number, new = self.shared_blobs.number(task.shared) if task.shared else (0, False)
            more = len(task.payload) + (len(task.shared) if new else 0)
            if run.checkpoint is not None and run.checkpoint.content is not None:
                more += len(run.checkpoint.content)
            # The worker keeps all blobs of a message before it looks at what names them.
            gone = new and any(
                x.shared_blob and self.shared_blobs.get(x.shared_blob) is None for x in assignments
            )
            if assignments and (gone or size + more > BATCH_BYTES):
                yield Dispatch(lease.lease_id, lease.fence, tuple(blobs), tuple(assignments))
                blobs, assignments, size = [], [], 0
            if new:
                blobs.append((number, task.shared))
            assignments.append(
                Assignment(attempt_id, number, task.payload, run.job.timeout_ms, run.checkpoint)
            )
            size += more
        if assignments:
            yield Dispatch(lease.lease_id, lease.fence, tuple(blobs), tuple(assignments))

    def validate(self) -> None:
        """Raises InvariantBroken."""
        lease_id = self.lease.lease_id
        ensure(self.load.tasks == len(self.attempts), f"{lease_id} carries another load")
        ensure(self.recalled <= self.attempts.keys(), f"{lease_id} recalls what has ended")
        ensure((self.idle_s < float("inf")) != self.is_busy, f"{lease_id} is idle and busy")
