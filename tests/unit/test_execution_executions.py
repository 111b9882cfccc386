"""What runs under alice's leases: bob dispatches, and gets each result until he has it."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact, Effect
from formation_p2p.core.units import GIB, KIB, MIB
from formation_p2p.drivers.core.effects import (
    Continue,
    Execute,
    ExecutionEffect,
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
from formation_p2p.drivers.core.executions import (
    MAX_KEPT,
    MAX_KEPT_BYTES,
    MAX_OUTBOX_BYTES,
    Executions,
)
from formation_p2p.leases.core.in_flight import BATCH_BYTES, MAX_IN_FLIGHT_BYTES, MAX_SHARED_BLOBS
from formation_p2p.leases.core.lease import Lease, LeaseState
from formation_p2p.leases.core.messages import (
    MAX_FRAME_BYTES,
    MAX_MESSAGE_CHARS,
    MAX_OUTPUT_BYTES,
    MAX_WINDOW,
    Assignment,
    Cancel,
    Dispatch,
    OutputRead,
    PlacementRequest,
    ResultAck,
    TaskCheckpoint,
    TaskOutput,
    TasksEnded,
    TaskStarted,
    pack,
    parse,
)
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS
from formation_p2p.leases.core.session import Send
from formation_p2p.machine.core.fits import GpuClaim, Reservation
from formation_p2p.workload.core.checkpoint import Checkpoint, inline
from formation_p2p.workload.core.outcome import Ended, Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.process import ProcessSpec
from formation_p2p.workload.core.work import MAX_PAYLOAD_BYTES, MAX_RESULT_BYTES
from tests.support.large_results import CALL, record_at
from tests.support.stories import ALICE, BOB, CAROL, MALLORY, NEEDS, only, sent

WINDOW = LEASE_DEFAULTS.window

FENCE = 5
DONE = Succeeded(b"done")
TAKEN_BACK = Failed(FailureKind.CANCELLED, "it was taken back before it began")


def lease_of(owner: Contact, lease_id: str = "lease") -> Lease:
    needs = replace(NEEDS, gpu_count=1, storage_bytes=7 * KIB)
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


def attempt(number: int) -> str:
    return f"job/{number}#1"


def given_(number: int, payload: bytes = b"", *, blob: int = 0, timeout_ms: int = 0) -> Assignment:
    return Assignment(attempt(number), blob, payload, timeout_ms)


def dispatch(*assignments: Assignment, blobs: Iterable[tuple[int, bytes]] = ()) -> Dispatch:
    return Dispatch("lease", FENCE, tuple(blobs), assignments)


def dispatch_of(*numbers: int, payload: bytes = b"") -> Dispatch:
    return dispatch(*(given_(number, payload) for number in numbers))


def execute(*work: Work) -> Execute:
    return Execute("lease", LEASE.needs, ("GPU-7",), work, LEASE.owner.peer_id, cause="")


def work(number: int, payload: bytes = b"", shared: bytes = b"") -> Work:
    return Work(attempt(number), shared, payload, None)


def over(number: int, outcome: Outcome = DONE, ran_us: int = 1000) -> Ended:
    return Ended(attempt(number), outcome, ran_us)


def executions_ended(*numbers: int, outcome: Outcome = DONE) -> ExecutionsEnded:
    return ExecutionsEnded("lease", tuple(over(number, outcome) for number in numbers))


def reported(*ended: Ended) -> Send:
    return Send(BOB, TasksEnded("lease", FENCE, ended), cause="")


def ack(*numbers: int) -> ResultAck:
    return ResultAck("lease", tuple(map(attempt, numbers)))


def cancel(*numbers: int, begun: bool = True) -> Cancel:
    return Cancel("lease", tuple(map(attempt, numbers)), begun)


def results(effects: Iterable[Effect]) -> list[Ended]:
    """Those that are told, as they are read on the other side."""
    messages = [parse(pack(send.message)) for send in only(effects, Send)]
    return [ended for message in only(messages, TasksEnded) for ended in message.ended]


@pytest.fixture
def alice() -> Executions:
    return Executions()


# -- what is dispatched runs ----------------------------------------------------------------


def test_attempts_go_to_the_shell_as_they_come_with_what_the_lease_holds(alice: Executions) -> None:
    timed = dispatch(given_(0, b"payload", timeout_ms=1500), given_(1))
    assert alice.dispatched(LEASE, timed) == [
        execute(replace(work(0, b"payload"), timeout_s=1.5), work(1))
    ]
    assert alice.dispatched(LEASE, dispatch_of(2)) == [execute(work(2))]
    assert alice.handle_report(executions_ended(0, 1)) == [reported(over(0), over(1))]
    assert alice.handle_report(executions_ended(2)) == [reported(over(2))]


def test_leases_have_nothing_to_do_with_each_other(alice: Executions) -> None:
    alice.dispatched(LEASE, dispatch(given_(0), blobs=[(1, b"shared")]))
    other = replace(dispatch(given_(0), given_(1, blob=1)), lease_id="other")
    (ran, refused) = alice.dispatched(lease_of(CAROL, "other"), other)
    assert ran == replace(execute(work(0)), lease_id="other", owner=CAROL.peer_id)
    assert isinstance(refused, Send)  # the blob is not hers
    assert refused.to == CAROL


def test_a_repeated_dispatch_runs_once(alice: Executions) -> None:
    alice.dispatched(LEASE, dispatch_of(0, 1))
    assert alice.dispatched(LEASE, dispatch_of(0, 1)) == []
    assert alice.handle_report(executions_ended(0)) == [reported(over(0))]
    assert alice.dispatched(LEASE, dispatch_of(0, 1)) == []  # the result is on its way
    alice.interrupted(BOB.peer_id)
    assert alice.dispatched(LEASE, dispatch_of(0, 1)) == [reported(over(0))]
    assert alice.handle_report(executions_ended(1)) == [reported(over(1))]


def test_the_start_and_the_output_are_passed_on(alice: Executions) -> None:
    alice.dispatched(LEASE, dispatch_of(0))
    named = ("lease", attempt(0))
    assert alice.handle_report(ExecutionStarted(*named)) == [
        Send(BOB, TaskStarted(*named), cause="")
    ]
    assert alice.handle_report(ExecutionOutput(*named, True, b"oh")) == [
        Send(BOB, TaskOutput(*named, True, b"oh"), cause="")
    ]


def test_output_in_larger_pieces_than_travel_is_cut(alice: Executions) -> None:
    """Drivers may be anybody's; what the other side would refuse must not leave."""
    alice.dispatched(LEASE, dispatch_of(0))
    data = bytes(range(256)) * 1000
    sends = sent(alice.handle_report(ExecutionOutput("lease", attempt(0), False, data)))
    pieces = [parse(pack(message)) for _, message in sends]
    assert all(isinstance(piece, TaskOutput) for piece in pieces)
    assert b"".join(piece.data for piece in pieces if isinstance(piece, TaskOutput)) == data
    assert len(pieces) == -(-len(data) // MAX_OUTPUT_BYTES)


def test_an_owner_is_asked_for_its_reader_and_answers_for_what_runs(alice: Executions) -> None:
    alice.dispatched(LEASE, dispatch_of(0))
    named = "lease", attempt(0)
    assert sent(alice.handle_report(ExecutionOutput(*named, False, b""))) == [
        (BOB.peer_id, TaskOutput(*named, False, b""))
    ]
    answer = OutputRead(*named, True)
    assert alice.received(BOB.peer_id, answer) == [GoOnPrinting(*named, True, cause="")]
    assert alice.received(CAROL.peer_id, answer) == []
    assert alice.received(BOB.peer_id, OutputRead("lease", attempt(1), True)) == []


# -- what tasks share -----------------------------------------------------------------------


def test_what_tasks_share_comes_once_and_is_named_from_then_on(alice: Executions) -> None:
    first = dispatch(given_(0, b"a", blob=1), given_(1, b"b", blob=2), blobs=[(1, b"f"), (2, b"g")])
    assert alice.dispatched(LEASE, first) == [execute(work(0, b"a", b"f"), work(1, b"b", b"g"))]
    second = dispatch(given_(2, b"c", blob=1))
    assert alice.dispatched(LEASE, second) == [execute(work(2, b"c", b"f"))]


def test_a_blob_that_is_not_here_refuses_its_attempt_and_no_other(alice: Executions) -> None:
    missing = Failed(FailureKind.DRIVER, "shared blob 3 is not here; dispatch it again")
    assert alice.dispatched(LEASE, dispatch(given_(0, blob=3), given_(1))) == [
        execute(work(1)),
        reported(over(0, missing, ran_us=0)),
    ]
    again = dispatch(given_(0, blob=3), blobs=[(3, b"here")])
    assert alice.dispatched(LEASE, again) == [execute(work(0, shared=b"here"))]


def test_the_oldest_part_makes_room(alice: Executions) -> None:
    for number in range(1, MAX_SHARED_BLOBS + 2):
        alice.dispatched(LEASE, dispatch(blobs=[(number, b"%d" % number)]))
    effects = alice.dispatched(LEASE, dispatch(given_(0, blob=1), given_(1, blob=2)))
    assert only(effects, Execute) == [execute(work(1, shared=b"2"))]
    ((_, refused),) = sent(only(effects, Send))
    assert isinstance(refused, TasksEnded)
    assert [each.attempt_id for each in refused.ended] == [attempt(0)]


# -- results --------------------------------------------------------------------------------


def test_a_result_is_sent_again_only_where_the_stream_broke_and_bob_is_heard_of(
    alice: Executions,
) -> None:
    assert alice.renewed(LEASE) == []
    alice.dispatched(LEASE, dispatch_of(0, 1))
    assert alice.renewed(LEASE) == []
    alice.handle_report(executions_ended(0, 1))
    assert alice.renewed(LEASE) == []  # it arrives, or the stream breaks
    alice.interrupted(CAROL.peer_id)
    assert alice.renewed(LEASE) == []
    alice.interrupted(BOB.peer_id)
    assert alice.renewed(LEASE) == [reported(over(0), over(1))]
    assert alice.renewed(LEASE) == []
    alice.interrupted(BOB.peer_id)
    assert alice.received(BOB.peer_id, ack(0)) == []
    assert alice.renewed(LEASE) == [reported(over(1))]
    assert alice.received(BOB.peer_id, ack(0, 1)) == []
    alice.interrupted(BOB.peer_id)
    assert alice.renewed(LEASE) == []


def test_a_process_that_saves_by_ending_merits_notice_before_it_has_saved(
    alice: Executions,
) -> None:
    plain, saving = ProcessSpec(("a",)), ProcessSpec(("a",), checkpoint_files=("state",))
    assert not alice.saves("lease")
    alice.dispatched(LEASE, dispatch(given_(0, plain.encode())))
    assert not alice.saves("lease")
    alice.dispatched(LEASE, dispatch(given_(1, saving.encode())))
    assert alice.saves("lease")
    saved = inline(b"half")
    (told,) = alice.handle_report(ExecutionSaved("lease", attempt(1), saved, b"half"))
    assert told == Send(
        BOB,
        TaskCheckpoint("lease", FENCE, attempt(1), Checkpoint(1, saved, b"half")),
        cause=f"{attempt(1)} has saved",
    )
    alice.handle_report(executions_ended(1))
    assert not alice.saves("lease")


def test_only_the_owner_acknowledges_and_cancels(alice: Executions) -> None:
    alice.dispatched(LEASE, dispatch_of(0))
    assert alice.received(MALLORY.peer_id, cancel(0)) == []
    alice.handle_report(executions_ended(0))
    assert alice.received(MALLORY.peer_id, ack(0)) == []
    alice.interrupted(MALLORY.peer_id)
    alice.interrupted(BOB.peer_id)
    assert alice.renewed(LEASE) == [reported(over(0))]


def test_nothing_more_begins_while_too_many_results_are_not_acknowledged(alice: Executions) -> None:
    alice.dispatched(LEASE, dispatch_of(*range(WINDOW)))
    assert only(alice.handle_report(executions_ended(*range(WINDOW - 1))), Pause) == []
    last = alice.handle_report(executions_ended(WINDOW - 1))
    assert last == [reported(over(WINDOW - 1)), Pause("lease", cause="")]
    # Bob has the results, and dispatches more before what he has is written down.
    more = alice.dispatched(LEASE, dispatch_of(WINDOW, WINDOW + 1))
    assert more == [execute(work(WINDOW), work(WINDOW + 1))]
    assert alice.handle_report(executions_ended(WINDOW)) == [
        reported(over(WINDOW))
    ]  # it ran already
    assert alice.received(BOB.peer_id, ack(0)) == []
    assert alice.received(BOB.peer_id, ack(1)) == [Continue("lease", cause="")]
    assert alice.received(BOB.peer_id, ack(2)) == []


def test_nothing_more_begins_while_too_many_bytes_are_not_acknowledged(alice: Executions) -> None:
    large, count = Succeeded(bytes(MAX_RESULT_BYTES)), MAX_OUTBOX_BYTES // MAX_RESULT_BYTES
    alice.dispatched(LEASE, dispatch_of(*range(count)))
    effects = alice.handle_report(executions_ended(*range(count), outcome=large))
    assert only(effects, Pause) == [Pause("lease", cause="")]
    assert len(only(effects, Send)) == count  # each in a message of its own
    assert alice.received(BOB.peer_id, ack(0)) == [Continue("lease", cause="")]


def test_results_travel_in_messages_of_a_bounded_size(alice: Executions) -> None:
    alice.dispatched(LEASE, dispatch_of(*range(100)))
    size = Succeeded(bytes(BATCH_BYTES // 10))
    messages = [
        m for _, m in sent(alice.handle_report(executions_ended(*range(100), outcome=size)))
    ]
    assert [len(each.ended) for each in only(messages, TasksEnded)] == [10] * 10


def test_of_a_failure_with_much_to_say_the_end_is_told(alice: Executions) -> None:
    alice.dispatched(LEASE, dispatch_of(0))
    story = Failed(FailureKind.EXCEPTION, "x" * MAX_MESSAGE_CHARS + "the end")
    end = Failed(FailureKind.EXCEPTION, "x" * (MAX_MESSAGE_CHARS - 7) + "the end")
    assert alice.handle_report(executions_ended(0, outcome=story)) == [reported(over(0, end))]


@pytest.mark.at_length
@pytest.mark.parametrize("mark", ["\U0001f980", "\0"])
def test_what_many_failures_have_to_say_fits_into_messages_too(
    alice: Executions, mark: str
) -> None:
    count = 40  # of which a message has a few
    alice.dispatched(LEASE, dispatch_of(*range(count)))
    story = Failed(FailureKind.EXCEPTION, mark * 2 * MAX_MESSAGE_CHARS + "the end")
    effects = alice.handle_report(executions_ended(*range(count), outcome=story))
    assert len(only(effects, Send)) > 2
    for send in only(effects, Send):
        assert len(pack(send.message)) < min(MAX_FRAME_BYTES, 2 * BATCH_BYTES)
    outcomes = [ended.outcome for ended in results(effects)]
    assert len(outcomes) == count
    for outcome in outcomes:
        assert isinstance(outcome, Failed)
        assert outcome.message.endswith("the end")
        assert len(outcome.message) == MAX_MESSAGE_CHARS
    alice.received(BOB.peer_id, ack(*range(count)))
    assert alice.runs["lease"].outbox_bytes == 0


def test_a_result_too_large_to_travel_is_a_failure_and_not_a_broken_stream(
    alice: Executions,
) -> None:
    alice.dispatched(LEASE, dispatch_of(0))
    too_large = Succeeded(bytes(MAX_RESULT_BYTES + 1))
    problem = "the result has 8388609 bytes, of at most 8388608"
    failed = Failed(FailureKind.OUTPUT, problem)
    assert alice.handle_report(executions_ended(0, outcome=too_large)) == [
        reported(over(0, failed))
    ]


# -- what is refused ------------------------------------------------------------------------


def test_more_than_the_window_is_refused_and_what_waits_still_runs(alice: Executions) -> None:
    alice.dispatched(LEASE, dispatch_of(*range(WINDOW)))
    problem = f"{WINDOW} attempts wait under this lease; wait for one"
    refused = over(9999, Failed(FailureKind.DRIVER, problem), ran_us=0)
    assert alice.dispatched(LEASE, dispatch_of(9999)) == [reported(refused)]
    assert alice.handle_report(executions_ended(0)) == [reported(over(0))]
    assert alice.dispatched(LEASE, dispatch_of(9999)) == [execute(work(9999))]


def test_more_bytes_than_a_lease_pays_for_are_refused(alice: Executions) -> None:
    full = range(MAX_IN_FLIGHT_BYTES // MAX_PAYLOAD_BYTES)
    alice.dispatched(LEASE, dispatch_of(*full, payload=bytes(MAX_PAYLOAD_BYTES)))
    ((_, refused),) = sent(alice.dispatched(LEASE, dispatch_of(9, payload=b"x")))
    assert isinstance(refused, TasksEnded)
    (ended,) = refused.ended
    assert isinstance(ended.outcome, Failed)
    assert ended.outcome.kind is FailureKind.DRIVER


def test_what_is_shared_counts_once_for_as_long_as_it_is_needed(alice: Executions) -> None:
    """Also where its blob has made room since: what is to run holds it."""
    eighth = [bytes([n]) * (MAX_IN_FLIGHT_BYTES // 8) for n in range(1, 10)]
    for n, shared in enumerate(eighth[:8], 1):
        effects = alice.dispatched(LEASE, dispatch(given_(n, blob=n), blobs=[(n, shared)]))
        assert [type(effect) for effect in effects] == [Execute]
    twice = alice.dispatched(LEASE, dispatch(given_(20, blob=8)))
    assert [type(effect) for effect in twice] == [Execute]
    ninth = dispatch(given_(9, blob=9), blobs=[(9, eighth[8])])
    assert [type(effect) for effect in alice.dispatched(LEASE, ninth)] == [Send]
    alice.handle_report(executions_ended(8))  # another one needs what it shared
    assert [type(effect) for effect in alice.dispatched(LEASE, ninth)] == [Send]
    alice.handle_report(executions_ended(1))
    assert [type(effect) for effect in alice.dispatched(LEASE, ninth)] == [Execute]
    alice.handle_report(executions_ended(2, 3, 4, 5, 6, 7, 9, 20))
    assert alice.runs["lease"].load.total_bytes == 0


def test_who_never_acknowledges_fills_nothing(alice: Executions) -> None:
    """However much of it is dispatched, and taken back before it begins."""
    for start in range(0, 5 * WINDOW, 100):
        numbers = range(start, start + 100)
        effects = alice.dispatched(LEASE, dispatch_of(*numbers))
        taken = [each.attempt_id for e in only(effects, Execute) for each in e.work]
        ended = tuple(Ended(attempt_id, TAKEN_BACK, 0) for attempt_id in taken)
        alice.handle_report(ExecutionsEnded("lease", ended))
    assert len(alice.runs["lease"].outbox) == 2 * WINDOW
    alice.interrupted(BOB.peer_id)
    ((_, all_of_them),) = sent(alice.renewed(LEASE))
    assert isinstance(all_of_them, TasksEnded)
    assert len(all_of_them.ended) == 2 * WINDOW <= MAX_WINDOW


def test_a_scheduler_that_dispatches_again_hears_again_what_runs_for_long(
    alice: Executions,
) -> None:
    alice.dispatched(LEASE, dispatch_of(0, 1))
    started = Send(BOB, TaskStarted("lease", attempt(0)), cause="")
    assert alice.handle_report(ExecutionStarted("lease", attempt(0))) == [started]
    assert alice.dispatched(LEASE, dispatch_of(0, 1)) == [started]
    ended = alice.handle_report(executions_ended(0))
    assert alice.dispatched(LEASE, dispatch_of(0, 1)) == []
    alice.interrupted(BOB.peer_id)
    assert alice.dispatched(LEASE, dispatch_of(0, 1)) == ended


# -- cancelling -----------------------------------------------------------------------------


def test_what_is_to_end_is_killed_and_told_when_it_has_ended(alice: Executions) -> None:
    alice.dispatched(LEASE, dispatch_of(0, 1, 2))
    assert alice.received(BOB.peer_id, cancel(0, 2)) == [
        Kill("lease", attempt(0), True, cause=""),
        Kill("lease", attempt(2), True, cause=""),
    ]
    assert alice.received(BOB.peer_id, cancel(1, begun=False)) == [
        Kill("lease", attempt(1), False, cause="")
    ]
    killed = Failed(FailureKind.CANCELLED, "killed")
    assert alice.handle_report(executions_ended(2, 0, outcome=killed)) == [
        reported(over(2, killed), over(0, killed))
    ]


# -- the end of a lease ---------------------------------------------------------------------


def test_when_the_lease_ends_all_of_it_goes(alice: Executions) -> None:
    alice.dispatched(LEASE, dispatch_of(0, 1, 2))
    alice.handle_report(executions_ended(0))
    alice.drop("lease")
    assert alice.handle_report(executions_ended(1)) == []  # nobody may have the result
    assert alice.handle_report(ExecutionStarted("lease", attempt(1))) == []
    assert alice.handle_report(ExecutionOutput("lease", attempt(1), False, b"late")) == []
    assert alice.renewed(LEASE) == []
    assert alice.received(BOB.peer_id, ack(0)) == []
    alice.drop("lease")


def test_what_does_not_run_neither_ends_nor_is_cancelled(alice: Executions) -> None:
    assert alice.is_idle(LEASE.lease_id)
    assert alice.received(BOB.peer_id, cancel(0)) == []
    alice.dispatched(LEASE, dispatch_of(0, 1))
    assert alice.handle_report(executions_ended(7)) == []
    assert alice.handle_report(executions_ended(0, 1)) == [reported(over(0), over(1))]
    assert alice.handle_report(executions_ended(0)) == []
    assert alice.received(BOB.peer_id, cancel(0, 7)) == []
    assert not alice.is_idle(LEASE.lease_id)
    alice.received(BOB.peer_id, ack(0, 1))
    assert alice.is_idle(LEASE.lease_id), "its owner has all results"


# -- laws -----------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["dispatch", "end", "ack", "break", "renew", "cancel"]),
        st.sets(st.integers(0, 9), min_size=1, max_size=4),
        st.integers(0, 2),
    ),
    max_size=40,
)


@given(STEPS)
def test_each_attempt_has_one_result_and_the_books_are_balanced(
    story: list[tuple[str, set[int], int]],
) -> None:
    """bob forgets what he has acknowledged: only then may an id come back."""
    alice, payloads = Executions(), [b"", b"x" * KIB, bytes(MAX_PAYLOAD_BYTES)]
    running: dict[str, int] = {}
    waiting: set[str] = set()  # results that he does not have yet, or has not acknowledged
    for what, numbers, size in story:
        names = [attempt(n) for n in sorted(numbers)]
        effects: list[ExecutionEffect] = []
        match what:
            case "dispatch":
                payload = payloads[size]
                effects = alice.dispatched(LEASE, dispatch_of(*sorted(numbers), payload=payload))
                for handed_over in only(effects, Execute):
                    for given_work in handed_over.work:
                        assert given_work.attempt_id not in running
                        assert given_work.attempt_id not in waiting
                        running[given_work.attempt_id] = len(given_work.payload)
            case "end":
                ended = tuple(Ended(name, DONE, 0) for name in names if name in running)
                effects = alice.handle_report(ExecutionsEnded("lease", ended))
                assert results(effects) == list(ended)
                for each in ended:
                    del running[each.attempt_id]
                    waiting.add(each.attempt_id)
            case "ack":
                alice.received(BOB.peer_id, ResultAck("lease", tuple(names)))
                waiting.difference_update(names)
            case "break":
                alice.interrupted(BOB.peer_id)
                told_again = {each.attempt_id for each in results(alice.renewed(LEASE))}
                assert told_again == waiting
            case "renew":
                assert alice.renewed(LEASE) == []
            case "cancel":
                kills = only(alice.received(BOB.peer_id, cancel(*numbers)), Kill)
                assert {kill.attempt_id for kill in kills} == running.keys() & set(names)
        run = alice.runs.get("lease")
        if run is not None:
            assert {name: size for name, (size, _) in run.in_flight.items()} == running
            assert run.load.total_bytes == sum(running.values()) <= MAX_IN_FLIGHT_BYTES
            assert run.outbox.keys() == waiting
            assert run.outbox_bytes == len(b"done") * len(waiting)


# -- large results ------------------------------------------------------------------------------


def a_call_lease(memory_bytes: int = GIB) -> Lease:
    needs = replace(CALL, memory_bytes=memory_bytes)
    return replace(LEASE, request=replace(LEASE.request, needs=needs))


def large(size_bytes: int) -> Succeeded:
    return Succeeded(record_at(ALICE, size_bytes))


def test_a_large_result_is_freed_once_it_is_acknowledged(alice: Executions) -> None:
    alice.dispatched(a_call_lease(), dispatch_of(0, 1))
    alice.handle_report(executions_ended(0, outcome=large(MIB)))
    alice.handle_report(executions_ended(1))
    acked = alice.received(BOB.peer_id, ResultAck("lease", (attempt(0), attempt(1))))
    assert acked == [FreeResults("lease", (attempt(0),), cause="")]
    alice.validate({"lease"})


@pytest.mark.parametrize(
    ("memory_bytes", "size_bytes"), [(4 * GIB, MAX_KEPT_BYTES - 64), (512 * MIB, 128 * MIB - 64)]
)
def test_nothing_more_runs_while_large_results_wait_to_be_fetched(
    alice: Executions, memory_bytes: int, size_bytes: int
) -> None:
    many = Executions()
    many.dispatched(a_call_lease(), dispatch_of(*range(MAX_KEPT)))
    assert only(many.handle_report(executions_ended(*range(MAX_KEPT), outcome=large(64))), Pause)
    alice.dispatched(a_call_lease(memory_bytes), dispatch_of(0, 1))
    assert only(alice.handle_report(executions_ended(0, outcome=large(size_bytes))), Pause) == []
    effects = alice.handle_report(executions_ended(1, outcome=large(64)))
    assert only(effects, Pause) == [Pause("lease", cause="")]
    acked = alice.received(BOB.peer_id, ResultAck("lease", (attempt(0),)))
    assert acked == [FreeResults("lease", (attempt(0),), cause=""), Continue("lease", cause="")]
