"""What runs under a worker's leases, and the results that wait to be acknowledged.

Attempts go to the shell as they come, which runs those of one lease in order. A result stays in
the outbox until the scheduler has acknowledged it; where the stream may have lost it, it is sent
again as soon as the scheduler is heard of. When the lease ends, all of it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from formation_p2p.core.errors import InvalidInput, ensure
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import MIB
from formation_p2p.drivers.core.effects import (
    Continue,
    Execute,
    ExecutionEffect,
    ExecutionEvent,
    ExecutionOutput,
    ExecutionSaved,
    ExecutionsEnded,
    ExecutionStarted,
    FreeResults,
    GoOnPrinting,
    Kill,
    Pause,
    Work,
)
from formation_p2p.leases.core.in_flight import BATCH_BYTES, InFlight, SharedBlobs
from formation_p2p.leases.core.lease import Lease
from formation_p2p.leases.core.messages import (
    MAX_MESSAGE_CHARS,
    MAX_OUTPUT_BYTES,
    Cancel,
    Dispatch,
    OutputRead,
    ResultAck,
    TaskCheckpoint,
    TaskOutput,
    TasksEnded,
    TaskStarted,
)
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS, LeaseParameters
from formation_p2p.leases.core.session import Send
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.workload.core.checkpoint import MAX_SEQUENCE, Checkpoint
from formation_p2p.workload.core.data_rule import DataRule
from formation_p2p.workload.core.inputs_from import process_in, work_of
from formation_p2p.workload.core.outcome import Ended, Failed, FailureKind
from formation_p2p.workload.core.parcel import size_at_worker
from formation_p2p.workload.core.process import ContainerSpec, ImageSpec, ProcessSpec, WasmSpec
from formation_p2p.workload.core.work import MAX_RESULT_BYTES, Task

# The work of others names no data that has rules.
_DRIVERS: Final = frozenset(
    each.driver for each in (ContainerSpec, ImageSpec, ProcessSpec, WasmSpec)
)


def process_of(needs: Requirements, payload: bytes, shared: bytes) -> ProcessSpec | None:
    """What a task runs; None for the work of others, and for what its driver will refuse."""
    if needs.driver not in _DRIVERS:
        return None
    try:
        return process_in(work_of(Task("task", needs, payload, shared=shared)))
    except InvalidInput:
        return None


def outside(process: ProcessSpec | None, refuses: Callable[[DataRule], str | None]) -> str | None:
    """Why the owner of a task may not have what it makes; None where he may. `refuses` says why he
    may not read data under a rule."""
    for name, blob in () if process is None else process.inputs.items():
        why = None if blob.rule is None else refuses(blob.rule)
        if why is not None:
            return f"what is made of {name!r} is not for you: its owner {why}; submit it from there"
    return None


# Results of one lease not yet acknowledged: as much as may be in flight (in_flight.py).
MAX_OUTBOX_BYTES: Final = 2 * MAX_RESULT_BYTES
# Of these, those whose content waits on this machine to be fetched: a few large arrays, so that the
# next call runs meanwhile. Each of those in memory has a descriptor.
MAX_KEPT_BYTES: Final = 256 * MIB
MAX_KEPT: Final = 64


@dataclass(slots=True)
class LeaseExecutions:
    """What goes on under one lease. `in_flight` has the size of each payload, and what it shares;
    `unsent` are the results of the outbox that the owner may not have seen, `kept_bytes` the sizes
    of those whose content it has to fetch; `began` is the attempt
    that it was last told to run for long. `saved` has the number of the last checkpoint of each
    attempt in flight that has one, and 0 where it is a process that saves by ending."""

    lease: Lease
    window: int
    shared_blobs: SharedBlobs = field(default_factory=SharedBlobs)
    in_flight: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    load: InFlight = field(default_factory=InFlight)
    outbox: dict[str, Ended] = field(default_factory=dict)
    outbox_bytes: int = 0
    unsent: set[str] = field(default_factory=set)
    kept_bytes: dict[str, int] = field(default_factory=dict)
    began: str = ""
    paused: bool = False
    saved: dict[str, int] = field(default_factory=dict)

    def has_room_for(self, payload: bytes, shared: bytes) -> bool:
        # Attempts of one window may all end while those of the next come. One message carries as
        # many (leases/core/messages.py).
        return (
            len(self.in_flight) < self.window
            and len(self.in_flight) + len(self.outbox) < 2 * self.window
            and self.load.has_room_for(payload, shared)
        )

    @property
    def outbox_is_full(self) -> bool:
        if len(self.outbox) >= self.window or self.outbox_bytes >= MAX_OUTBOX_BYTES:
            return True
        # The kernel counts them as the memory of the interpreter that wrote them.
        most = min(MAX_KEPT_BYTES, self.lease.needs.memory_bytes // 4)
        return len(self.kept_bytes) >= MAX_KEPT or sum(self.kept_bytes.values()) > most


class Executions:
    """A `Lease` given here has been checked to be in force and the sender's (the lessor does).
    `runs` are by lease id; others only read them."""

    def __init__(self, parameters: LeaseParameters = LEASE_DEFAULTS) -> None:
        self._window = parameters.window
        self.runs: dict[str, LeaseExecutions] = {}

    def is_idle(self, lease_id: str) -> bool:
        """Whether nothing runs under a lease, and its owner has all results."""
        run = self.runs.get(lease_id)
        return run is None or not (run.in_flight or run.outbox)

    def saves(self, lease_id: str) -> bool:
        """Whether an attempt in flight has saved, goes on from a checkpoint, or saves by ending."""
        run = self.runs.get(lease_id)
        return run is not None and bool(run.saved)

    def dispatched(
        self,
        lease: Lease,
        message: Dispatch,
        refuses: Callable[[DataRule], str | None] = lambda rule: None,
    ) -> list[ExecutionEffect]:
        """Hand over what is new, if the owner may have what becomes of data under its rules:
        `refuses` says why he may not. An attempt that is known already is not run again: the
        scheduler repeats a dispatch when it cannot know whether the first arrived."""
        run = self.runs.setdefault(lease.lease_id, LeaseExecutions(lease, self._window))
        for number, data in message.shared_blobs:
            run.shared_blobs.keep(number, data)
        work: list[Work] = []
        refused: list[Ended] = []
        effects: list[ExecutionEffect] = []
        cause = f"dispatch under {lease.lease_id}"
        for assignment in message.assignments:
            attempt_id = assignment.attempt_id
            if attempt_id in run.in_flight or attempt_id in run.outbox:
                if attempt_id == run.began and attempt_id in run.in_flight:
                    effects.append(_started(run, attempt_id, cause))
                continue
            shared = run.shared_blobs.get(assignment.shared_blob) if assignment.shared_blob else b""
            if lease.ending is not None:
                given_back = Failed(FailureKind.CANCELLED, "the lease ends; nothing more begins")
                refused.append(Ended(attempt_id, given_back, 0))
            elif shared is None:
                problem = f"shared blob {assignment.shared_blob} is not here; dispatch it again"
                refused.append(_not_run(attempt_id, problem))
            elif not run.has_room_for(assignment.payload, shared):
                problem = f"{len(run.in_flight)} attempts wait under this lease; wait for one"
                refused.append(_not_run(attempt_id, problem))
            elif why := outside(
                process := process_of(lease.needs, assignment.payload, shared), refuses
            ):
                refused.append(Ended(attempt_id, Failed(FailureKind.INVALID, why), 0))
            else:
                run.in_flight[attempt_id] = len(assignment.payload), shared
                run.load.add(len(assignment.payload), shared)
                timeout_s = assignment.timeout_ms / 1000 if assignment.timeout_ms else None
                checkpoint = assignment.checkpoint
                if process is not None and process.checkpoint_files:
                    run.saved[attempt_id] = 0
                if checkpoint is not None:
                    run.saved[attempt_id] = checkpoint.sequence
                restored = None if checkpoint is None else checkpoint.blob
                content = None if checkpoint is None else checkpoint.content
                payload = assignment.payload
                work.append(Work(attempt_id, shared, payload, timeout_s, restored, content))
        if work:
            devices = lease.device_ids
            owner = lease.owner.peer_id
            effects.append(
                Execute(lease.lease_id, lease.needs, devices, tuple(work), owner, cause=cause)
            )
        return effects + self._results(run, refused, cause) + self._send_unsent(run, cause)

    def received(
        self, sender: PeerId, message: Cancel | ResultAck | OutputRead
    ) -> list[ExecutionEffect]:
        run = self.runs.get(message.lease_id)
        if run is None or run.lease.owner.peer_id != sender:
            return []
        if isinstance(message, OutputRead):
            if message.attempt_id not in run.in_flight:
                return []
            asked = message.lease_id, message.attempt_id, message.more
            return [GoOnPrinting(*asked, cause="the owner answers")]
        if isinstance(message, Cancel):
            return [
                Kill(
                    *(message.lease_id, attempt_id, message.begun, message.grace_ms / 1000),
                    cause="the owner cancels it",
                )
                for attempt_id in message.attempt_ids
                if attempt_id in run.in_flight
            ]
        fetched: list[str] = []
        for attempt_id in message.attempt_ids:
            ended = run.outbox.pop(attempt_id, None)
            if ended is not None:
                run.outbox_bytes -= _bytes_of(ended)
                run.unsent.discard(attempt_id)
                if run.kept_bytes.pop(attempt_id, 0):
                    fetched.append(attempt_id)
        effects: list[ExecutionEffect] = []
        cause = "results are acknowledged"
        if fetched:
            effects.append(FreeResults(message.lease_id, tuple(fetched), cause=cause))
        if run.paused and not run.outbox_is_full:
            run.paused = False
            effects.append(Continue(message.lease_id, cause=cause))
        return effects

    def noticed(self, lease_id: str, grace_s: float) -> list[ExecutionEffect]:
        """The lease ends: what has not begun goes back, and what runs has so long to end."""
        run = self.runs.get(lease_id)
        cause = "the lease ends"
        in_flight = () if run is None else run.in_flight
        return [Kill(lease_id, each, True, grace_s, cause=cause) for each in in_flight]

    def renewed(self, lease: Lease) -> list[ExecutionEffect]:
        """The scheduler is there: send again what it may have missed."""
        run = self.runs.get(lease.lease_id)
        return [] if run is None else self._send_unsent(run, "renewal")

    def interrupted(self, owner: PeerId) -> None:
        """The stream to a scheduler broke: it may have missed whatever it has not acknowledged."""
        for run in self.runs.values():
            if run.lease.owner.peer_id == owner:
                run.unsent = set(run.outbox)

    def handle_report(self, event: ExecutionEvent) -> list[ExecutionEffect]:
        run = self.runs.get(event.lease_id)
        if run is None:
            return []  # its lease ended first: no peer may have the result
        match event:
            case ExecutionStarted():
                run.began = event.attempt_id
                return [_started(run, run.began, "the driver started it")]
            case ExecutionOutput(lease_id, attempt_id, is_stderr, data):
                starts = range(0, len(data) or 1, MAX_OUTPUT_BYTES)
                pieces = (data[start : start + MAX_OUTPUT_BYTES] for start in starts)
                printed = (TaskOutput(lease_id, attempt_id, is_stderr, each) for each in pieces)
                return [Send(run.lease.owner, each, cause="the task printed") for each in printed]
            case ExecutionSaved():
                return _saved(run, event)
            case ExecutionsEnded():
                return self._ended(run, event.ended)
            case _:
                assert_never(event)

    def _ended(self, run: LeaseExecutions, ended: Iterable[Ended]) -> list[ExecutionEffect]:
        results: list[Ended] = []
        for each in ended:
            known = run.in_flight.pop(each.attempt_id, None)
            if known is None:
                continue
            run.saved.pop(each.attempt_id, None)
            run.load.remove(*known)
            kept = _bounded(each)
            run.outbox[kept.attempt_id] = kept
            run.outbox_bytes += _bytes_of(kept)
            if size := size_at_worker(run.lease.needs.driver, kept.outcome):
                run.kept_bytes[kept.attempt_id] = size
            results.append(kept)
        cause = "attempts ended"
        effects = self._results(run, results, cause)
        if run.outbox_is_full and not run.paused:
            run.paused = True
            effects.append(Pause(run.lease.lease_id, cause=cause))
        return effects

    def in_flight(self, lease_id: str) -> int:
        run = self.runs.get(lease_id)
        return 0 if run is None else len(run.in_flight)

    def drop(self, lease_id: str) -> None:
        """The lease ended. What still runs under it, the shell is killing."""
        self.runs.pop(lease_id, None)

    def validate(self, leased: Collection[str]) -> None:
        """Raises InvariantBroken; also where something runs under a lease that is not `leased`."""
        for lease_id, run in self.runs.items():
            ensure(lease_id in leased, f"attempts run under {lease_id}, which is not a lease")
            both = run.in_flight.keys() & run.outbox.keys()
            ensure(not both, f"{sorted(both)} of {lease_id} run, and have ended")
            ensure(run.unsent <= run.outbox.keys(), f"{lease_id} sends what is not in its outbox")
            kept = run.kept_bytes.keys()
            ensure(kept <= run.outbox.keys(), f"{lease_id} keeps what is not in its outbox")
            outbox_bytes = sum(map(_bytes_of, run.outbox.values()))
            ensure(outbox_bytes == run.outbox_bytes, f"the outbox of {lease_id} has another size")

    def _send_unsent(self, run: LeaseExecutions, cause: str) -> list[ExecutionEffect]:
        if not run.unsent:
            return []
        again = [ended for ended in run.outbox.values() if ended.attempt_id in run.unsent]
        run.unsent = set()
        return self._results(run, again, cause)

    def _results(
        self, run: LeaseExecutions, ended: Iterable[Ended], cause: str
    ) -> list[ExecutionEffect]:
        lease = run.lease
        return [
            Send(lease.owner, TasksEnded(lease.lease_id, lease.fence, batch), cause=cause)
            for batch in _batches(ended)
        ]


def _started(run: LeaseExecutions, attempt_id: str, cause: str) -> Send:
    return Send(run.lease.owner, TaskStarted(run.lease.lease_id, attempt_id), cause=cause)


def _saved(run: LeaseExecutions, event: ExecutionSaved) -> list[ExecutionEffect]:
    """One that is over saves nothing any more."""
    attempt_id = event.attempt_id
    if attempt_id not in run.in_flight:
        return []
    lease, sequence = run.lease, run.saved.get(attempt_id, 0) + 1
    if sequence > MAX_SEQUENCE:
        return []  # an owner that sent the last number has none left
    run.saved[attempt_id] = sequence
    checkpoint = Checkpoint(sequence, event.blob, event.content)
    told = TaskCheckpoint(lease.lease_id, lease.fence, attempt_id, checkpoint)
    return [Send(lease.owner, told, cause=f"{attempt_id} has saved")]


def _batches(ended: Iterable[Ended]) -> Iterable[tuple[Ended, ...]]:
    batch: list[Ended] = []
    batch_bytes = 0
    for each in ended:
        size = _bytes_of(each)
        if batch and batch_bytes + size > BATCH_BYTES:
            yield tuple(batch)
            batch, batch_bytes = [], 0
        batch.append(each)
        batch_bytes += size
    if batch:
        yield tuple(batch)


def _bytes_of(ended: Ended) -> int:
    """At the most, as it travels: a character has up to four."""
    outcome = ended.outcome
    message = outcome.message if isinstance(outcome, Failed) else ""
    return len(outcome.result) + 4 * len(message)


def _bounded(ended: Ended) -> Ended:
    """What travels. A driver may be anybody's, and what is too large would cost the stream."""
    outcome = ended.outcome
    result_bytes = len(outcome.result)
    if result_bytes > MAX_RESULT_BYTES:
        problem = f"the result has {result_bytes} bytes, of at most {MAX_RESULT_BYTES}"
        return replace(ended, outcome=Failed(FailureKind.OUTPUT, problem))
    if isinstance(outcome, Failed) and len(outcome.message) > MAX_MESSAGE_CHARS:
        end = outcome.message[-MAX_MESSAGE_CHARS:]
        return replace(ended, outcome=replace(outcome, message=end))
    return ended


def _not_run(attempt_id: str, problem: str) -> Ended:
    """An attempt that never ran. It needs no outbox: a scheduler that misses it asks again."""
    return Ended(attempt_id, Failed(FailureKind.DRIVER, problem), 0)
