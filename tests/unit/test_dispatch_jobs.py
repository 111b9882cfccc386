"""A job's tasks through their states, and what the job tells of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from formation_p2p.dispatch.job_events import (
    Attempt,
    JobEnded,
    JobEvent,
    TaskCancelled,
    TaskGaveUp,
    TaskRetried,
    TaskSucceeded,
    TaskUnplaceable,
    Tell,
)
from formation_p2p.dispatch.jobs import MAX_LOST, Jobs
from formation_p2p.dispatch.task_run import TRANSITIONS, JobRun, TaskRun, TaskState
from formation_p2p.errors import InvalidInput
from formation_p2p.refusals import Leaving
from formation_p2p.workload.outcome import Failed, FailureKind
from tests.unit.stories import ALICE, CAROL, at, job

ATTEMPT = "an attempt"
EXIT = Failed(FailureKind.EXIT, "exit code 1", b"so far")
EVENTS = sorted({event for ways in TRANSITIONS.values() for event in ways})


class Bob:
    """His jobs, and the task of the one he has begun."""

    def __init__(self, tasks: int = 1, attempts: int = 3) -> None:
        self.jobs = Jobs()
        self.job = self.jobs.begin(job(tasks, attempts=attempts), at(0))
        self.runs = [TaskRun(task, self.job, task.key) for task in self.job.job.tasks]
        for run in self.runs:
            run.move("dispatch")

    def told(self) -> list[JobEvent]:
        return list(events(self.jobs))


def events(jobs: Jobs) -> Iterator[JobEvent]:
    for effect in jobs.take():
        assert isinstance(effect, Tell)
        assert effect.job_id == "job"
        yield effect.event


# -- the table ------------------------------------------------------------------------------


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", TaskState)
def test_a_task_follows_the_table_and_nothing_else(state: TaskState, event: str) -> None:
    owner = JobRun(job())
    run = TaskRun(owner.job.tasks[0], owner, owner.job.tasks[0].key, state)
    to = TRANSITIONS.get(state, {}).get(event)
    assert run.move(event) == (to is not None)
    assert run.state == (to or state)
    ended = to is not None and to not in TRANSITIONS
    assert owner.is_over == ended
    assert sum(owner.ended.values()) == ended


# -- how a task ends ------------------------------------------------------------------------


def test_each_result_counts_once() -> None:
    bob = Bob()
    bob.jobs.succeeded(bob.runs[0], ALICE.peer_id, b"2", 10)
    bob.jobs.succeeded(bob.runs[0], CAROL.peer_id, b"2", 10)
    bob.jobs.cancelled(bob.runs[0])
    assert bob.told() == [
        TaskSucceeded("job/0", ALICE.peer_id, b"2", 10),
        JobEnded(succeeded=1, failed=0, unplaceable=0, cancelled=0),
    ]
    assert bob.jobs.named("job") is None


def test_the_last_event_counts_how_each_task_ended() -> None:
    bob = Bob(tasks=4, attempts=1)
    succeeded, failed, unplaceable, cancelled = bob.runs
    bob.jobs.succeeded(succeeded, ALICE.peer_id, b"", 10)
    assert bob.jobs.failed(failed, ATTEMPT, ALICE.peer_id, EXIT) is False
    unplaceable.move("retry")
    bob.jobs.unplaceable(unplaceable, ((CAROL.peer_id, Leaving()),))
    assert bob.jobs.named("job") is bob.job
    bob.jobs.cancelled(cancelled)
    attempt = Attempt(ATTEMPT, ALICE.peer_id, "exit: exit code 1", lost=False)
    assert bob.told() == [
        TaskSucceeded("job/0", ALICE.peer_id, b"", 10),
        TaskGaveUp("job/1", (attempt,), FailureKind.EXIT, b"so far"),
        TaskUnplaceable("job/2", ((CAROL.peer_id, Leaving()),)),
        TaskCancelled("job/3"),
        JobEnded(1, 1, 1, 1),
    ]


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
    assert bob.told() == [
        TaskRetried("job/0", first),
        TaskGaveUp("job/0", (first, second), FailureKind.EXIT, b"so far"),
        JobEnded(0, 1, 0, 0),
    ]


def test_what_does_not_parse_is_not_tried_again() -> None:
    bob = Bob()
    assert not bob.jobs.failed(bob.runs[0], ATTEMPT, ALICE.peer_id, Failed(FailureKind.INVALID, "no CBOR"))
    attempt = Attempt(ATTEMPT, ALICE.peer_id, "invalid: no CBOR", lost=False)
    assert bob.told()[0] == TaskGaveUp("job/0", (attempt,), FailureKind.INVALID, b"")


def test_a_cancellation_that_nobody_asked_for_is_a_failure_like_any_other() -> None:
    bob = Bob()
    unasked = Failed(FailureKind.CANCELLED, "the worker felt like it")
    assert bob.jobs.failed(bob.runs[0], ATTEMPT, ALICE.peer_id, unasked)


def test_losses_and_failures_are_counted_apart() -> None:
    bob = Bob(attempts=2)
    (run,) = bob.runs
    for _ in range(MAX_LOST - 1):
        assert bob.jobs.lost(run, ATTEMPT, ALICE.peer_id, "it broke")
        run.move("dispatch")
    assert bob.jobs.failed(run, ATTEMPT, ALICE.peer_id, EXIT)
    run.move("dispatch")
    assert not bob.jobs.lost(run, ATTEMPT, ALICE.peer_id, "it broke")
    gave_up = bob.told()[-2]
    assert isinstance(gave_up, TaskGaveUp)
    assert len(gave_up.attempts) == MAX_LOST + 1
    assert (gave_up.kind, gave_up.result) == (FailureKind.EXIT, b"so far")  # the last that ended


def test_a_task_that_only_ever_lost_its_worker_has_no_failure_to_show() -> None:
    bob = Bob()
    for _ in range(MAX_LOST):
        bob.jobs.lost(bob.runs[0], ATTEMPT, ALICE.peer_id, "it broke")
        bob.runs[0].move("dispatch")
    gave_up = bob.told()[-2]
    assert isinstance(gave_up, TaskGaveUp)
    assert (gave_up.kind, gave_up.result) == (None, b"")


def test_a_task_that_had_not_started_is_not_blamed_for_the_loss() -> None:
    bob = Bob()
    (run,) = bob.runs
    for _ in range(2 * MAX_LOST):
        assert bob.jobs.returned(run, ATTEMPT, ALICE.peer_id, "it broke")
        run.move("dispatch")
    assert (run.losses, run.avoids(ALICE.peer_id)) == (0, False)
    retried = TaskRetried("job/0", Attempt(ATTEMPT, ALICE.peer_id, "it broke", lost=True))
    assert bob.told() == [retried] * (2 * MAX_LOST)


def test_what_was_cancelled_is_not_tried_again() -> None:
    bob = Bob(tasks=3)
    bob.job.cancelled = True
    failed, lost, returned = bob.runs
    assert not bob.jobs.failed(failed, ATTEMPT, ALICE.peer_id, Failed(FailureKind.CANCELLED, "killed"))
    assert not bob.jobs.lost(lost, ATTEMPT, ALICE.peer_id, "it broke")
    assert not bob.jobs.returned(returned, ATTEMPT, ALICE.peer_id, "it broke")
    assert bob.told() == [
        *(TaskCancelled(f"job/{n}") for n in range(3)),
        JobEnded(0, 0, 0, 3),
    ]


# -- bounds ---------------------------------------------------------------------------------


def test_a_job_under_way_cannot_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bob = Bob()
    with pytest.raises(InvalidInput, match="under way already"):
        bob.jobs.begin(job(), at(0))
    monkeypatch.setattr("formation_p2p.dispatch.jobs.MAX_JOBS", 1)
    with pytest.raises(InvalidInput, match="1 are under way"):
        bob.jobs.begin(job(job_id="another"), at(0))
    bob.jobs.cancelled(bob.runs[0])
    bob.jobs.begin(job(), at(0))
