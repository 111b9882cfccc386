"""Work that finds a free worker has nobody give way, and waits nowhere else."""

import pytest

from formation_p2p.jobs.core.job_events import TaskPlaced, TaskRetried, TaskSucceeded
from formation_p2p.leases.core.messages import PlacementRequest, Release
from formation_p2p.leases.core.session import Disconnected
from formation_p2p.workload.core.outcome import Succeeded
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import World
from tests.support.stories import ends, job, only, passed, peer_of, town

pytestmark = pytest.mark.at_length

LONG_S = 40.0


def busy(**cores: int) -> tuple[World, SimNode, SimNode]:
    """bob's task runs on alice, who has one core, and dave has come; all know who has room."""

    def run(running: Running) -> tuple[float, Succeeded]:
        took_s = LONG_S if running.work.attempt_id.startswith("job/") else 0.05
        return took_s, Succeeded(running.work.payload)

    world = town(7, run, alice=1)
    bob, dave = world.nodes["bob"], world.add("dave")
    world.elapse(2)
    bob.submit(job())
    world.elapse(2)
    for name, count in cores.items():
        world.add(name, serve=world.machine(cpu=count))
    world.elapse(10)
    return world, bob, dave


def asked(world: World, who: str) -> int:
    return len(only(passed(world, "dave", who), PlacementRequest))


def waiting(world: World, name: str = "alice") -> list[str]:
    """For whom a worker says that work waits."""
    node = world.nodes[name]
    return [str(each.owner) for each in peer_of(node).status(world.moment(node)).waiting]


@pytest.mark.parametrize("policy", ["xor", "spread"])
def test_a_full_worker_is_not_asked_while_another_has_room(policy: str) -> None:
    world, bob, dave = busy(carol=2)
    for number in range(20):  # whose keys are near the one or the other
        dave.submit(job(job_id=f"urgent {number}", priority=1, policy=policy))
        world.elapse(1)
    assert len(only(dave.reported, TaskSucceeded)) == 20
    assert (asked(world, "alice"), asked(world, "carol")) == (0, 20)
    world.elapse(LONG_S)
    assert not only(bob.reported, TaskRetried)
    assert len(only(bob.reported, TaskPlaced)) == 1


def test_where_fewer_have_room_than_tasks_wait_nobody_gives_way_to_those_that_are_served() -> None:
    world, bob, dave = busy(carol=1)
    dave.submit(job(2, job_id="urgent", priority=1))
    world.elapse(2)
    assert len(only(dave.reported, TaskSucceeded)) == 2
    assert asked(world, "alice") == 1
    assert len(only(passed(world, "dave", "alice"), Release)) == 1
    assert waiting(world) == []
    world.elapse(LONG_S)
    assert not only(bob.reported, TaskRetried)
    assert len(ends(bob)) == 1


def test_urgent_work_has_others_give_way_where_no_worker_has_room() -> None:
    world, bob, dave = busy()
    dave.submit(job(job_id="urgent", priority=1))
    world.elapse(10)
    assert len(only(dave.reported, TaskSucceeded)) == 1
    assert len(only(bob.reported, TaskRetried)) == 1


@pytest.mark.parametrize("end", ["cancel", "leave", "vanish"])
def test_an_owner_whose_work_has_ended_waits_nowhere(end: str) -> None:
    world, _, dave = busy()
    dave.submit(job(job_id="waits"))
    world.elapse(20)
    assert waiting(world) == [str(dave.identity.peer_id)]
    if end == "cancel":
        dave.cancel("waits")
    elif end == "leave":
        dave.leave()
    else:
        world.vanish(dave)
        world.deliver(world.nodes["alice"], Disconnected(dave.identity.peer_id))
    world.elapse(1)
    assert waiting(world) == []


def test_a_new_job_does_not_inherit_how_long_another_waited() -> None:
    world, _, dave = busy()
    dave.submit(job(job_id="waits"))
    world.elapse(15)
    dave.cancel("waits")
    world.elapse(5)
    dave.submit(job(job_id="waits anew"))
    world.elapse(1)
    alice = world.nodes["alice"]
    (wait,) = peer_of(alice).status(world.moment(alice)).waiting
    assert wait.waited_s < 1
