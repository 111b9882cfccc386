"""A task whose attempt brought no result runs again, and what is known of the first is told."""

import pytest

from formation_p2p.command.outcomes import retried_in_words
from formation_p2p.jobs.core.job_events import (
    JobEnded,
    RetryReason,
    TaskGaveUp,
    TaskPlaced,
    TaskRetried,
    TaskSucceeded,
)
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from simulations.simulator.executor import Running
from simulations.simulator.world import World
from tests.support.stories import (
    at,
    at_work,
    ends,
    is_idle,
    job,
    name_of,
    only,
    peer_of,
    town,
    where,
    workers_of,
)


def test_of_one_that_ended_with_its_worker_it_is_said_that_it_may_have_run() -> None:
    ran: list[str] = []

    def run(running: Running) -> tuple[float, Outcome]:
        ran.append(running.work.attempt_id)
        return 1.0, Succeeded(running.work.payload)

    world, bob = at_work(town(3, run, alice=1, carol=1), job(), for_s=0.5)
    (first,) = workers_of(bob)
    bob.side = 1  # what comes from now on does not arrive
    world.elapse(1)
    assert not world.nodes[first].running  # it has ended
    world.kill(world.nodes[first])
    bob.side = 0
    world.elapse(30)
    (retried,) = only(bob.reported, TaskRetried)
    assert (name_of(world, retried.attempt.worker), retried.attempt.lost) == (first, True)
    assert retried.reason is RetryReason.MAY_HAVE_RUN
    assert "it may have run, in part or to its end; running it again" in retried_in_words(retried)
    assert len(ran) == 2
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)


@pytest.mark.at_length
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (FailureKind.EXIT, RetryReason.FAILED),
        (FailureKind.DRIVER, RetryReason.NOT_BEGUN),
        (FailureKind.ENVIRONMENT, RetryReason.NOT_BEGUN),
        (FailureKind.TIMEOUT, RetryReason.FAILED),
    ],
)
def test_of_one_that_failed_it_is_said_whether_its_own_code_ran(
    kind: FailureKind, reason: RetryReason
) -> None:
    failed: list[str] = []

    def run(running: Running) -> tuple[float, Outcome]:
        if failed:
            return 0.1, Succeeded(b"")
        failed.append(running.work.attempt_id)
        return 0.1, Failed(kind, "it did not work")

    world: World = town(3, run, alice=1, carol=1)
    _, bob = at_work(world, job(), for_s=10)
    (retried,) = only(bob.reported, TaskRetried)
    assert retried.reason is reason
    assert retried_in_words(retried).endswith("it did not work; trying again")
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)


def test_a_worker_that_stood_still_has_lost_the_attempt_and_no_task_fails_by_that() -> None:
    """A task may be tried once alone, as that of `formation run`: the fault is not its own."""
    ran: list[str] = []

    def run(running: Running) -> tuple[float, Outcome]:
        ran.append(running.work.attempt_id)
        stood_still = Failed(FailureKind.LOST, "its worker stood still")
        return 0.1, Succeeded(b"") if len(ran) > 2 else stood_still

    world: World = town(3, run, alice=1, carol=1)
    _, bob = at_work(world, job(attempts=1), for_s=30)
    retried = only(bob.reported, TaskRetried)
    assert [each.attempt.lost for each in retried] == [True, True]
    assert {each.reason for each in retried} == {RetryReason.MAY_HAVE_RUN}
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)


# -- a job of which no attempt gets as far as its own code ---------------------------------------


MISSING = Failed(FailureKind.DRIVER, "could not start: sotr: No such file or directory")
NO_MODULE = Failed(FailureKind.MODULE, "No module named sotr")
NO_MODULE_OF_A_PROGRAM = Failed(
    FailureKind.EXIT,
    "ended with exit code 1: Traceback (most recent call last):\n"
    "ModuleNotFoundError: No module named 'sotr'",
)
NOT_HANDED_OVER = Failed(FailureKind.CALLER, "the caller did not hand over the data of the call")
EXIT = Failed(FailureKind.EXIT, "exit code 1")
WORKERS = ("alice", "carol", "dave")


def town_where(
    outcomes: dict[str, Outcome], seconds: float = 0.01, fails_s: float = 0.001, **workers: int
) -> World:
    world: World

    def run(each: Running) -> tuple[float, Outcome]:
        outcome = outcomes.get(where(world, each).name, Succeeded(each.work.payload))
        return (seconds if isinstance(outcome, Succeeded) else fails_s), outcome

    world = town(3, run, **workers)
    return world


@pytest.mark.parametrize("failure", [MISSING, NO_MODULE, NO_MODULE_OF_A_PROGRAM])
@pytest.mark.parametrize("fails_s", [0.001, 0.3])  # a sandbox takes a while to start
def test_what_fails_on_every_worker_before_its_code_runs_is_not_tried_500_times(
    failure: Failed, fails_s: float
) -> None:
    failures: dict[str, Outcome] = dict.fromkeys(WORKERS, failure)
    world, bob = at_work(town_where(failures, fails_s=fails_s, alice=1, carol=1, dave=1), job(500))
    world.elapse(40)
    gave_up = only(ends(bob).values(), TaskGaveUp)
    assert len(gave_up) == 500
    assert {each.kind for each in gave_up} == {failure.kind}
    assert len(only(bob.reported, TaskPlaced)) < 100
    not_tried = [each for each in gave_up if each.attempts[-1].attempt_id == ""]
    assert len(not_tried) > 400
    assert all(failure.message in each.attempts[-1].why for each in not_tried)
    assert all(is_idle(world.nodes[name]) for name in WORKERS)


@pytest.mark.at_length
def test_one_worker_that_fails_all_does_not_speak_for_the_others() -> None:
    _, bob = at_work(town_where({"alice": MISSING}, alice=1, carol=1), job(200), for_s=60)
    assert len(only(ends(bob).values(), TaskSucceeded)) == 200


@pytest.mark.at_length
@pytest.mark.parametrize("fails_s", [0.001, 0.3])
def test_nor_while_another_one_is_busy_with_the_first_task(fails_s: float) -> None:
    world = town_where({"alice": MISSING}, seconds=5.0, fails_s=fails_s, alice=1, carol=1)
    _, bob = at_work(world, job(10), for_s=120)
    assert len(only(ends(bob).values(), TaskSucceeded)) == 10


@pytest.mark.at_length
def test_tasks_whose_own_code_fails_are_each_tried() -> None:
    world = town_where(dict.fromkeys(WORKERS, EXIT), alice=1, carol=1, dave=1)
    _, bob = at_work(world, job(50), for_s=60)
    gave_up = only(ends(bob).values(), TaskGaveUp)
    assert len(gave_up) == 50
    assert all(len(each.attempts) == 3 for each in gave_up)


def test_a_task_that_is_cancelled_says_nothing_of_the_others() -> None:
    world, bob = at_work(town_where(dict.fromkeys(WORKERS, MISSING), alice=1), job(20), for_s=0.15)
    bob.cancel("job")
    world.elapse(20)
    assert len(ends(bob)) == 20


def test_what_its_caller_does_not_hand_over_is_not_the_workers_fault() -> None:
    outcomes: dict[str, Outcome] = {"alice": NOT_HANDED_OVER}
    world, bob = at_work(town_where(outcomes, alice=1), job(1), for_s=5)
    (gave_up,) = only(ends(bob).values(), TaskGaveUp)
    assert (gave_up.kind, len(gave_up.attempts)) == (FailureKind.CALLER, 3)
    alice = world.nodes["alice"].identity.peer_id
    standing = peer_of(bob).reputation.explain(alice, at(world.now_s))
    assert standing.score_milli == 500
    outcomes.clear()
    bob.submit(job(1, job_id="later"))
    world.elapse(1)
    assert len(only(ends(bob).values(), TaskSucceeded)) == 1
    outcomes["alice"] = MISSING
    bob.submit(job(1, job_id="last"))
    world.elapse(30)
    assert peer_of(bob).reputation.explain(alice, at(world.now_s)).score_milli < 500
