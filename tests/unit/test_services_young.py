"""Workers in networks that are young, crowded or large: what they wait for, and what they guess."""

from __future__ import annotations

from dataclasses import replace

import pytest

from formation_p2p.core.discovery.parameters import DiscoveryParameters
from formation_p2p.core.peer.events import AddressesChanged
from formation_p2p.core.peer.parameters import PeerParameters
from formation_p2p.core.services.events import (
    PublishSpec,
    ReadServices,
    ServeServices,
    ServicesRead,
    ServiceStep,
)
from formation_p2p.core.services.signed_spec import seal_spec
from formation_p2p.core.services.spec import ONE, Pinned, WorkerType
from formation_p2p.sim.world import EPOCH_UNIX_S, World
from tests.support.services_world import ECHO, Hamlet, lone, wanting


def test_where_all_holders_are_new_an_old_service_is_started_once_they_would_know_of_it() -> None:
    hamlet = Hamlet(3)
    hamlet.world.elapse(5)
    network = hamlet.gate.network()
    issued = int(EPOCH_UNIX_S) - 100
    signed = seal_spec(hamlet.gate.identity, wanting(1), network.grant, issued, issued + 10**5)
    hamlet.world.deliver(hamlet.gate, PublishSpec(signed))
    hamlet.world.elapse(50)
    assert hamlet.steps(ServiceStep.CLAIMED) == []
    hamlet.world.elapse(60)
    assert len(hamlet.having("echo")) == 1


def test_a_worker_with_leases_enough_takes_no_service_on_before_one_ends() -> None:
    hamlet = Hamlet(1)
    hamlet.world.elapse(5)
    [worker] = hamlet.workers
    ledger = worker.peer.worker.lessor.ledger  # type: ignore[attr-defined]
    most, ledger.max_reservations = ledger.max_reservations, 0
    home = Pinned("data", worker.identity.peer_id)
    hamlet.publish(wanting(1))
    hamlet.publish(replace(ECHO, name="pinned", replicas=ONE, pinned=home))
    hamlet.world.elapse(60)
    assert hamlet.steps(ServiceStep.GAP)
    assert hamlet.steps(ServiceStep.CLAIMED) == []
    assert worker.replicas.running == {}
    ledger.max_reservations = most
    hamlet.publish(wanting(1, name="third"))
    hamlet.world.elapse(120)
    assert worker.replicas.running.keys() == {"echo", "pinned", "third"}


def test_the_claims_of_a_worker_that_moves_say_where_it_is_now() -> None:
    hamlet = Hamlet(1)
    hamlet.world.elapse(5)
    hamlet.publish(wanting(1))
    hamlet.world.elapse(60)
    [worker] = hamlet.workers
    moved = ("/ip4/10.9.8.7/tcp/4001",)
    hamlet.world.deliver(worker, AddressesChanged(moved, moved))
    hamlet.world.elapse(1)
    hamlet.world.deliver(hamlet.gate, ReadServices(1))
    hamlet.world.elapse(10)
    told = hamlet.gate.services_read[-1]
    assert isinstance(told, ServicesRead)
    assert [each.claim.addresses for each in told.claims] == [moved]


def test_a_count_for_which_too_much_is_looked_for_is_soon_begun_again() -> None:
    parameters = PeerParameters(discovery=DiscoveryParameters(max_finds=1), renews=False)
    world = World(1, parameters=parameters)
    world.add("gate")
    node = world.add("worker", serve=world.machine())
    world.elapse(5)
    world.deliver(node, ServeServices(frozenset({WorkerType.CPU, WorkerType.GPU})))
    world.elapse(5)
    before = world.messages["services: count"]
    world.elapse(30)
    assert world.messages["services: count"] > before > 0


def test_a_guardian_without_room_lets_go_of_a_holder_that_is_long_gone() -> None:
    hamlet = Hamlet(2, max_services=1)
    hamlet.world.elapse(5)
    for name in ("one", "two"):
        hamlet.publish(wanting(1, name=name))
    hamlet.world.elapse(90)
    [had], [has] = hamlet.having("one"), hamlet.having("two")
    assert had is not has
    hamlet.world.vanish(had)
    hamlet.world.elapse(300)
    before = hamlet.world.messages["services: guard"]
    hamlet.world.elapse(50)
    assert hamlet.world.messages["services: guard"] > before
    hamlet.world.elapse(60)
    before = hamlet.world.messages["services: guard"]
    hamlet.world.elapse(100)
    assert hamlet.world.messages["services: guard"] == before


def seconds_until_two_run(hamlet: Hamlet) -> float:
    began_s = hamlet.world.now_s
    while len(hamlet.having("echo")) < 2:
        hamlet.world.elapse(1)
    return hamlet.world.now_s - began_s


@pytest.mark.parametrize("seed", [2, 3, 5, 11])
def test_a_worker_that_finds_its_slot_taken_takes_the_next_one_at_once(seed: int) -> None:
    """Both begin with the same slot, in a network of two."""
    hamlet = Hamlet(2, seed=seed)
    hamlet.world.elapse(5)
    hamlet.publish(wanting(2))
    assert seconds_until_two_run(hamlet) < 20
    assert len(hamlet.steps(ServiceStep.STARTED)) == 2


@pytest.mark.parametrize("seed", [2, 4, 7, 9])
def test_a_catalog_that_is_published_before_the_network_has_met_is_soon_read(seed: int) -> None:
    hamlet = Hamlet(2, seed=seed)
    hamlet.publish(wanting(2))
    assert seconds_until_two_run(hamlet) < 30


def test_a_newcomer_asks_the_holder_of_an_expired_claim_twice_before_it_takes_its_place() -> None:
    hamlet = lone()
    hamlet.world.elapse(30)
    [had] = hamlet.having("echo")
    hamlet.world.vanish(had)
    hamlet.world.elapse(90)
    late = hamlet.join("late")
    hamlet.workers.append(late)
    hamlet.world.elapse(100)
    assert hamlet.having("echo") == [late]
