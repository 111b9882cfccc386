"""Leases between whole peers: prices, precedence, silence, and machines that sleep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from formation_p2p.core.refusals import GivingWay, Preempted, TooDear
from formation_p2p.dht.core.messages import Ping
from formation_p2p.dht.core.rpc import RequestReceived
from formation_p2p.jobs.core.job_events import TaskRetried, TaskSucceeded, TaskUnplaceable
from formation_p2p.leases.core.messages import (
    Leased,
    LeaseEnded,
    Offer,
    PlacementRequest,
    RequestRefused,
)
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import World
from tests.support.stories import (
    at,
    at_work,
    ends,
    free,
    is_idle,
    job,
    name_of,
    only,
    passed,
    peer_of,
    town,
    worker_of,
    workers_of,
)

pytestmark = pytest.mark.at_length


def lasting(seconds: float, **cores: int) -> World:
    return town(run=lambda running: (seconds, Succeeded(running.work.payload)), **cores)


def job_of(running: Running) -> str:
    return running.work.attempt_id.partition("/")[0]


def slow_and_quick(running: Running) -> tuple[float, Outcome]:
    """Tasks of the job `slow` take a minute, others a second."""
    return (60.0 if job_of(running) == "slow" else 1.0), Succeeded(running.work.payload)


# -- prices ---------------------------------------------------------------------------------


def shop(**prices: int) -> World:
    world = World(7)
    world.add("gate")
    for name, price in prices.items():
        world.add(name, serve=replace(world.machine(cpu=1), price_micro=price))
    world.add("bob")
    world.elapse(3)
    return world


def test_a_job_goes_to_nobody_who_is_dearer_than_it_may_be() -> None:
    world, bob = at_work(shop(alice=50, carol=100, dave=101), job(12, max_price_micro=100))
    world.elapse(30)
    assert len(only(bob.reported, TaskSucceeded)) == 12
    assert set(workers_of(bob)) == {"alice", "carol"}
    # Whose own profile says that it is too dear is not even asked.
    assert passed(world, "bob", "dave") == []


def test_where_all_are_too_dear_the_person_is_told_and_the_workers_are_not() -> None:
    world, bob = at_work(shop(alice=500), job(max_price_micro=424242 // 1000), for_s=30)
    (unplaceable,) = only(bob.reported, TaskUnplaceable)
    ((worker, why),) = unplaceable.reasons
    assert (name_of(world, worker), why) == ("alice", TooDear(500, 424))
    assert str(why) == "too dear: asks 0.0005 for a core-hour, of at most 0.000424"


def test_a_worker_that_asks_more_than_its_profile_says_is_refused() -> None:
    world = shop(alice=50)
    bob, alice = world.nodes["bob"], world.nodes["alice"]
    worker_of(alice).lessor.price_micro = 90
    bob.submit(job(max_price_micro=60))
    world.elapse(5)
    assert only(bob.reported, TaskSucceeded) == []
    offers = [x for x in passed(world, "alice", "bob") if isinstance(x, Offer)]
    assert offers
    assert not any(isinstance(x, Leased) for x in passed(world, "alice", "bob"))
    assert free(alice).cpu_milli == 1000


def test_jobs_of_different_limits_share_no_lease() -> None:
    """Else the cheaper one would run on what the dearer one took."""
    world, bob = at_work(shop(alice=50))
    bob.submit(job(3, job_id="rich", max_price_micro=60))
    bob.submit(job(1, job_id="poor", max_price_micro=40))
    world.elapse(30)
    ended = ends(bob)
    assert [type(ended[f"rich/{n}"]) for n in range(3)] == [TaskSucceeded] * 3
    assert isinstance(ended["poor/0"], TaskUnplaceable)


# -- precedence -----------------------------------------------------------------------------


def busy_with_bobs(priority: int = 0) -> tuple[World, SimNode, SimNode]:
    """alice's one core has begun with a minute's work of bob's, who is to meet carol."""
    world = town(run=slow_and_quick, alice=1)
    bob, carol = world.nodes["bob"], world.add("carol")
    world.elapse(2)
    bob.submit(job(job_id="slow", priority=priority))
    world.elapse(2)
    return world, bob, carol


def test_more_urgent_work_takes_the_place_of_less_urgent_at_the_next_renewal() -> None:
    world, bob, carol = busy_with_bobs()
    alice = world.nodes["alice"]
    carol.submit(job(job_id="quick", priority=5))
    world.elapse(0.5)
    (refused,) = [x for x in passed(world, "alice", "carol") if isinstance(x, RequestRefused)]
    assert isinstance(refused.refusal, GivingWay)
    assert alice.running  # bob's task goes on for now
    world.elapse(LEASE_DEFAULTS.lease_s)
    assert isinstance(ends(carol)["quick/0"], TaskSucceeded)
    reported = [x.refusal for x in passed(world, "alice", "bob") if isinstance(x, LeaseEnded)]
    assert reported == [Preempted(5)]
    asked = [x for x in passed(world, "carol", "alice") if isinstance(x, PlacementRequest)]
    assert len(asked) <= 4  # she came back when she was told to, and not all the time
    # bob's task is placed again, and having had to make room is not held against it.
    world.elapse(90)
    assert isinstance(ends(bob)["slow/0"], TaskSucceeded)
    (retried,) = only(bob.reported, TaskRetried)
    assert retried.attempt.why == "it gave way to work of priority 5"
    world.elapse(LEASE_DEFAULTS.lease_s + 1)
    assert is_idle(alice)


# -- silence and failure ----------------------------------------------------------------------


def test_any_message_from_a_worker_is_a_sign_of_life() -> None:
    world = lasting(1, alice=1)
    bob, alice = world.nodes["bob"], world.nodes["alice"]
    world.suspend(alice)
    bob.submit(job())
    world.elapse(12)
    (group,) = peer_of(bob).scheduler.groups.values()
    assert group.candidates.next_askable_s() == float("inf")
    asked = RequestReceived(10**6, alice.contact, Ping())
    peer_of(bob).handle(asked, at(world.now_s))
    assert group.wake_s == group.candidates.next_askable_s() < world.now_s + 10


def test_a_worker_that_fails_all_it_takes_does_not_draw_every_task() -> None:
    """It is soon done with each, and would be free for the next all the time."""

    def run(running: Running) -> tuple[float, Outcome]:
        bad = running.key in world.nodes["alice"].running
        if bad:
            return 0.001, Failed(FailureKind.DRIVER, "no space left on device")
        return 1.0, Succeeded(running.work.payload)

    world, bob = at_work(town(run=run, alice=1, carol=1), job(20))
    world.elapse(60)
    assert len(only(bob.reported, TaskSucceeded)) == 20
    placed = workers_of(bob)
    assert placed.count("alice") <= 8
    assert placed.count("carol") == 20


# -- machines that sleep ----------------------------------------------------------------------


def test_a_worker_that_slept_through_its_lease_ends_what_ran_before_it_hears_anything() -> None:
    world, bob = at_work(lasting(30, alice=1, carol=1), job(), for_s=1)
    (first,) = workers_of(bob)
    sleeper = world.nodes[first]
    world.suspend(sleeper)
    world.elapse(LEASE_DEFAULTS.lease_s + 20)  # elsewhere the task is under way again
    assert workers_of(bob) != [first]
    world.resume(sleeper)
    world.elapse(0.1)
    assert not sleeper.running
    world.elapse(60)
    assert isinstance(ends(bob)["job/0"], TaskSucceeded)  # once: `ends` sees to that
    assert is_idle(sleeper)
