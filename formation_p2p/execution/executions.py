"""What runs under a worker's leases: a queue for each lease, one execution at a time.

A result stays in the outbox until the scheduler has acknowledged it, and is sent again whenever
the scheduler renews. When the lease ends, all of it goes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from formation_p2p.effects import Effect
from formation_p2p.execution.effects import (
    Execute,
    ExecutionEnded,
    ExecutionOutput,
    ExecutionStarted,
    Kill,
)
from formation_p2p.identity import PeerId
from formation_p2p.negotiation.lessor import Lease
from formation_p2p.negotiation.messages import (
    MAX_OUTPUT_BYTES,
    Cancel,
    Dispatch,
    ResultAck,
    TaskEnded,
    TaskOutput,
    TaskStarted,
)
from formation_p2p.negotiation.session import Send
from formation_p2p.workload.outcome import Failed, FailureKind, Outcome
from formation_p2p.workload.payload import MAX_RESULT_BYTES
from formation_p2p.workload.task import MAX_PAYLOAD_BYTES

# Attempts waiting under one lease. A scheduler keeps two under way to hide the round trip; more
# would only hold tasks back from workers that are idle.
MAX_QUEUED: Final = 16
# Results not yet acknowledged under one lease. The next task waits while there are as many.
MAX_OUTBOX: Final = 16
# Either holds this much at the most: two of the largest. A lease takes 64 MiB of the machine's
# memory at the least, so that what the node keeps for its leases stays below what they reserve.
MAX_QUEUED_BYTES: Final = 2 * MAX_PAYLOAD_BYTES
MAX_OUTBOX_BYTES: Final = 2 * MAX_RESULT_BYTES


@dataclass(slots=True)
class _Run:
    """What goes on under one lease. `current` is the attempt that the shell is running."""

    lease: Lease
    queue: deque[Dispatch] = field(default_factory=deque)
    current: str | None = None
    outbox: dict[str, TaskEnded] = field(default_factory=dict)

    def knows(self, attempt_id: str) -> bool:
        return (
            attempt_id == self.current
            or attempt_id in self.outbox
            or any(each.attempt_id == attempt_id for each in self.queue)
        )

    def has_room_for(self, payload: bytes) -> bool:
        queued_bytes = sum(len(each.payload) for each in self.queue)
        return len(self.queue) < MAX_QUEUED and queued_bytes + len(payload) <= MAX_QUEUED_BYTES

    def may_start(self) -> bool:
        unacknowledged_bytes = sum(len(each.outcome.result) for each in self.outbox.values())
        return (
            self.current is None
            and len(self.queue) > 0
            and len(self.outbox) < MAX_OUTBOX
            and unacknowledged_bytes < MAX_OUTBOX_BYTES
        )


class Executions:
    """A `Lease` given here has been checked to be in force and the sender's (the lessor does)."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    def dispatched(self, lease: Lease, message: Dispatch) -> list[Effect]:
        """Queue an attempt. One that is known already is not run again: the scheduler repeats
        a dispatch when it cannot know whether the first arrived."""
        run = self._runs.setdefault(lease.lease_id, _Run(lease))
        cause = f"dispatch of {message.attempt_id}"
        if run.knows(message.attempt_id):
            ended = run.outbox.get(message.attempt_id)
            return [] if ended is None else [Send(lease.owner, ended, cause=cause)]
        if message.driver != lease.needs.driver:
            # The grant was checked for the driver that the lease names.
            problem = f"the lease is for the driver {lease.needs.driver}, not {message.driver}"
            return [_refuse(lease, message, FailureKind.INVALID, problem)]
        if not run.has_room_for(message.payload):
            problem = f"{len(run.queue)} attempts wait under this lease; wait for one to end"
            return [_refuse(lease, message, FailureKind.DRIVER, problem)]
        run.queue.append(message)
        return self._start_next(run, cause)

    def cancelled(self, sender: PeerId, message: Cancel) -> list[Effect]:
        run = self._run_of(sender, message.lease_id)
        if run is None:
            return []
        lease = run.lease
        if run.current == message.attempt_id:
            return [Kill(lease.lease_id, message.attempt_id, cause="the owner cancels it")]
        for queued in run.queue:
            if queued.attempt_id == message.attempt_id:
                run.queue.remove(queued)
                return [_refuse(lease, queued, FailureKind.CANCELLED, "it had not started")]
        return []

    def acknowledged(self, sender: PeerId, message: ResultAck) -> list[Effect]:
        run = self._run_of(sender, message.lease_id)
        if run is None or run.outbox.pop(message.attempt_id, None) is None:
            return []
        return self._start_next(run, f"{message.attempt_id} is acknowledged")

    def renewed(self, lease: Lease) -> list[Effect]:
        """The scheduler is there: send again what it has not acknowledged."""
        run = self._runs.get(lease.lease_id)
        if run is None:
            return []
        return [Send(lease.owner, each, cause="renewal") for each in run.outbox.values()]

    def started(self, event: ExecutionStarted) -> list[Effect]:
        run = self._runs.get(event.lease_id)
        if run is None:
            return []
        started = TaskStarted(event.lease_id, event.attempt_id)
        return [Send(run.lease.owner, started, cause="the driver started it")]

    def printed(self, event: ExecutionOutput) -> list[Effect]:
        run = self._runs.get(event.lease_id)
        if run is None:
            return []
        pieces = (
            event.data[start : start + MAX_OUTPUT_BYTES]
            for start in range(0, len(event.data), MAX_OUTPUT_BYTES)
        )
        return [
            Send(
                run.lease.owner,
                TaskOutput(event.lease_id, event.attempt_id, event.is_stderr, piece),
                cause="the task printed",
            )
            for piece in pieces
        ]

    def ended(self, event: ExecutionEnded) -> list[Effect]:
        run = self._runs.get(event.lease_id)
        if run is None or run.current != event.attempt_id:
            return []  # its lease ended first: nobody may have the result
        run.current = None
        lease = run.lease
        outcome = _bounded(event.outcome)
        ended = TaskEnded(lease.lease_id, lease.fence, event.attempt_id, outcome, event.ran_ms)
        run.outbox[event.attempt_id] = ended
        cause = f"{event.attempt_id} ended"
        return [Send(lease.owner, ended, cause=cause), *self._start_next(run, cause)]

    def drop(self, lease_id: str) -> None:
        """The lease ended. What still runs under it, the shell is killing."""
        self._runs.pop(lease_id, None)

    def _run_of(self, owner: PeerId, lease_id: str) -> _Run | None:
        run = self._runs.get(lease_id)
        return run if run is not None and run.lease.owner.peer_id == owner else None

    def _start_next(self, run: _Run, cause: str) -> list[Effect]:
        if not run.may_start():
            return []
        message = run.queue.popleft()
        run.current = message.attempt_id
        lease = run.lease
        return [
            Execute(
                lease.lease_id,
                message.attempt_id,
                message.driver,
                message.payload,
                lease.needs.cpu_milli,
                lease.needs.memory_bytes,
                lease.device_ids,
                message.timeout_ms / 1000 if message.timeout_ms else None,
                cause=cause,
            )
        ]


def _bounded(outcome: Outcome) -> Outcome:
    """What travels. A driver may be anybody's, and a result too large would cost the stream."""
    if len(outcome.result) <= MAX_RESULT_BYTES:
        return outcome
    problem = f"the result has {len(outcome.result)} bytes, of at most {MAX_RESULT_BYTES}"
    return Failed(FailureKind.OUTPUT, problem)


def _refuse(lease: Lease, message: Dispatch, kind: FailureKind, problem: str) -> Send:
    """An attempt that never ran. It needs no outbox: a scheduler that misses it asks again."""
    failed = Failed(kind, problem)
    ended = TaskEnded(lease.lease_id, lease.fence, message.attempt_id, failed, 0)
    return Send(lease.owner, ended, cause=f"{message.attempt_id} did not start")
