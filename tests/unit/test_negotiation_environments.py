"""Environments that workers have, and those that they could not have lately."""

from dataclasses import replace

import pytest

from formation_p2p.core.refusals import Silent, Unbuildable
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import (
    JobWaits,
    TaskPlaced,
    TaskRetried,
    TaskSucceeded,
    TaskUnplaceable,
)
from formation_p2p.leases.core.failed_environments import (
    FAILED_S,
    MAX_FAILED,
    MAX_WHY_CHARS,
    FailedEnvironments,
    on_one_line,
)
from formation_p2p.leases.core.messages import PlacementRequest
from formation_p2p.peer.core.events import EnvironmentsChanged
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.work import Task
from simulations.simulator.executor import Running
from simulations.simulator.world import World
from tests.support.stories import (
    NEEDS,
    at,
    at_work,
    ends,
    is_idle,
    name_of,
    only,
    passed,
    town,
    where,
)

NUMPY = "4f1c0a9b7d2e"
BROKEN = Failed(FailureKind.ENVIRONMENT, "uv could not make the environment:\nno numpy")
REFUSAL = Unbuildable(NUMPY, "uv could not make the environment: no numpy")
WITH_NUMPY = replace(NEEDS, environment=NUMPY)


def job_of(count: int, job_id: str = "job") -> Job:
    tasks = tuple(Task(f"{job_id}/{n}", WITH_NUMPY, b"%d" % n) for n in range(count))
    return Job(job_id, tasks, "", TaskOptions(needs=WITH_NUMPY))


def town_where(broken: set[str], seconds: float = 0.01, **workers: int) -> World:
    world: World

    def run(each: Running) -> tuple[float, Outcome]:
        if where(world, each).name in broken:
            return 0.01, BROKEN
        return seconds, Succeeded(each.work.payload)

    world = town(3, run, **workers)
    return world


# -- a failed build -------------------------------------------------------------------------------


@pytest.mark.at_length
def test_a_worker_that_cannot_have_the_packages_is_left_alone_and_the_others_do_the_work() -> None:
    world, bob = at_work(town_where({"alice"}, alice=1, carol=1, dave=1), job_of(100), for_s=60)
    assert len(only(ends(bob).values(), TaskSucceeded)) == 100
    placed = [name_of(world, each.worker) for each in only(bob.reported, TaskPlaced)]
    assert placed.count("alice") <= 16  # what was in flight as the first one failed
    retried = only(bob.reported, TaskRetried)
    assert len(retried) == placed.count("alice")
    assert not any(each.counts for each in retried)
    assert all(is_idle(world.nodes[name]) for name in ("alice", "carol", "dave"))


def test_where_no_worker_can_have_them_the_tasks_end_soon_and_say_why() -> None:
    world, bob = at_work(town_where({"alice", "carol"}, alice=1, carol=1), job_of(500), for_s=8)
    unplaceable = only(ends(bob).values(), TaskUnplaceable)
    assert len(unplaceable) == 500
    assert {why for each in unplaceable for _, why in each.reasons} == {REFUSAL}
    assert len(only(bob.reported, TaskPlaced)) <= 4
    assert all(is_idle(world.nodes[name]) for name in ("alice", "carol"))


@pytest.mark.at_length
@pytest.mark.parametrize("how", ["kill", "vanish"])
def test_nor_do_they_wait_for_a_worker_that_has_died(how: str) -> None:
    world = town_where({"alice", "carol"}, alice=1, carol=1, dave=1)
    bob, dave = world.nodes["bob"], world.nodes["dave"]
    getattr(world, how)(dave)
    bob.submit(job_of(20))
    world.elapse(6 if how == "kill" else 12)
    unplaceable = only(ends(bob).values(), TaskUnplaceable)
    assert len(unplaceable) == 20
    reasons = dict(unplaceable[0].reasons)
    assert isinstance(reasons.pop(dave.identity.peer_id), Silent)
    assert set(reasons.values()) == {REFUSAL}
    assert not only(bob.reported, JobWaits)


@pytest.mark.at_length
def test_they_wait_for_one_that_has_worked_for_them() -> None:
    world, bob = at_work(town_where({"alice"}, 2.0, alice=1, dave=1), job_of(20), for_s=8)
    dave = world.nodes["dave"]
    world.kill(dave)
    world.elapse(20)
    world.restart(dave, world.machine(cpu=1))
    world.elapse(120)
    assert len(only(ends(bob).values(), TaskSucceeded)) == 20


def test_a_worker_refuses_at_once_what_it_could_not_have_a_moment_ago() -> None:
    broken = {"alice"}
    world, bob = at_work(town_where(broken, alice=1), job_of(1, "first"), for_s=8)
    bob.submit(job_of(1, "second"))
    world.elapse(8)
    assert [each.task_id for each in only(bob.reported, TaskPlaced)] == ["first/0"]
    (again,) = only([ends(bob)["second/0"]], TaskUnplaceable)
    assert again.reasons == ((world.nodes["alice"].identity.peer_id, REFUSAL),)
    assert len([x for x in passed(world, "bob", "alice") if isinstance(x, PlacementRequest)]) == 2
    broken.clear()
    world.elapse(FAILED_S)
    bob.submit(job_of(1, "third"))
    world.elapse(8)
    assert isinstance(ends(bob)["third/0"], TaskSucceeded)


def test_what_failed_is_forgotten_in_time_when_it_works_and_for_others() -> None:
    failed = FailedEnvironments()
    failed.ended("", BROKEN, at(0))
    failed.ended(".09", BROKEN, at(0))
    assert failed.refusal("", at(0)) is None
    failed.ended(f"{NUMPY}.09", Failed(FailureKind.EXIT, "exit code 1"), at(0))
    assert failed.refusal(NUMPY, at(0)) is None
    failed.ended(f"{NUMPY}.09", BROKEN, at(0))
    assert failed.refusal(NUMPY, at(FAILED_S - 1)) == REFUSAL
    assert failed.refusal(NUMPY, at(FAILED_S)) is None
    failed.ended(NUMPY, BROKEN, at(0))
    failed.ended(NUMPY, Succeeded(b""), at(1))
    assert failed.refusal(NUMPY, at(1)) is None
    failed.ended(NUMPY, BROKEN, at(2))
    for number in range(MAX_FAILED):
        failed.ended(f"{number:012x}", BROKEN, at(2))
    assert failed.refusal(NUMPY, at(2)) is None
    assert failed.refusal(f"{0:012x}", at(2)) is not None


def test_the_end_of_a_log_is_shown_on_one_line() -> None:
    told = on_one_line(Failed(FailureKind.ENVIRONMENT, f"{'x' * 9999}\n\n\x1b[31merror:\tno"))
    assert len(told) == MAX_WHY_CHARS
    assert told.endswith("x [31merror: no")
    assert str(REFUSAL).startswith("it cannot have the packages: uv could")


# -- warm environments ----------------------------------------------------------------------------


@pytest.mark.at_length
@pytest.mark.parametrize("warm", ["alice", "carol", "dave"])
def test_tasks_go_where_their_packages_are(warm: str) -> None:
    world = town_where(set(), alice=1, carol=1, dave=1)
    bob, there = world.nodes["bob"], world.nodes[warm]
    world.deliver(bob, EnvironmentsChanged((NUMPY,)))  # it does not work, and does not tell
    world.deliver(there, EnvironmentsChanged((NUMPY,)))
    world.elapse(20)
    for number in range(5):
        bob.submit(job_of(1, f"job{number}"))
        world.elapse(12)
    placed = [name_of(world, each.worker) for each in only(bob.reported, TaskPlaced)]
    assert placed == [warm] * 5


def test_what_is_warm_is_told_once() -> None:
    world = town_where(set(), alice=1)
    alice = world.nodes["alice"]
    for warm in ((NUMPY,), (NUMPY,)):
        world.deliver(alice, EnvironmentsChanged(warm))
    world.elapse(20)
    _, bob = at_work(world, job_of(1), for_s=5)
    assert isinstance(ends(bob)["job/0"], TaskSucceeded)
