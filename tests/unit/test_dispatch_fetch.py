"""Large results: a task has succeeded once its result is here, and its worker forgets that then."""

import gc
import weakref
from dataclasses import replace

import pytest

from formation_p2p.assembly import DEFAULT_PARAMETERS, PeerEffect, PeerEvent
from formation_p2p.core.units import MIB
from formation_p2p.jobs.core.fetch import FetchResult, ResultLost, StopFetch
from formation_p2p.jobs.core.job_events import (
    JobEnded,
    TaskGaveUp,
    TaskPlaced,
    TaskRetried,
    TaskSucceeded,
)
from formation_p2p.jobs.core.parameters import DispatchParameters
from formation_p2p.leases.core.messages import ResultAck, TasksEnded
from formation_p2p.leases.core.session import Received
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.parcel import Parcel
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import World
from tests.support.large_results import LIMIT, calls, record_at, town_of_calls
from tests.support.stories import (
    ALICE,
    at,
    at_work,
    is_idle,
    only,
    passed,
    peer_of,
    worker_of,
    workers_of,
)


def watched(world: World) -> list[PeerEffect]:
    """What bob asks for from now on."""
    asked: list[PeerEffect] = []

    def see(node: SimNode, event: PeerEvent, effects: list[PeerEffect]) -> None:
        if node.name == "bob":
            asked.extend(effects)

    world.witness = see
    return asked


def until_fetching(world: World, count: int = 1) -> None:
    """Until bob fetches so many results."""
    scheduler = peer_of(world.nodes["bob"]).scheduler
    for _ in range(5000):
        if sum(len(active.fetching) for active in scheduler.leases()) == count:
            return
        world.elapse(0.005)
    raise AssertionError("nothing is being fetched")


def test_a_result_counts_once_it_is_here_and_is_forgotten_then() -> None:
    world, bob = at_work(town_of_calls(alice=1), calls())
    alice = world.nodes["alice"]
    until_fetching(world)
    assert only(bob.reported, TaskSucceeded) == []
    assert only(passed(world, "bob", "alice"), ResultAck) == []
    assert len(alice.executor.kept) == 1
    (status,) = peer_of(bob).status(at(world.now_s)).jobs
    assert (status.waiting, status.in_flight) == (0, 1)
    world.elapse(0.1)
    (done,) = only(bob.reported, TaskSucceeded)
    assert done.content is not None
    assert len(done.content.take()) == MIB
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)
    assert alice.executor.kept == set()
    kept = weakref.ref(done.content)
    bob.reported.clear()
    del done
    gc.collect()
    assert kept() is None  # its story does not keep it
    world.elapse(5)
    assert is_idle(alice)


def test_the_next_call_runs_while_a_result_is_fetched() -> None:
    world, bob = at_work(town_of_calls(takes_s=lambda world, running: 1.0, alice=1), calls(6))
    until_fetching(world)
    assert len(world.nodes["alice"].running) == 1
    world.elapse(10)
    assert bob.reported[-1] == JobEnded(6, 0, 0, 0)


def test_a_result_that_is_told_twice_is_fetched_once() -> None:
    world, bob = at_work(town_of_calls(alice=1), calls())
    alice = world.nodes["alice"]
    asked = watched(world)
    until_fetching(world)
    (told,) = only(passed(world, "alice", "bob"), TasksEnded)
    world.deliver(bob, Received(alice.contact, told))
    assert len(only(asked, FetchResult)) == 1
    assert only(passed(world, "bob", "alice"), ResultAck) == []
    world.elapse(1)
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)
    assert len(only(bob.reported, TaskSucceeded)) == 1


def test_a_worker_that_dies_before_its_result_is_fetched_has_the_task_run_again() -> None:
    world, bob = at_work(town_of_calls(alice=1, carol=1), calls())
    asked = watched(world)
    until_fetching(world)
    (first,) = workers_of(bob)
    world.kill(world.nodes[first])
    world.elapse(30)
    assert len(only(asked, StopFetch)) == 1
    assert len(set(workers_of(bob))) == 2
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)


def test_a_result_that_is_gone_is_made_again_elsewhere() -> None:
    world, bob = at_work(town_of_calls(alice=1, carol=1), calls())
    until_fetching(world)
    (first,) = workers_of(bob)
    world.nodes[first].executor.kept.clear()
    world.elapse(30)
    (retried,) = only(bob.reported, TaskRetried)
    assert retried.attempt.lost
    assert retried.attempt.why == "its result did not arrive: it is not there"
    assert len(set(workers_of(bob))) == 2
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)
    world.elapse(5)
    assert all(is_idle(world.nodes[name]) for name in ("alice", "carol"))


@pytest.mark.parametrize("dies", [True, False])
def test_a_task_whose_results_are_lost_again_and_again_is_given_up(dies: bool) -> None:
    once = replace(DEFAULT_PARAMETERS, dispatch=DispatchParameters(max_lost=1))
    world, bob = at_work(town_of_calls(alice=1, parameters=once), calls())
    alice = world.nodes["alice"]
    until_fetching(world)
    if dies:
        world.kill(alice)
    else:
        alice.executor.kept.clear()
    world.elapse(30)
    assert bob.reported[-1] == JobEnded(0, 1, 0, 0)


LIES = {
    "of another": record_at(ALICE),
    "too large": None,
    "no record": b"\x85garbage",
    "refers": Parcel(b"\x80", references=(Parcel(b"\x80"),)).encode(),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_worker_that_lies_about_its_result_is_not_asked_for_it(lie: str) -> None:
    def returns(world: World, running: Running) -> Outcome:
        told = LIES[lie]
        owner = world.nodes["alice"].contact
        return Succeeded(record_at(owner, LIMIT + 64) if told is None else told)

    world, bob = at_work(town_of_calls(returns, alice=1))
    asked = watched(world)
    bob.submit(calls(attempts=1))
    world.elapse(3)
    (end,) = only(bob.reported, TaskGaveUp)
    assert end.kind is FailureKind.OUTPUT
    assert end.result == b""
    assert only(asked, FetchResult) == []


def test_a_result_that_its_call_does_not_allow_ends_the_task_and_is_named() -> None:
    def returns(world: World, running: Running) -> Outcome:
        owner = world.nodes["alice"].contact
        return Failed(FailureKind.OUTPUT, "it is too large", record_at(owner, LIMIT + 64))

    world, bob = at_work(town_of_calls(returns, alice=1), calls(), for_s=3)
    (end,) = only(bob.reported, TaskGaveUp)
    assert end.result == record_at(world.nodes["alice"].contact, LIMIT + 64)
    assert len(only(bob.reported, TaskPlaced)) == 1  # the next one would be as large


def test_what_a_failure_names_is_its_workers_own() -> None:
    def returns(world: World, running: Running) -> Outcome:
        return Failed(FailureKind.OUTPUT, "it is too large", record_at(ALICE))

    _, bob = at_work(town_of_calls(returns, alice=1), calls(attempts=1), for_s=3)
    (end,) = only(bob.reported, TaskGaveUp)
    assert (end.kind, end.result) == (FailureKind.OUTPUT, b"")


def test_a_job_that_is_cancelled_does_not_wait_for_its_results() -> None:
    world = town_of_calls(alice=3)
    world.latency = lambda a, b: 0.3
    _, bob = at_work(world, calls(), calls(job_id="other"))
    asked = watched(world)
    until_fetching(world, 2)
    bob.cancel("job")
    assert len(only(asked, StopFetch)) == 1
    assert JobEnded(0, 0, 0, 1) in bob.reported
    world.elapse(5)
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)
    assert world.nodes["alice"].executor.kept == set()
    assert is_idle(world.nodes["alice"])


def test_a_result_that_comes_after_its_job_was_cancelled_is_not_fetched() -> None:
    world, bob = at_work(town_of_calls(alice=1), calls())
    while not world.nodes["alice"].running:
        world.elapse(0.005)
    world.elapse(0.095)
    asked = watched(world)
    bob.cancel("job")
    world.elapse(5)
    assert only(asked, FetchResult) == []
    assert bob.reported[-1] == JobEnded(0, 0, 0, 1)
    assert world.nodes["alice"].executor.kept == set()


def test_a_node_that_leaves_waits_for_no_result() -> None:
    world, bob = at_work(town_of_calls(alice=1), calls())
    until_fetching(world)
    bob.leave()
    assert bob.reported[-1] == JobEnded(0, 0, 0, 1)


def overtaken() -> World:
    """Two attempts of one task end at the same moment."""

    def takes_s(world: World, running: Running) -> float:
        slow = running.work.attempt_id.startswith("job/7#")
        return 20.0 - world.now_s if slow else 0.1

    world = town_of_calls(takes_s=takes_s, alice=1, carol=1)
    world.nodes["bob"].submit(calls(9, speculate=True))
    world.elapse(19.9 - world.now_s)
    until_fetching(world, 2)
    return world


def test_of_two_attempts_the_result_that_comes_first_counts() -> None:
    world, bob = at_work(overtaken())
    world.elapse(5)
    assert bob.reported[-1] == JobEnded(9, 0, 0, 0)
    assert len(only(bob.reported, TaskSucceeded)) == 9
    assert all(world.nodes[name].executor.kept == set() for name in ("alice", "carol"))


def test_of_two_attempts_the_one_that_is_lost_is_none_where_the_other_counts() -> None:
    world, bob = at_work(overtaken())
    world.nodes["alice"].executor.kept.clear()
    world.elapse(10)
    assert bob.reported[-1] == JobEnded(9, 0, 0, 0)


def test_both_attempts_of_a_task_are_stopped_with_its_job() -> None:
    _, bob = at_work(overtaken())
    bob.cancel("job")
    assert bob.reported[-1] == JobEnded(8, 0, 0, 1)


def test_a_worker_that_is_lost_with_a_result_that_is_not_needed_changes_nothing() -> None:
    world, bob = at_work(overtaken())
    slow = {"alice": 3.0, "carol": 0.01}
    world.latency = lambda a, b: slow.get(a.name, slow.get(b.name, 0.01))
    world.elapse(0.5)
    world.kill(world.nodes["alice"])
    world.elapse(20)
    assert bob.reported[-1] == JobEnded(9, 0, 0, 0)


def test_what_is_not_fetched_any_more_has_no_effect() -> None:
    world, bob = at_work(town_of_calls(alice=1), calls(2), for_s=0.5)
    alice = world.nodes["alice"]
    reported = list(bob.reported)
    (active,) = peer_of(bob).scheduler.leases()
    lease_id, worker = active.lease.lease_id, alice.identity.peer_id
    world.deliver(bob, ResultLost(worker, lease_id, "job/9#1", "late"))
    world.deliver(bob, ResultLost(worker, "another", "job/0#1", "late"))
    assert bob.reported == reported
    assert not worker_of(alice).executions.runs[lease_id].outbox


def test_a_world_lets_go_of_what_a_dead_node_fetches() -> None:
    world, bob = at_work(town_of_calls(alice=1), calls())
    until_fetching(world)
    world.kill(bob)
    world.elapse(30)
    assert only(bob.reported, TaskSucceeded) == []
    assert is_idle(world.nodes["alice"])
