"""A job's tasks through their states, and what the job tells of it."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.refusals import Leaving
from formation_p2p.jobs.core.job_events import (
    Attempt,
    EmitJobEvent,
    JobEnded,
    JobEvent,
    RetryReason,
    TaskCancelled,
    TaskGaveUp,
    TaskRecalled,
    TaskRetried,
    TaskSucceeded,
    TaskUnplaceable,
)
from formation_p2p.jobs.core.jobs import Jobs, Outbox
from formation_p2p.jobs.core.parameters import DISPATCH_DEFAULTS, DispatchParameters
from formation_p2p.jobs.core.task_run import (
    ENDED,
    TRANSITIONS,
    JobRun,
    JobState,
    TaskRun,
    TaskState,
)
from formation_p2p.workload.core.outcome import Failed, FailureKind
from tests.support.stories import ALICE, CAROL, END, at, job

ATTEMPT = "an attempt"
EXIT = Failed(FailureKind.EXIT, "exit code 1", b"so far")
EVENTS = sorted({event for ways in TRANSITIONS.values() for event in ways})


class Bob:
    """His jobs, and the task of the one he has begun."""

    def __init__(
        self, tasks: int = 1, attempts: int = 3, parameters: DispatchParameters = DISPATCH_DEFAULTS
    ) -> None:
        self.outbox = Outbox()
        self.jobs = Jobs(self.outbox, parameters)
        self.job = self.jobs.begin(job(tasks, attempts=attempts), at(0))
        self.runs = [TaskRun(task, self.job, task.key) for task in self.job.job.tasks]
        for run in self.runs:
            run.move("dispatch")

    def reported(self) -> list[JobEvent]:
        return list(events(self.outbox))


def events(outbox: Outbox) -> Iterator[JobEvent]:
    for effect in outbox.take():
        assert isinstance(effect, EmitJobEvent)
        assert effect.job_id == "job"
        yield effect.event


# -- the table ------------------------------------------------------------------------------


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", TaskState)
def test_a_task_follows_the_table_and_nothing_else(state: TaskState, event: str) -> None:
    owner = JobRun(job())
    run = TaskRun(owner.job.tasks[0], owner, owner.job.tasks[0].key, state)
    if state in ENDED:
        owner.count(run.task, state)
    to = TRANSITIONS.get(state, {}).get(event)
    assert run.move(event) == (to is not None)
    assert run.state == (to or state)
    ended = run.state in ENDED
    assert owner.is_over == ended
    assert sum(owner.ended.values()) == ended


# -- how a task ends ------------------------------------------------------------------------


def test_each_result_counts_once() -> None:
    bob = Bob()
    bob.jobs.succeeded(
        bob.runs[0], TaskSucceeded(bob.runs[0].task.task_id, ALICE.peer_id, b"2", 10)
    )
    bob.jobs.succeeded(
        bob.runs[0], TaskSucceeded(bob.runs[0].task.task_id, CAROL.peer_id, b"2", 10)
    )
    bob.jobs.cancelled(bob.runs[0])
    assert bob.reported() == [
        TaskSucceeded("job/0", ALICE.peer_id, b"2", 10),
        JobEnded(succeeded=1, failed=0, unplaceable=0, cancelled=0),
    ]
    assert bob.jobs.runs.get("job") is None


def test_the_last_event_counts_how_each_task_ended() -> None:
    bob = Bob(tasks=4, attempts=1)
    succeeded, failed, unplaceable, cancelled = bob.runs
    bob.jobs.succeeded(succeeded, TaskSucceeded(succeeded.task.task_id, ALICE.peer_id, b"", 10))
    assert bob.jobs.failed(failed, ATTEMPT, ALICE.peer_id, EXIT) is False
    unplaceable.move("retry")
    bob.jobs.unplaceable(unplaceable, ((CAROL.peer_id, Leaving()),))
    assert bob.jobs.runs.get("job") is bob.job
    bob.jobs.cancelled(cancelled)
    attempt = Attempt(ATTEMPT, ALICE.peer_id, "exit: exit code 1", lost=False)
    assert bob.reported() == [
        TaskSucceeded("job/0", ALICE.peer_id, b"", 10),
        TaskGaveUp("job/1", (attempt,), FailureKind.EXIT, b"so far"),
        TaskUnplaceable("job/2", ((CAROL.peer_id, Leaving()),)),
        TaskCancelled("job/3"),
        JobEnded(1, 1, 1, 1),
    ]


def state_of(run: TaskRun) -> TaskState:
    return run.state


HAPPENINGS = st.lists(
    st.sampled_from(
        ["place", "succeed", "fail", "invalid", "lose", "return", "recall", "cancel", "overdue"]
    ),
    max_size=30,
)


@given(HAPPENINGS)
def test_in_whatever_order_things_happen_a_task_ends_once(story: list[str]) -> None:
    """Of up to three attempts at once. In the end whatever is under way fails."""
    bob = Bob(attempts=2)
    (run,) = bob.runs
    run.copies, waits = 1, False
    for number, what in enumerate([*story, *["fail"] * 9]):
        if what == "place":
            if waits or (run.state is TaskState.DISPATCHED and 0 < run.copies < 3):
                run.move("dispatch")
                run.copies, waits = run.copies + 1, False
            continue
        if what in ("cancel", "overdue"):
            bob.job.move("cancel" if what == "cancel" else "deadline")
            if waits:
                bob.jobs.stopped(run)
                waits = False
            continue
        if what == "fail" and waits and number >= len(story):
            run.move("dispatch")
            run.copies, waits = run.copies + 1, False
        if run.copies == 0:
            continue
        run.copies -= 1
        if run.state is not TaskState.DISPATCHED:
            continue  # as the scheduler has it: it counts nothing any more
        worker, name = ALICE.peer_id, f"attempt {number}"
        match what:
            case "succeed":
                bob.jobs.succeeded(run, TaskSucceeded(run.task.task_id, worker, b"", 1))
            case "fail":
                waits = bob.jobs.failed(run, name, worker, EXIT)
            case "invalid":
                invalid = Failed(FailureKind.INVALID, "no CBOR")
                waits = bob.jobs.failed(run, name, worker, invalid)
            case "lose":
                waits = bob.jobs.lost(run, name, worker, "it broke", counts=True)
            case "return":
                waits = bob.jobs.lost(run, name, worker, "it gave way", counts=False)
            case "recall":
                waits = bob.jobs.recalled(run, name)
        assert waits == (state_of(run) is TaskState.WAITING)
    reported = bob.reported()
    assert len([event for event in reported if isinstance(event, END)]) == 1
    assert isinstance(reported[-1], JobEnded)
    assert bob.jobs.runs.get("job") is None


# -- attempts -------------------------------------------------------------------------------


def test_a_failure_is_tried_again_up_to_the_limit_of_the_task() -> None:
    bob = Bob(attempts=2)
    (run,) = bob.runs
    first = Attempt(ATTEMPT, ALICE.peer_id, "exit: exit code 1", lost=False)
    second = Attempt(ATTEMPT, CAROL.peer_id, "exit: exit code 1", lost=False)
    assert bob.jobs.failed(run, ATTEMPT, ALICE.peer_id, EXIT)
    assert (run.state, run.avoids(ALICE.peer_id)) == (TaskState.WAITING, True)
    run.move("dispatch")
    assert not bob.jobs.failed(run, ATTEMPT, CAROL.peer_id, EXIT)
    assert bob.reported() == [
        TaskRetried("job/0", first),
        TaskGaveUp("job/0", (first, second), FailureKind.EXIT, b"so far"),
        JobEnded(0, 1, 0, 0),
    ]


def test_what_does_not_parse_is_not_tried_again_and_a_cancellation_that_nobody_asked_for_is() -> (
    None
):
    bob = Bob(tasks=2)
    invalid, cancelled = bob.runs
    failed = Failed(FailureKind.INVALID, "no CBOR")
    assert not bob.jobs.failed(invalid, ATTEMPT, ALICE.peer_id, failed)
    attempt = Attempt(ATTEMPT, ALICE.peer_id, "invalid: no CBOR", lost=False)
    assert bob.reported()[0] == TaskGaveUp("job/0", (attempt,), FailureKind.INVALID, b"")
    unasked = Failed(FailureKind.CANCELLED, "the worker felt like it")
    assert bob.jobs.failed(cancelled, ATTEMPT, ALICE.peer_id, unasked)


def test_a_module_that_two_workers_lack_is_not_looked_for_at_a_third() -> None:
    bob = Bob(attempts=5)
    (run,) = bob.runs
    lacking = Failed(FailureKind.MODULE, "No module named 'shop'")
    assert bob.jobs.failed(run, "1", ALICE.peer_id, lacking)
    run.move("dispatch")
    assert bob.jobs.failed(run, "2", CAROL.peer_id, EXIT), "the module was there"
    run.move("dispatch")
    assert bob.jobs.failed(run, "3", ALICE.peer_id, lacking)
    run.move("dispatch")
    assert not bob.jobs.failed(run, "4", CAROL.peer_id, lacking)
    gave_up = next(event for event in bob.reported() if isinstance(event, TaskGaveUp))
    assert gave_up.kind is FailureKind.MODULE
    assert [attempt.worker for attempt in gave_up.attempts] == [
        each.peer_id for each in (ALICE, CAROL, ALICE, CAROL)
    ]


def test_losses_and_failures_are_counted_apart() -> None:
    bob = Bob(attempts=2)
    (run,) = bob.runs
    for _ in range(DISPATCH_DEFAULTS.max_lost - 1):
        assert bob.jobs.lost(run, ATTEMPT, ALICE.peer_id, "it broke", counts=True)
        run.move("dispatch")
    assert bob.jobs.failed(run, ATTEMPT, ALICE.peer_id, EXIT)
    run.move("dispatch")
    assert not bob.jobs.lost(run, ATTEMPT, ALICE.peer_id, "it broke", counts=True)
    gave_up = bob.reported()[-2]
    assert isinstance(gave_up, TaskGaveUp)
    assert len(gave_up.attempts) == DISPATCH_DEFAULTS.max_lost + 1
    assert (gave_up.kind, gave_up.result) == (FailureKind.EXIT, b"so far")  # the last that ended
    unlucky = Bob()  # a task that only ever lost its worker has no failure to show
    for _ in range(DISPATCH_DEFAULTS.max_lost):
        unlucky.jobs.lost(unlucky.runs[0], ATTEMPT, ALICE.peer_id, "it broke", counts=True)
        unlucky.runs[0].move("dispatch")
    gave_up = unlucky.reported()[-2]
    assert isinstance(gave_up, TaskGaveUp)
    assert (gave_up.kind, gave_up.result) == (None, b"")


def test_a_task_that_had_not_started_is_not_blamed_for_the_loss() -> None:
    bob = Bob()
    (run,) = bob.runs
    for _ in range(2 * DISPATCH_DEFAULTS.max_lost):
        assert bob.jobs.lost(run, ATTEMPT, ALICE.peer_id, "it broke", counts=False)
        run.move("dispatch")
    assert (run.attempts, run.avoids(ALICE.peer_id)) == ((), False)
    lost = Attempt(ATTEMPT, ALICE.peer_id, "it broke", lost=True)
    retried = TaskRetried("job/0", lost, False, RetryReason.MAY_HAVE_RUN)
    assert bob.reported() == [retried] * (2 * DISPATCH_DEFAULTS.max_lost)


def test_what_was_cancelled_is_not_tried_again() -> None:
    bob = Bob(tasks=3)
    bob.job.move("cancel")
    failed, lost, returned = bob.runs
    assert not bob.jobs.failed(
        failed, ATTEMPT, ALICE.peer_id, Failed(FailureKind.CANCELLED, "killed")
    )
    assert not bob.jobs.lost(lost, ATTEMPT, ALICE.peer_id, "it broke", counts=True)
    assert not bob.jobs.lost(returned, ATTEMPT, ALICE.peer_id, "it broke", counts=False)
    assert bob.reported() == [*(TaskCancelled(f"job/{n}") for n in range(3)), JobEnded(0, 0, 0, 3)]


def test_what_is_past_its_deadline_is_given_up_also_without_an_attempt() -> None:
    bob = Bob(tasks=4)
    bob.job.move("deadline")
    waiting, failed, lost, recalled = bob.runs
    waiting.move("retry")
    bob.jobs.stopped(waiting)
    assert not bob.jobs.failed(failed, "a", ALICE.peer_id, Failed(FailureKind.CANCELLED, "killed"))
    assert not bob.jobs.lost(lost, "b", ALICE.peer_id, "it broke", counts=True)
    assert not bob.jobs.recalled(recalled, "c")
    killed = Attempt("a", ALICE.peer_id, "cancelled: killed", lost=False)
    broke = Attempt("b", ALICE.peer_id, "it broke", lost=True)
    assert bob.reported() == [
        TaskGaveUp("job/0", (), FailureKind.DEADLINE, b""),
        TaskGaveUp("job/1", (killed,), FailureKind.DEADLINE, b""),
        TaskGaveUp("job/2", (broke,), FailureKind.DEADLINE, b""),
        TaskGaveUp("job/3", (), FailureKind.DEADLINE, b""),
        JobEnded(0, 4, 0, 0),
    ]


def test_a_job_is_overdue_once_from_its_deadline_on() -> None:
    jobs = Jobs(Outbox())
    assert jobs.next_deadline_s() == float("inf")
    late = jobs.begin(job(deadline_s=5.0), at(10))
    jobs.begin(job(job_id="later", deadline_s=9.0), at(10))
    jobs.begin(job(job_id="never"), at(10))
    assert jobs.next_deadline_s() == 15
    assert jobs.overdue(at(14.9)) == []
    assert jobs.overdue(at(15)) == [late]
    assert late.state is JobState.OVERDUE
    assert jobs.overdue(at(15)) == []
    assert jobs.next_deadline_s() == 19


# -- more than one attempt at once ----------------------------------------------------------


def test_while_another_attempt_is_under_way_none_ends_the_task() -> None:
    bob = Bob(attempts=1)
    (run,) = bob.runs
    run.copies = 1
    assert not bob.jobs.failed(run, "a", ALICE.peer_id, Failed(FailureKind.INVALID, "no CBOR"))
    assert not bob.jobs.lost(run, "b", ALICE.peer_id, "it broke", counts=True)
    assert not bob.jobs.lost(run, "c", ALICE.peer_id, "it gave way", counts=False)
    assert not bob.jobs.recalled(run, "d")
    assert run.state is TaskState.DISPATCHED  # a result of the other one counts
    bob.jobs.succeeded(run, TaskSucceeded(run.task.task_id, CAROL.peer_id, b"2", 10))
    assert [type(event) for event in bob.reported()] == [
        TaskRetried,
        TaskRetried,
        TaskRetried,
        TaskRecalled,
        TaskSucceeded,
        JobEnded,
    ]


def test_the_last_attempt_that_fails_ends_it() -> None:
    bob = Bob(attempts=1)
    (run,) = bob.runs
    run.copies = 1
    assert not bob.jobs.failed(run, "a", ALICE.peer_id, EXIT)
    run.copies = 0
    assert not bob.jobs.failed(run, "b", CAROL.peer_id, EXIT)
    retried, gave_up, _ = bob.reported()
    assert isinstance(retried, TaskRetried)
    assert isinstance(gave_up, TaskGaveUp)
    assert [each.attempt_id for each in gave_up.attempts] == ["a", "b"]


def test_what_is_taken_back_before_it_began_waits_again_and_does_not_count() -> None:
    bob = Bob(attempts=1)
    (run,) = bob.runs
    for number in range(20):
        assert bob.jobs.recalled(run, f"{number}")
        assert run.state is TaskState.WAITING
        run.move("dispatch")
    assert run.attempts == ()
    assert bob.reported() == [TaskRecalled("job/0", f"{number}") for number in range(20)]
    bob.job.move("cancel")
    assert not bob.jobs.recalled(run, "last")
    assert bob.reported() == [TaskCancelled("job/0"), JobEnded(0, 0, 0, 1)]


# -- bounds ---------------------------------------------------------------------------------


def test_a_job_that_is_running_cannot_begin_again() -> None:
    bob = Bob(parameters=DispatchParameters(max_jobs=1))
    with pytest.raises(InvalidInput, match="running already"):
        bob.jobs.begin(job(), at(0))
    with pytest.raises(InvalidInput, match="1 are running"):
        bob.jobs.begin(job(job_id="another"), at(0))
    bob.jobs.cancelled(bob.runs[0])
    bob.jobs.begin(job(), at(0))
