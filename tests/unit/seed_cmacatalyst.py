"""CMACatalyst: workers chosen for a service."""

from __future__ import annotations

from formation_p2p.core.units import GIB
from formation_p2p.machine.core.capability import Capability, Capacity
from formation_p2p.placement.core.policies import Spread
from formation_p2p.placement.core.xor import Xor
from tests.support.placement_world import order, peer, placed, profile, task, worker
from tests.unit.seed_cases import Vector, covers


@covers("cmacatalyst/BUG:discover_ignores_load")
def the_one_with_less_to_do(vector: Vector) -> None:
    machine = Capability(10_000, 16 * GIB)
    candidates = [
        worker(profile(name, machine, Capacity(round(10_000 * (1 - load)), 16 * GIB)))
        for name, load in vector.given["heartbeat_current_load"].items()
    ]
    for n in range(9):  # whichever of the two is nearer
        assert order(task(f"job/{n}"), candidates, Spread())[0] == peer(vector.expect["correct"])


@covers("cmacatalyst/BUG:monotonic_last_seen")
def fresh_by_one_clock(vector: Vector) -> None:
    """A profile expires by the clock that it was signed by."""
    assert vector.expect["correct"] == "fresh"
    assert len(placed(task(), [worker(profile("alice", lives_s=1))], Xor()).ranked) == 1
