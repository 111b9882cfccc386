"""In a network of few nodes, everybody is found at once, whoever came first."""

from __future__ import annotations

import pytest

from formation_p2p.machine.core.requirements import Requirements
from simulations.simulator.world import World


@pytest.mark.at_length
def test_a_worker_that_announced_when_there_were_few_is_found_after_more_have_come() -> None:
    world = World(1)
    world.add("gate")
    world.elapse(1)
    alice = world.add("alice", serve=world.machine())
    world.elapse(5)
    for n in range(10):
        world.add(f"newcomer-{n}")
        world.elapse(0.2)
    bob = world.add("bob")
    world.elapse(1)
    for n in range(8):
        bob.explain(Requirements(driver="process", labels=()), f"task {n}")
        bob.explain(None, f"task {n}")
    world.elapse(5)
    found = [[r.profile.peer_id for r in e.decision.ranked] for e in bob.explained]
    assert found == [[alice.identity.peer_id]] * 16
