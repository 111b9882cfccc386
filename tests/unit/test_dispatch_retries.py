"""A task whose attempt brought no result runs again, and what is known of the first is told."""

from __future__ import annotations

import pytest

from formation_p2p.command.outcomes import retried_in_words
from formation_p2p.jobs.core.job_events import JobEnded, RetryReason, TaskRetried
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from simulations.simulator.executor import Running
from simulations.simulator.world import World
from tests.support.stories import at_work, job, name_of, only, town, workers_of


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


def test_of_those_that_were_lost_with_their_worker_the_one_that_ran_is_counted() -> None:
    world = town(3, lambda running: (5.0, Succeeded(running.work.payload)), alice=1)
    _, bob = at_work(world, job(4), for_s=2)
    world.kill(world.nodes["alice"])
    world.elapse(30)
    retried = only(bob.reported, TaskRetried)
    assert [each.counts for each in retried] == [True, False]
