"""A peer finds out itself where two of its parts disagree: each case breaks one invariant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from formation_p2p.assembly import DEFAULT_PARAMETERS
from formation_p2p.core.errors import InvariantBroken
from formation_p2p.leases.core.budget import Budget
from formation_p2p.leases.core.held_lease import HeldState
from formation_p2p.leases.core.lease import LeaseState
from formation_p2p.machine.core.capability import Capability
from formation_p2p.machine.core.fits import Ledger
from formation_p2p.peer.core.events import Tick
from formation_p2p.workload.core.outcome import Ended, Succeeded
from formation_p2p.workload.core.scope import Scope, ScopeShares
from simulations.simulator.world import World
from tests.support.stories import NEEDS, identity, job, peer_of, town, worker_of


def busy_town() -> World:
    """Alice runs a task of bob's."""
    world = town(alice=2)
    world.nodes["bob"].submit(job())
    world.elapse(0.5)
    peer_of(world.nodes["alice"]).validate()
    peer_of(world.nodes["bob"]).validate()
    return world


def a_lease_has_ended(world: World) -> None:
    next(iter(worker_of(world.nodes["alice"]).lessor)).state = LeaseState.ENDED


def a_lease_has_no_fence(world: World) -> None:
    next(iter(worker_of(world.nodes["alice"]).lessor)).fence = 0


def a_lease_has_another_id(world: World) -> None:
    next(iter(worker_of(world.nodes["alice"]).lessor)).lease_id = "another"


def capacity_is_free_that_is_leased(world: World) -> None:
    lessor = worker_of(world.nodes["alice"]).lessor
    lessor.ledger.release(next(iter(lessor)).lease_id)


def attempts_run_under_no_lease(world: World) -> None:
    next(iter(worker_of(world.nodes["alice"]).lessor)).state = LeaseState.ENDING


def an_attempt_runs_and_has_ended(world: World) -> None:
    [run] = worker_of(world.nodes["alice"]).executions.runs.values()
    run.outbox["job/0#1"] = Ended("job/0#1", Succeeded(b""), 0)


def the_outbox_has_another_size(world: World) -> None:
    [run] = worker_of(world.nodes["alice"]).executions.runs.values()
    run.outbox_bytes += 1


def what_is_not_in_the_outbox_is_sent(world: World) -> None:
    [run] = worker_of(world.nodes["alice"]).executions.runs.values()
    run.unsent.add("job/0#7")


def a_lease_is_held_that_has_ended(world: World) -> None:
    [lease] = peer_of(world.nodes["bob"]).lessee.held.values()
    lease.state = HeldState.ENDED


def a_lease_is_held_under_another_name(world: World) -> None:
    held = peer_of(world.nodes["bob"]).lessee.held
    [lease] = held.values()
    held[lease.lessor.peer_id, "another"] = lease


def a_lease_is_used_and_not_held(world: World) -> None:
    peer_of(world.nodes["bob"]).lessee.held.clear()


@pytest.mark.parametrize(
    ("breaks", "who", "problem"),
    [
        (a_lease_has_ended, "alice", "has ended, and is kept"),
        (a_lease_has_no_fence, "alice", "with this fence"),
        (a_lease_has_another_id, "alice", "another is kept under another id"),
        (capacity_is_free_that_is_leased, "alice", "the ledger reserves for other leases"),
        (attempts_run_under_no_lease, "alice", "attempts run under"),
        (an_attempt_runs_and_has_ended, "alice", "run, and have ended"),
        (the_outbox_has_another_size, "alice", "has another size"),
        (what_is_not_in_the_outbox_is_sent, "alice", "sends what is not in its outbox"),
        (a_lease_is_held_that_has_ended, "bob", "has ended, and is held"),
        (a_lease_is_held_under_another_name, "bob", "is kept under another name"),
        (a_lease_is_used_and_not_held, "bob", "are held, or used, but not both"),
    ],
)
def test_what_disagrees_is_named(breaks: Callable[[World], None], who: str, problem: str) -> None:
    world = busy_town()
    breaks(world)
    with pytest.raises(InvariantBroken, match=problem):
        peer_of(world.nodes[who]).validate()


def test_a_peer_of_a_world_validates_itself_after_every_event() -> None:
    world = busy_town()
    the_outbox_has_another_size(world)
    with pytest.raises(InvariantBroken, match="has another size"):
        world.deliver(world.nodes["alice"], Tick())
    assert not DEFAULT_PARAMETERS.validate
    assert replace(DEFAULT_PARAMETERS, validate=True).validate


def test_a_ledger_counts_all_that_there_is() -> None:
    ledger = Ledger(Capability(cpu_milli=2000, memory_bytes=2**30))
    ledger.reserve("a", NEEDS)
    ledger.validate(["a"])
    with pytest.raises(InvariantBroken, match="other leases"):
        ledger.validate(["b"])


def test_a_budget_counts_the_leases_that_there_are() -> None:
    budget = Budget(ScopeShares(), 2000, lambda grant, peer_id: Scope.COMMONS)
    budget.opened("a", b"", identity("bob").peer_id, 1000)
    budget.validate(["a"])
    with pytest.raises(InvariantBroken, match="other leases"):
        budget.validate([])
