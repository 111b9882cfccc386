"""What runs under alice's leases: bob dispatches, and gets each result until he has it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from formation_p2p.effects import Contact
from formation_p2p.execution.effects import (
    Execute,
    ExecutionEnded,
    ExecutionOutput,
    ExecutionStarted,
    Kill,
)
from formation_p2p.execution.executions import (
    MAX_OUTBOX,
    MAX_OUTBOX_BYTES,
    MAX_QUEUED,
    MAX_QUEUED_BYTES,
    Executions,
)
from formation_p2p.negotiation.lessor import Lease, LeaseState
from formation_p2p.negotiation.messages import (
    MAX_OUTPUT_BYTES,
    Cancel,
    Dispatch,
    PlacementRequest,
    ResultAck,
    TaskEnded,
    TaskOutput,
    TaskStarted,
    pack,
    parse,
)
from formation_p2p.negotiation.session import Send
from formation_p2p.resources.fits import GpuClaim
from formation_p2p.resources.ledger import Reservation
from formation_p2p.workload.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.payload import MAX_RESULT_BYTES
from formation_p2p.workload.task import MAX_PAYLOAD_BYTES
from tests.unit.stories import BOB, CAROL, MALLORY, NEEDS, sent

FENCE = 5
DONE = Succeeded(b"done")


def lease_of(owner: Contact, lease_id: str = "lease") -> Lease:
    needs = replace(NEEDS, gpu_count=1)
    return Lease(
        lease_id,
        owner,
        PlacementRequest(1, needs, b"a grant"),
        Reservation(lease_id, needs, (GpuClaim("GPU-7", 1000, 2**30),)),
        LeaseState.LEASED,
        10.0,
        FENCE,
    )


LEASE = lease_of(BOB)


def dispatch(number: int, payload: bytes = b"", *, driver: str = "process") -> Dispatch:
    return Dispatch("lease", FENCE, f"job/{number}#1", driver, payload, 0)


def execute(number: int, payload: bytes = b"") -> Execute:
    needs = LEASE.needs
    return Execute(
        "lease",
        f"job/{number}#1",
        "process",
        payload,
        needs.cpu_milli,
        needs.memory_bytes,
        ("GPU-7",),
        None,
        cause="",
    )


def execution_ended(number: int, outcome: Outcome = DONE) -> ExecutionEnded:
    return ExecutionEnded("lease", f"job/{number}#1", outcome, 1000)


def told(number: int, outcome: Outcome = DONE, ran_ms: int = 1000) -> Send:
    ended = TaskEnded("lease", FENCE, f"job/{number}#1", outcome, ran_ms)
    return Send(BOB, ended, cause="")


def ack(number: int) -> ResultAck:
    return ResultAck("lease", f"job/{number}#1")


@pytest.fixture
def alice() -> Executions:
    return Executions()


# -- one after another ----------------------------------------------------------------------


def test_an_attempt_runs_with_what_the_lease_holds(alice: Executions) -> None:
    timed = replace(dispatch(0, b"payload"), timeout_ms=1500)
    assert alice.dispatched(LEASE, timed) == [replace(execute(0, b"payload"), timeout_s=1.5)]


def test_one_runs_at_a_time_and_the_next_starts_as_it_ends(alice: Executions) -> None:
    assert alice.dispatched(LEASE, dispatch(0)) == [execute(0)]
    assert alice.dispatched(LEASE, dispatch(1)) == []
    assert alice.ended(execution_ended(0)) == [told(0), execute(1)]
    assert alice.ended(execution_ended(1)) == [told(1)]


def test_leases_do_not_wait_for_each_other(alice: Executions) -> None:
    alice.dispatched(LEASE, dispatch(0))
    other = replace(dispatch(1), lease_id="other")
    assert alice.dispatched(lease_of(CAROL, "other"), other) == [
        replace(execute(1), lease_id="other")
    ]


def test_a_repeated_dispatch_runs_once(alice: Executions) -> None:
    alice.dispatched(LEASE, dispatch(0))
    alice.dispatched(LEASE, dispatch(1))
    assert alice.dispatched(LEASE, dispatch(0)) == []  # it runs
    assert alice.dispatched(LEASE, dispatch(1)) == []  # it waits
    assert alice.ended(execution_ended(0)) == [told(0), execute(1)]
    assert alice.dispatched(LEASE, dispatch(0)) == [told(0)]  # it has ended: here is the result
    assert alice.ended(execution_ended(1)) == [told(1)]


def test_the_start_and_the_output_are_passed_on(alice: Executions) -> None:
    alice.dispatched(LEASE, dispatch(0))
    attempt = ("lease", "job/0#1")
    assert alice.started(ExecutionStarted(*attempt)) == [Send(BOB, TaskStarted(*attempt), cause="")]
    assert alice.printed(ExecutionOutput(*attempt, True, b"oh")) == [
        Send(BOB, TaskOutput(*attempt, True, b"oh"), cause="")
    ]


def test_output_in_larger_pieces_than_travel_is_cut(alice: Executions) -> None:
    """Drivers may be anybody's; what the other side would refuse must not leave."""
    alice.dispatched(LEASE, dispatch(0))
    data = bytes(range(256)) * 1000
    sends = sent(alice.printed(ExecutionOutput("lease", "job/0#1", False, data)))
    pieces = [parse(pack(message)) for _, message in sends]
    assert all(isinstance(piece, TaskOutput) for piece in pieces)
    assert b"".join(piece.data for piece in pieces if isinstance(piece, TaskOutput)) == data
    assert len(pieces) == -(-len(data) // MAX_OUTPUT_BYTES)


# -- results --------------------------------------------------------------------------------


def test_a_result_is_sent_again_with_each_renewal_until_it_is_acknowledged(
    alice: Executions,
) -> None:
    assert alice.renewed(LEASE) == []
    alice.dispatched(LEASE, dispatch(0))
    assert alice.renewed(LEASE) == []
    alice.ended(execution_ended(0))
    assert alice.renewed(LEASE) == [told(0)]
    assert alice.renewed(LEASE) == [told(0)]
    assert alice.acknowledged(BOB.peer_id, ack(0)) == []
    assert alice.renewed(LEASE) == []
    assert alice.acknowledged(BOB.peer_id, ack(0)) == []


def test_only_the_owner_acknowledges_and_cancels(alice: Executions) -> None:
    alice.dispatched(LEASE, dispatch(0))
    assert alice.cancelled(MALLORY.peer_id, Cancel("lease", "job/0#1")) == []
    alice.ended(execution_ended(0))
    assert alice.acknowledged(MALLORY.peer_id, ack(0)) == []
    assert alice.renewed(LEASE) == [told(0)]


def test_the_next_task_waits_while_too_many_results_are_not_acknowledged(
    alice: Executions,
) -> None:
    for number in range(MAX_OUTBOX):
        alice.dispatched(LEASE, dispatch(number))
        alice.ended(execution_ended(number))
    assert alice.dispatched(LEASE, dispatch(MAX_OUTBOX)) == []
    assert alice.acknowledged(BOB.peer_id, ack(3)) == [execute(MAX_OUTBOX)]


def test_the_next_task_waits_while_too_many_bytes_are_not_acknowledged(
    alice: Executions,
) -> None:
    large = Succeeded(bytes(MAX_RESULT_BYTES))
    for number in range(MAX_OUTBOX_BYTES // MAX_RESULT_BYTES):
        assert alice.dispatched(LEASE, dispatch(number)) == [execute(number)]
        alice.ended(execution_ended(number, large))
    assert alice.dispatched(LEASE, dispatch(9)) == []
    assert alice.acknowledged(BOB.peer_id, ack(0)) == [execute(9)]


def test_a_result_too_large_to_travel_is_a_failure_and_not_a_broken_stream(
    alice: Executions,
) -> None:
    alice.dispatched(LEASE, dispatch(0))
    too_large = Succeeded(bytes(MAX_RESULT_BYTES + 1))
    problem = "the result has 8388609 bytes, of at most 8388608"
    failed = Failed(FailureKind.OUTPUT, problem)
    assert alice.ended(execution_ended(0, too_large)) == [told(0, failed)]


# -- what is refused ------------------------------------------------------------------------


def test_another_driver_than_the_grant_was_checked_for_is_refused(alice: Executions) -> None:
    problem = "the lease is for the driver process, not python"
    refused = told(0, Failed(FailureKind.INVALID, problem), ran_ms=0)
    assert alice.dispatched(LEASE, dispatch(0, driver="python")) == [refused]


def test_a_queue_that_is_full_refuses_and_what_waits_still_runs(alice: Executions) -> None:
    for number in range(MAX_QUEUED + 1):
        alice.dispatched(LEASE, dispatch(number))
    problem = f"{MAX_QUEUED} attempts wait under this lease; wait for one to end"
    refused = told(99, Failed(FailureKind.DRIVER, problem), ran_ms=0)
    assert alice.dispatched(LEASE, dispatch(99)) == [refused]
    assert alice.ended(execution_ended(0)) == [told(0), execute(1)]


def test_a_queue_is_full_of_bytes_too(alice: Executions) -> None:
    large = bytes(MAX_PAYLOAD_BYTES)
    waiting = MAX_QUEUED_BYTES // MAX_PAYLOAD_BYTES
    for number in range(waiting + 1):  # the first one runs
        alice.dispatched(LEASE, dispatch(number, large))
    ((_, refused),) = sent(alice.dispatched(LEASE, dispatch(9, b"x")))
    assert isinstance(refused, TaskEnded)
    assert isinstance(refused.outcome, Failed)
    assert refused.outcome.kind is FailureKind.DRIVER


# -- cancelling -----------------------------------------------------------------------------


def test_what_runs_is_killed_and_what_waits_never_starts(alice: Executions) -> None:
    for number in range(3):
        alice.dispatched(LEASE, dispatch(number))
    assert alice.cancelled(BOB.peer_id, Cancel("lease", "job/0#1")) == [
        Kill("lease", "job/0#1", cause="")
    ]
    not_started = Failed(FailureKind.CANCELLED, "it had not started")
    assert alice.cancelled(BOB.peer_id, Cancel("lease", "job/2#1")) == [
        told(2, not_started, ran_ms=0)
    ]
    killed = Failed(FailureKind.CANCELLED, "killed")
    assert alice.ended(execution_ended(0, killed)) == [told(0, killed), execute(1)]
    assert alice.ended(execution_ended(1)) == [told(1)]


def test_what_is_not_there_cannot_be_cancelled(alice: Executions) -> None:
    assert alice.cancelled(BOB.peer_id, Cancel("lease", "job/0#1")) == []
    alice.dispatched(LEASE, dispatch(0))
    alice.dispatched(LEASE, dispatch(1))
    assert alice.cancelled(BOB.peer_id, Cancel("lease", "job/7#1")) == []


# -- the end of a lease ---------------------------------------------------------------------


def test_when_the_lease_ends_all_of_it_goes(alice: Executions) -> None:
    for number in range(3):
        alice.dispatched(LEASE, dispatch(number))
    alice.ended(execution_ended(0))
    alice.drop("lease")
    assert alice.ended(execution_ended(1)) == []  # nobody may have the result
    assert alice.started(ExecutionStarted("lease", "job/1#1")) == []
    assert alice.printed(ExecutionOutput("lease", "job/1#1", False, b"late")) == []
    assert alice.renewed(LEASE) == []
    assert alice.acknowledged(BOB.peer_id, ack(0)) == []
    alice.drop("lease")


def test_an_end_of_what_does_not_run_is_ignored(alice: Executions) -> None:
    alice.dispatched(LEASE, dispatch(0))
    assert alice.ended(execution_ended(7)) == []
    assert alice.ended(execution_ended(0)) == [told(0)]
    assert alice.ended(execution_ended(0)) == []
