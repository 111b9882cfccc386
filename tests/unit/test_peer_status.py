"""What a peer tells of itself while it has work done, and does others'."""

from __future__ import annotations

from formation_p2p.machine.core.capability import idle
from formation_p2p.peer.core.status import Status
from formation_p2p.workload.core.outcome import Succeeded
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S
from tests.support.stories import at, at_work, job, peer_of, town

# Of the grants of a world.
UNTIL_UNIX_S = int(EPOCH_UNIX_S) + 10**7


def status(node: SimNode) -> Status:
    return peer_of(node).status(at(node.world.now_s))


def test_both_sides_tell_of_the_same_leases_and_of_the_tasks_on_them() -> None:
    world = town(7, lambda _: (60.0, Succeeded(b"")), alice=2)
    alice, bob = world.nodes["alice"], world.nodes["bob"]
    assert status(bob) == Status((), (), (), None, UNTIL_UNIX_S)
    assert status(alice).free == idle(world.machine(cpu=2).capability)
    bob.submit(job(5, priority=3))
    world.elapse(2)
    seen, worker = status(bob), status(alice)
    (shown,) = seen.jobs
    assert (shown.job_id, shown.priority, shown.tasks) == ("job", 3, 5)
    assert shown.waiting + shown.in_flight == 5
    assert shown.in_flight >= 2
    assert [(lease.worker, lease.suspect) for lease in seen.held] == [
        (alice.identity.peer_id, False)
    ] * 2
    assert {lease.lease_id for lease in worker.granted} == {lease.lease_id for lease in seen.held}
    assert {lease.owner for lease in worker.granted} == {bob.identity.peer_id}
    assert sum(lease.in_flight for lease in worker.granted) == shown.in_flight
    assert all(0 < lease.expires_in_s <= 10 and not lease.ending for lease in worker.granted)
    assert worker.free is not None
    assert worker.free.cpu_milli == 0


def test_a_job_that_is_over_is_told_no_more() -> None:
    world, bob = at_work(town(alice=2), job(3), for_s=5)
    assert status(bob) == Status((), (), (), None, UNTIL_UNIX_S)
    assert status(world.nodes["alice"]).granted == ()
