"""A lease that gives way to an equal: its scheduler sends nothing new, and gives it back."""

from dataclasses import replace

import pytest

from formation_p2p.assembly import DEFAULT_PARAMETERS
from formation_p2p.jobs.core.job_events import TaskRecalled, TaskRetried, TaskSucceeded
from formation_p2p.leases.core.lessee import LeaseYields
from formation_p2p.leases.core.messages import LeaseEnded, Release, Renewed
from formation_p2p.leases.core.parameters import LeaseParameters
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import Explain
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.trust.core.grants import Rights
from formation_p2p.trust.core.shares import ShareStatus
from formation_p2p.workload.core.outcome import Succeeded
from formation_p2p.workload.core.scope import Place
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from tests.support.stories import NEEDS, at, ends, job, only, passed, peer_of, town_with

# So that a story takes seconds.
SHORT = LeaseParameters(slice_s=3.0, give_way_s=4.0)


def town(took_s: float) -> tuple[World, SimNode, SimNode]:
    """alice has one core, bob all of it."""

    def run(running: Running) -> tuple[float, Succeeded]:
        return took_s, Succeeded(running.work.payload)

    world = town_with(replace(DEFAULT_PARAMETERS, lease=SHORT), 7, run, alice=1)
    bob, dave = world.nodes["bob"], world.add("dave")
    world.elapse(2)
    bob.submit(job(12))
    world.elapse(2)
    return world, bob, dave


@pytest.mark.at_length
def test_the_running_task_ends_and_what_waits_goes_on_later() -> None:
    world, bob, dave = town(2.0)
    dave.submit(job(job_id="dave's"))
    world.elapse(8)
    assert len(only(dave.reported, TaskSucceeded)) == 1
    told = [x for x in only(passed(world, "alice", "bob"), Renewed) if x.yields_ms is not None]
    assert [x.ttl_ms for x in told] == [0], "told once, unasked"
    assert len(only(passed(world, "bob", "alice"), Release)) == 1
    world.elapse(40)
    assert len(ends(bob)) == 12
    assert not only(bob.reported, TaskRetried)


@pytest.mark.at_length
def test_tasks_that_have_not_begun_are_taken_back() -> None:
    world, bob, dave = town(0.02)
    bob.submit(job(400, job_id="many"))
    world.elapse(1)
    dave.submit(job(job_id="dave's"))
    world.elapse(60)
    assert only(bob.reported, TaskRecalled)
    assert len(ends(bob)) == 412
    assert not only(bob.reported, TaskRetried)


def test_a_task_that_runs_on_is_ended_and_is_placed_anew_without_counting() -> None:
    world, bob, dave = town(20.0)
    dave.submit(job(job_id="dave's"))
    world.elapse(35)
    (retried,) = only(bob.reported, TaskRetried)
    assert not retried.counts
    assert [type(x) for x in passed(world, "alice", "bob")].count(LeaseEnded) == 1
    world.elapse(10)
    assert len(only(dave.reported, TaskSucceeded)) == 1


def test_a_lease_stays_and_gets_more_where_the_other_gives_up() -> None:
    world, bob, dave = town(2.0)
    world.run = lambda running: (6.0, Succeeded(running.work.payload))
    world.elapse(2)
    dave.submit(job(job_id="dave's"))
    while not any(x.lease.yields for x in peer_of(bob).scheduler.leases()):
        world.elapse(0.1)
    dave.cancel("dave's")
    world.elapse(60)
    assert len(ends(bob)) > 5


def test_who_waits_is_seen_and_why() -> None:
    world, _, dave = town(2.0)
    dave.submit(job(job_id="dave's"))
    world.elapse(0.5)
    status = peer_of(world.nodes["alice"]).status(world.moment(world.nodes["alice"]))
    (wait,) = (each for each in status.waiting if each.owner == dave.identity.peer_id)
    assert (wait.priority, wait.aged) == (0, 0)
    assert wait.why.startswith("cpu: taken; after ")
    assert wait.waited_s < 1
    held = [each.held_milli for each in status.shares if each.held_milli]
    assert held == [1000] * 5, "of each branch from the federation to bob"
    assert [each.yields for each in status.granted] == [False]


def test_explain_says_after_whose_slice() -> None:
    world, _, dave = town(2.0)
    dave.submit(job(job_id="dave's"))
    world.elapse(0.5)
    dave.explain(NEEDS)
    world.elapse(1)
    (ranked,) = dave.explained[-1].decision.ranked
    assert "'s slice, in " in str(ranked.lacking)


@pytest.mark.at_length
@pytest.mark.parametrize(
    ("needs", "priority", "is_told"),
    [
        (replace(NEEDS, driver=""), 0, True),
        (replace(NEEDS, memory_bytes=NEEDS.memory_bytes + 1, driver=""), 0, True),
        (replace(NEEDS, memory_bytes=1), 0, False),
        (replace(NEEDS, driver=""), 1, False),
    ],
)
def test_explain_says_so_too_where_other_tasks_that_need_no_more_wait(
    needs: Requirements, priority: int, is_told: bool
) -> None:
    world, _, dave = town(20.0)
    dave.submit(job(job_id="dave's"))
    world.elapse(2)
    world.deliver(dave, Explain(0, SchedulingKey(needs, priority), "a task"))
    world.elapse(1)
    (ranked,) = dave.explained[-1].decision.ranked
    assert ("'s slice, in " in str(ranked.lacking)) == is_told
    dave.explain(None)
    world.elapse(1)
    assert dave.explained[-1].decision.ranked[0].profile == ranked.profile


def test_of_a_lease_that_has_ended_it_means_nothing() -> None:
    world, bob, _ = town(2.0)
    (active,) = peer_of(bob).scheduler.leases()
    gone = replace(active.lease, lease_id="gone")
    assert peer_of(bob).scheduler.negotiated([LeaseYields(gone)], at(world.now_s)) == []


def test_what_each_used_and_gave_is_known_to_the_next_incarnation_of_a_worker() -> None:
    world, bob, _ = town(2.0)
    alice = world.nodes["alice"]
    world.elapse(10)
    used_ms = {each.account: each.used_ms for each in standings(world, alice)}
    world.restart(
        alice,
        replace(
            world.machine(cpu=1), shares_used=alice.shares_used, hours_received=alice.hours_received
        ),
    )
    world.elapse(0.2)
    again = {each.account: each.used_ms for each in standings(world, alice)}
    bobs = next(each for each in used_ms if each[-1] == bob.identity.peer_id)
    assert abs(again[bobs] - used_ms[bobs]) < 8000, "all but what came since the last renewal"
    assert again[bobs] > 0


def standings(world: World, node: SimNode) -> tuple[ShareStatus, ...]:
    return peer_of(node).status(world.moment(node)).shares


def test_what_other_organisations_ran_for_a_node_counts_at_its_own_worker() -> None:
    world = World(7)
    world.add("gate")
    ends_unix_s = int(EPOCH_UNIX_S) + 10**6
    for name, org in (("alice", "farm"), ("bob", "acme")):
        rights = Rights(ends_unix_s, place=Place(org=org))
        world.add(name, serve=world.machine(cpu=2), rights=rights)
    world.elapse(3)
    bob = world.nodes["bob"]
    bob.submit(job(12))
    world.elapse(30)
    assert len(ends(bob)) == 12
    received = {org: core_ms for org, core_ms, _ in bob.hours_received}
    assert received.keys() == {("", "farm"), ("", "acme")}
    assert 10_000 < sum(received.values()) <= 12_100
    assert not world.nodes["alice"].hours_received
