"""A job that is kept on the disk is not given up because no worker is in sight."""

import pytest

from formation_p2p.core.refusals import Infeasible, Silent
from formation_p2p.jobs.core.job_events import (
    Awaited,
    JobEnded,
    JobWaits,
    TaskGaveUp,
    TaskSucceeded,
    TaskUnplaceable,
)
from formation_p2p.jobs.core.parameters import DISPATCH_DEFAULTS
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import Submit
from formation_p2p.workload.core.outcome import FailureKind, Succeeded
from simulations.simulator.disk import Disk
from simulations.simulator.node import SimNode
from simulations.simulator.world import World
from tests.support.stories import job, only, town, workers_of

BIG = Requirements(driver="process", cpu_milli=64_000)
# Many times longer than any other job waits.
OUTAGE_S = 600.0


def kept(world: World) -> SimNode:
    """bob, who has a disk from here on."""
    bob = world.nodes["bob"]
    bob.disk = Disk(world, lambda: 0.001)
    return bob


def submit(bob: SimNode, *args: int, **options: object) -> None:
    given = job(*args, **options)  # type: ignore[arg-type]
    assert bob.disk is not None
    bob.disk.submit(given)
    bob.submit(given)


def waits(bob: SimNode) -> list[Awaited]:
    return [each.awaited for each in only(bob.reported, JobWaits)]


@pytest.mark.at_length
def test_it_outlives_an_outage_of_the_network_of_any_length() -> None:
    world = town(alice=1)
    bob = kept(world)
    bob.side = 1
    submit(bob, 3)
    world.elapse(OUTAGE_S)
    assert bob.reported == [JobWaits(Awaited.PEERS)]  # told once
    bob.side = 0
    world.elapse(DISPATCH_DEFAULTS.look_again_s + 4)
    assert len(only(bob.reported, TaskSucceeded)) == 3
    assert bob.reported[-1] == JobEnded(3, 0, 0, 0)


def test_it_waits_for_workers_where_only_other_peers_answer() -> None:
    world = town()
    bob = kept(world)
    submit(bob)
    world.elapse(60)
    assert bob.reported == [JobWaits(Awaited.WORKERS)]
    world.add("alice", serve=world.machine())
    world.elapse(12)
    assert workers_of(bob) == ["alice"]
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)


def one_that_could_is_silent() -> tuple[SimNode, SimNode]:
    """bob and carol, when her profile has expired: alice, who answers, cannot run his job."""
    world = town(alice=1, carol=64)
    bob, carol = kept(world), world.nodes["carol"]
    world.kill(carol)
    submit(bob, needs=BIG)
    world.elapse(400)
    assert waits(bob) == [Awaited.WORKERS]
    assert not only(bob.reported, TaskUnplaceable)
    return bob, carol


@pytest.mark.at_length
def test_it_waits_for_a_worker_that_is_away_while_others_say_no() -> None:
    bob, carol = one_that_could_is_silent()
    world = bob.world
    world.restart(carol, world.machine(cpu=64))
    world.elapse(30)
    assert workers_of(bob) == ["carol"]
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)


@pytest.mark.at_length
def test_it_does_not_wait_for_ever_for_a_worker_that_has_left() -> None:
    bob, _ = one_that_could_is_silent()
    bob.world.elapse(600)
    (unplaceable,) = only(bob.reported, TaskUnplaceable)
    kinds = {type(why) for _, why in unplaceable.reasons}
    assert kinds == {Infeasible, Silent}


@pytest.mark.at_length
def test_it_says_so_when_it_waits_for_something_else_and_when_it_waits_once_more() -> None:
    world = town(3, lambda x: (60, Succeeded(b"")))
    bob = kept(world)
    bob.side = 1
    submit(bob, 2)
    world.elapse(30)
    assert waits(bob) == [Awaited.PEERS]
    bob.side = 0
    world.elapse(60)
    assert waits(bob) == [Awaited.PEERS, Awaited.WORKERS]
    alice = world.add("alice", serve=world.machine())
    world.elapse(30)
    assert set(workers_of(bob)) == {"alice"}
    world.kill(alice)
    world.elapse(600)
    assert waits(bob) == [Awaited.PEERS, Awaited.WORKERS, Awaited.WORKERS]


def test_it_waits_up_to_its_deadline() -> None:
    world = town(alice=1)
    bob = kept(world)
    bob.side = 1
    submit(bob, deadline_s=100.0)
    world.elapse(99)
    assert bob.reported == [JobWaits(Awaited.PEERS)]
    world.elapse(2)
    (gave_up,) = only(bob.reported, TaskGaveUp)
    assert (gave_up.kind, gave_up.attempts) == (FailureKind.DEADLINE, ())


def test_where_each_worker_says_no_it_is_given_up_as_any_other() -> None:
    world = town(alice=1)
    bob = kept(world)
    submit(bob, needs=BIG)
    world.elapse(2)
    assert [type(each) for each in bob.reported] == [TaskUnplaceable, JobEnded]


def test_one_that_is_not_kept_ends_beside_one_that_is() -> None:
    world = town()
    bob = kept(world)
    submit(bob, 2)
    world.deliver(bob, Submit(job(2, job_id="passing")))
    world.elapse(10)
    assert {each.task_id for each in only(bob.reported, TaskUnplaceable)} == {
        "passing/0",
        "passing/1",
    }
    world.add("alice", serve=world.machine())
    world.elapse(12)
    assert {each.task_id for each in only(bob.reported, TaskSucceeded)} == {"job/0", "job/1"}


def test_looks_become_rarer_while_nobody_is_in_sight() -> None:
    world = town()
    bob = kept(world)
    submit(bob)
    world.elapse(10)
    searched = [bob.messages["discovery ended"] + bob.messages["time to look again"]]
    for _ in range(2):
        world.elapse(50)
        searched.append(bob.messages["discovery ended"] + bob.messages["time to look again"])
    at_first, later = searched[0], searched[2] - searched[1]
    assert 0 < later < 2 * at_first
