"""A lease in force: what is under way on it, and in which messages that goes out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.core.units import KIB
from formation_p2p.drivers.core.effects import Execute, ExecutionsEnded
from formation_p2p.drivers.core.executions import Executions
from formation_p2p.jobs.core.active_lease import ActiveLease
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.task_run import JobRun, TaskRun
from formation_p2p.leases.core.held_lease import HeldLease, HeldState
from formation_p2p.leases.core.in_flight import BATCH_BYTES, MAX_SHARED_BLOBS
from formation_p2p.leases.core.lease import Lease, LeaseState
from formation_p2p.leases.core.messages import Dispatch, PlacementRequest, ResultAck, pack, parse
from formation_p2p.leases.core.session import Send
from formation_p2p.machine.core.fits import Reservation
from formation_p2p.placement.core.task_options import SchedulingKey, TaskOptions
from formation_p2p.workload.core.outcome import Ended, Failed, FailureKind, Succeeded
from formation_p2p.workload.core.work import MAX_PAYLOAD_BYTES, Task
from tests.support.stories import ALICE, BOB, NEEDS, at, only

FENCE = 3


def lease_on_alice() -> ActiveLease:
    lease = HeldLease(
        "lease", ALICE, SchedulingKey(NEEDS), HeldState.HELD, expires_s=10, fence=FENCE
    )
    return ActiveLease(lease, idle_s=0)


def runs(*tasks: Task, timeout_s: float | None = None) -> list[tuple[str, TaskRun]]:
    owner = JobRun(Job("job", tasks, options=TaskOptions(timeout_s=timeout_s)))
    return [(f"{task.task_id}#1", TaskRun(task, owner, task.key)) for task in tasks]


def task(number: int, payload: bytes = b"", shared: bytes = b"") -> Task:
    return Task(f"job/{number}", NEEDS, payload, shared=shared)


class Alice:
    """The other side: she reads each message, and hands over what she can run."""

    def __init__(self) -> None:
        self.executions = Executions()
        request = PlacementRequest(1, NEEDS, b"")
        reservation = Reservation("lease", NEEDS, ())
        self.lease = Lease("lease", BOB, request, reservation, LeaseState.LEASED, 10, FENCE)

    def got(self, message: Dispatch) -> list[tuple[str, bytes, bytes]]:
        parsed = parse(pack(message))
        assert isinstance(parsed, Dispatch)
        effects = self.executions.dispatched(self.lease, parsed)
        assert only(effects, Send) == []  # she refuses nothing
        work = [each for execute in only(effects, Execute) for each in execute.work]
        return [(each.attempt_id, each.shared, each.payload) for each in work]


# -- the book -------------------------------------------------------------------------------


def test_an_active_lease_knows_what_is_under_way_and_since_when_nothing_is() -> None:
    active = lease_on_alice()
    (one, first), (two, second) = runs(task(0, b"abc"), task(1, b"de"))
    active.add(one, first, at(0))
    active.add(two, second, at(0))
    active.add("job/0#2", first, at(0))
    assert (active.load.total_bytes, first.copies, active.idle_s) == (8, 2, float("inf"))
    behind = active.behind(one)
    assert behind == [two, "job/0#2"]
    active.recall(behind, one)
    assert active.remove(two, at(1)) is second
    assert active.remove(two, at(1)) is None
    assert (active.load.total_bytes, second.copies, active.recalled) == (6, 0, {"job/0#2"})
    assert active.remove(one, at(2)) is first
    assert active.idle_s == float("inf")
    assert active.remove("job/0#2", at(3)) is first
    assert (active.load.total_bytes, first.copies, active.idle_s) == (0, 0, 3)


def test_a_task_is_slow_only_while_it_is_the_one_that_runs() -> None:
    active, seen = lease_on_alice(), list[str | None]()
    seen.append(active.slow)
    for attempt_id, run in runs(task(0), task(1)):
        active.add(attempt_id, run, at(0))
    seen.append(active.slow)
    active.started("job/0#1", at(0))
    seen.append(active.slow)
    active.remove("job/0#1", at(1))
    seen.append(active.slow)
    assert seen == [None, None, "job/0#1", None]


# -- messages -------------------------------------------------------------------------------


def test_many_small_tasks_go_out_in_one_message() -> None:
    active = lease_on_alice()
    assert list(active.messages([])) == []
    (message,) = active.messages(runs(*(task(n, b"%d" % n) for n in range(100))))
    assert (message.lease_id, message.fence, message.shared_blobs) == ("lease", FENCE, ())
    assert [each.payload for each in message.assignments] == [b"%d" % n for n in range(100)]
    limits_s = (None, 0.0001, 1.5)  # which is never rounded to none
    timed = [each for n, s in enumerate(limits_s) for each in runs(task(n), timeout_s=s)]
    (message,) = lease_on_alice().messages(timed)
    assert [each.timeout_ms for each in message.assignments] == [0, 1, 1500]


def test_what_is_shared_goes_out_once_and_again_after_it_was_forgotten() -> None:
    active, function = lease_on_alice(), b"f" * KIB
    (first,) = active.messages(runs(task(0, b"a", function), task(1, b"b", function), task(2)))
    assert first.shared_blobs == ((1, function),)
    assert [each.shared_blob for each in first.assignments] == [1, 1, 0]
    (second,) = active.messages(runs(task(3, b"c", function)))
    assert (second.shared_blobs, second.assignments[0].shared_blob) == ((), 1)
    active.shared_blobs.forget()
    (third,) = active.messages(runs(task(3, b"c", function)))
    assert (third.shared_blobs, third.assignments[0].shared_blob) == (((2, function),), 2)


def test_a_message_has_a_bounded_size_and_one_task_at_least() -> None:
    half = BATCH_BYTES // 2
    sizes = [half, half, 1, MAX_PAYLOAD_BYTES, 1]
    messages = lease_on_alice().messages(runs(*(task(n, bytes(s)) for n, s in enumerate(sizes))))
    sent = [[len(each.payload) for each in message.assignments] for message in messages]
    assert sent == [[half, half], [1], [MAX_PAYLOAD_BYTES], [1]]
    # What is shared counts for the message that brings it.
    shared = bytes(half)
    tasks = [task(0, shared, shared), task(1, shared, shared), task(2, b"", b"x")]
    messages = lease_on_alice().messages(runs(*tasks))
    assert [len(message.assignments) for message in messages] == [1, 2]


@pytest.mark.parametrize("count", [MAX_SHARED_BLOBS, MAX_SHARED_BLOBS + 1, 100])
def test_each_task_may_have_a_function_of_its_own(count: int) -> None:
    active, alice = lease_on_alice(), Alice()
    tasks = [task(n, b"", b"function %d" % n) for n in range(count)]
    messages = list(active.messages(runs(*tasks)))
    assert len(messages) == -(-count // MAX_SHARED_BLOBS)
    ran = [shared for message in messages for _, shared, _ in alice.got(message)]
    assert ran == [each.shared for each in tasks]


def test_a_part_is_not_pushed_out_by_one_of_the_same_message() -> None:
    active, alice = lease_on_alice(), Alice()
    for n in range(MAX_SHARED_BLOBS):
        (message,) = active.messages(runs(task(n, b"", b"%d" % n)))
        alice.got(message)
    # The oldest part is known, and makes room for what comes with the next task.
    messages = list(active.messages(runs(task(100, b"", b"0"), task(101, b"", b"new"))))
    assert [shared for m in messages for _, shared, _ in alice.got(m)] == [b"0", b"new"]


def test_a_worker_cannot_say_that_tasks_took_longer_than_it_was_silent() -> None:
    active = lease_on_alice()
    for attempt_id, run in runs(task(0), task(1), task(2)):
        active.add(attempt_id, run, at(10))
    lies = [Ended("job/0#1", Succeeded(b""), 2**62), Ended("job/1#1", Succeeded(b""), 1)]
    assert active.ran(lies, at(14)) == (2, 4.0)
    honest = [Ended("job/2#1", Succeeded(b""), 500_000)]
    assert active.ran(honest, at(15)) == (1, 0.5)


def test_only_results_of_attempts_under_way_tell_how_long_tasks_take() -> None:
    active = lease_on_alice()
    for attempt_id, run in runs(task(0)):
        active.add(attempt_id, run, at(0))
    elsewhere = Ended("job/7#1", Succeeded(b""), 1)
    failed = Ended("job/0#1", Failed(FailureKind.EXIT, "exit code 1"), 1)
    assert active.ran([elsewhere, failed], at(1)) == (0, 0.0)


# -- laws ---------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.integers(0, 99)), max_size=40))
def test_the_bytes_under_way_are_those_of_the_attempts(story: list[tuple[bool, int, int]]) -> None:
    active = lease_on_alice()
    for adds, number, size in story:
        attempt_id = f"job/{number}#1"
        if not adds:
            active.remove(attempt_id, at(1))
        elif attempt_id not in active.attempts:
            ((_, run),) = runs(task(number, bytes(size)))
            active.add(attempt_id, run, at(0))
        payloads = [run.task.payload for run in active.attempts.values()]
        assert active.load.total_bytes == sum(map(len, payloads))
        assert (active.idle_s == float("inf")) == bool(active.attempts)


SIZES = st.sampled_from([0, 1, BATCH_BYTES // 3, BATCH_BYTES, MAX_PAYLOAD_BYTES // 2])
KINDS = st.integers(0, 40).map(lambda n: b"" if n == 0 else b"%d" % n) | st.sampled_from(
    [b"a" * (MAX_PAYLOAD_BYTES // 2), b"b" * (MAX_PAYLOAD_BYTES // 2)]
)


@settings(max_examples=15)
@given(st.lists(st.lists(st.tuples(SIZES, KINDS), min_size=1, max_size=8), max_size=6), st.data())
def test_whatever_goes_out_alice_runs_with_what_it_shares(
    batches: list[list[tuple[int, bytes]]], data: st.DataObject
) -> None:
    active, alice, number = lease_on_alice(), Alice(), 0
    for batch in batches:
        tasks = [task(number + n, bytes(size), kind) for n, (size, kind) in enumerate(batch)]
        number += len(tasks)
        if data.draw(st.booleans()):
            active.shared_blobs.forget()
        ran: list[tuple[str, bytes, bytes]] = []
        for message in active.messages(runs(*tasks)):
            ran += alice.got(message)
            over = tuple(Ended(each.attempt_id, Succeeded(b""), 0) for each in message.assignments)
            alice.executions.handle_report(ExecutionsEnded("lease", over))
            names = tuple(each.attempt_id for each in over)
            alice.executions.received(BOB.peer_id, ResultAck("lease", names))
        assert ran == [(f"{each.task_id}#1", each.shared, each.payload) for each in tasks]
