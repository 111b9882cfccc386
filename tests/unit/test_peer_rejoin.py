"""A gate that dies, for good or for a while: who finds back to whom, and how soon."""

from __future__ import annotations

import pytest

from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.jobs.core.job_events import JobEnded, TaskUnplaceable
from formation_p2p.leases.core.session import Disconnected
from formation_p2p.peer.core.events import Submit
from simulations.simulator.node import SimNode
from simulations.simulator.world import World
from tests.support.stories import job, only, town

# A newcomer's job takes a second of these.
SOON_S = 5.0


def die(world: World, gate: SimNode) -> None:
    """Its peers see their connections break."""
    world.kill(gate)
    for node in world.nodes.values():
        if node is not gate:
            world.deliver(node, Disconnected(gate.identity.peer_id))


def without_gate(**cores: int) -> tuple[World, SimNode]:
    """A town whose gate has died after a minute, and that gate."""
    world = town(7, None, **cores)
    gate = world.nodes["gate"]
    world.elapse(60)
    die(world, gate)
    return world, gate


def newcomer_runs(world: World, name: str, within_s: float = SOON_S) -> bool:
    """Whether one that knows the gate alone has a job done."""
    newcomer = world.add(name)
    newcomer.submit(job())
    world.elapse(within_s)
    return newcomer.reported[-1:] == [JobEnded(1, 0, 0, 0)]


@pytest.mark.parametrize(
    ("gone_s", "remembers", "back_s"),
    [
        (0.2, False, 0.0),
        pytest.param(3 * 3600, True, 0.0, marks=pytest.mark.at_length),
        # One that remembers nobody is dialled again and again.
        pytest.param(3600, False, DhtParameters().last_retry_s, marks=pytest.mark.at_length),
    ],
)
def test_a_gate_that_comes_back_has_the_workers_records_in_some_seconds(
    gone_s: float, remembers: bool, back_s: float
) -> None:
    world, gate = without_gate(alice=1, carol=1)
    world.elapse(gone_s)
    if remembers:
        gate.remembered = (world.nodes["alice"].contact,)
    world.restart(gate)
    if back_s:
        world.elapse(back_s)
    assert newcomer_runs(world, "dave")


def test_with_the_gate_dead_one_that_remembers_a_worker_runs_jobs() -> None:
    world, gate = without_gate(alice=1, carol=1)
    bob = world.nodes["bob"]
    world.kill(bob)
    bob.remembered = (world.nodes["alice"].contact, gate.contact)
    world.restart(bob, Submit(job()))
    world.elapse(SOON_S)
    assert bob.reported == [*bob.reported[:-1], JobEnded(1, 0, 0, 0)]
    stranger = world.add("eve")
    stranger.submit(job())
    world.elapse(60)
    assert len(only(stranger.reported, TaskUnplaceable)) == 1


def test_a_worker_that_remembers_others_joins_without_the_gate_and_tells_it_later() -> None:
    world, gate = without_gate(alice=1)
    carol = world.add("carol", asleep=True)
    carol.remembered = (world.nodes["alice"].contact,)
    world.wake(carol)
    world.deliver(carol, world.machine())
    world.elapse(30)
    world.kill(world.nodes["alice"])
    world.restart(gate)
    world.elapse(DhtParameters().last_retry_s)
    assert newcomer_runs(world, "dave")


@pytest.mark.at_length
def test_workers_that_lost_all_peers_find_each_other_without_the_gate() -> None:
    """As when a switch restarts while the gate is down."""
    world, gate = without_gate(alice=1, carol=1)
    bob = world.nodes["bob"]
    others = [node for node in world.nodes.values() if node is not gate]
    for side, node in enumerate(others):
        node.side = side
    world.elapse(1200)
    for node in others:
        node.side = 0
    world.elapse(2 * DhtParameters().last_retry_s)
    bob.submit(job())
    world.elapse(SOON_S)
    assert bob.reported[-1:] == [JobEnded(1, 0, 0, 0)]
