"""Peers that do not answer while a worker fills a slot: it asks others, or gives up."""

from dataclasses import replace
from functools import partial
from heapq import nsmallest
from typing import Any

import pytest

from formation_p2p.assembly import Peer, PeerEvent
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import Key, distance, key_of
from formation_p2p.features.services.core.claim import ClaimState, SignedClaim
from formation_p2p.features.services.core.events import (
    DrainReplica,
    Recalled,
    ServeServices,
    ServiceStep,
    StopServing,
)
from formation_p2p.features.services.core.means import Means
from formation_p2p.features.services.core.parameters import ServiceParameters
from formation_p2p.features.services.core.services import Services
from formation_p2p.features.services.core.sight import Sight
from formation_p2p.features.services.core.spec import Pinned, Replicas, WorkerType
from formation_p2p.leases.core.session import Disconnected
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, LATENCY_S
from tests.support.services_played import Played
from tests.support.services_world import (
    CPU,
    ECHO,
    NOW,
    Hamlet,
    asked,
    claim_of,
    lone,
    person,
    wanting,
)


def why_yielded(hamlet: Hamlet) -> set[str]:
    return {
        event.why
        for node in hamlet.workers
        for _, event in node.service_events
        if event.step is ServiceStep.YIELDED
    }


def keeping(hamlet: Hamlet, service: str) -> list[SimNode]:
    """The nodes that are nearest to a service's name: claims of it are written to them."""
    means = hamlet.workers[0].peer.services._means  # type: ignore[attr-defined]
    key = key_of(means.name(service))
    by_far = partial(_far, key)
    return nsmallest(means.parameters.holders, hamlet.world.nodes.values(), by_far)


def _far(key: Key, node: SimNode) -> int:
    return distance(node.identity.key, key)


def without_holders(cause: str) -> tuple[Hamlet, SimNode]:
    """A worker has just asked the holders of its claim for this, and most of them die."""
    hamlet = Hamlet(11)
    hamlet.world.elapse(30)
    hamlet.publish(wanting(1))
    worker, holders = asked(hamlet, cause)
    for peer_id in sorted(holders)[:5]:
        hamlet.world.vanish(hamlet.world.peers[peer_id])
    return hamlet, worker


@pytest.mark.at_length
def test_a_claim_is_put_at_others_where_most_of_its_holders_have_died() -> None:
    hamlet, worker = without_holders("claim")
    hamlet.world.elapse(6)
    assert hamlet.steps(ServiceStep.STARTED) == [worker.name]
    assert hamlet.steps(ServiceStep.YIELDED) == []


def test_a_claim_that_no_peer_takes_is_given_up() -> None:
    hamlet = lone()
    worker, _ = asked(hamlet, "claim")
    hamlet.world.loss = 1.0
    hamlet.world.elapse(15)
    assert why_yielded(hamlet) == {"too few peers took the claim"}
    assert worker.replicas.running == {}


@pytest.mark.at_length
def test_a_claim_is_checked_at_others_where_most_of_its_holders_have_died() -> None:
    hamlet, worker = without_holders("check")
    hamlet.world.elapse(2.5)
    assert hamlet.steps(ServiceStep.STARTED) == []
    hamlet.world.elapse(3)
    assert hamlet.steps(ServiceStep.STARTED) == [worker.name]


def test_a_claim_that_cannot_be_checked_is_given_up() -> None:
    hamlet = lone()
    asked(hamlet, "check")
    hamlet.world.loss = 1.0
    hamlet.world.elapse(15)
    assert why_yielded(hamlet) == {"too few peers answer"}
    assert hamlet.steps(ServiceStep.STARTED) == []


def test_a_read_that_took_long_is_made_anew_before_a_claim() -> None:
    hamlet = lone()
    hamlet.world.elapse(0.5)
    hamlet.world.latency = lambda a, b: 0.3
    asked(hamlet, "confirm")
    before = hamlet.world.messages["services: confirm"]
    hamlet.world.elapse(20)
    assert hamlet.world.messages["services: confirm"] > 2 * before
    assert len(hamlet.having("echo")) == 1  # where every read takes long, it is claimed at last


@pytest.mark.at_length
def test_a_guardian_that_has_died_is_not_chosen_again() -> None:
    hamlet = Hamlet(8).given(wanting(1), for_s=60)
    [has] = hamlet.having("echo")
    replica = has.peer.services.holding.get("echo")  # type: ignore[attr-defined]
    before = replica.guardians
    assert len(before) == 3
    hamlet.world.vanish(hamlet.world.peers[before[0].peer_id])
    hamlet.world.elapse(50)
    assert len(replica.guardians) == 3
    assert before[0] not in replica.guardians


def test_who_had_a_slot_before_is_in_doubt_with_who_has_it() -> None:
    sight = Sight()
    first, second, other = person("first"), person("second"), person("other")
    now = claim_of(second, epoch=2, sequence=7)
    for claim in (claim_of(first, sequence=5), now, claim_of(other, slot=1)):
        sight.take(SignedClaim(claim, b""))
    assert sight.doubts(now) == {second.peer_id: 7, first.peer_id: 5}
    assert sight.live(float(now.issued_unix_s), sight.doubts(now)).keys() == {1}
    assert now.state is ClaimState.READY


@pytest.mark.at_length
def test_a_slot_whose_guardians_have_died_too_is_filled_before_its_claim_ends() -> None:
    hamlet = Hamlet(20).given(wanting(1), for_s=92)
    [has] = hamlet.having("echo")
    replica = has.peer.services.holding.get("echo")  # type: ignore[attr-defined]
    claim = replica.claim.claim
    for peer_id in (claim.peer_id, *claim.guardians):
        hamlet.world.vanish(hamlet.world.peers[peer_id])
    while not hamlet.having("echo"):
        hamlet.world.elapse(1)
    assert EPOCH_UNIX_S + hamlet.world.now_s < claim.expires_unix_s


def test_whose_claim_is_overdue_is_asked_and_keeps_its_slot() -> None:
    hamlet = Hamlet(4, services=ServiceParameters(republish_s=55.0)).given(wanting(1), for_s=400)
    assert hamlet.world.messages["services: probe"] > 0
    assert len(hamlet.steps(ServiceStep.STARTED)) == 1


def test_a_claim_is_overdue_while_its_replica_is_to_be_there() -> None:
    sight = Sight()
    late, fresh, stops = person("late"), person("fresh"), person("stops")
    claims = (
        claim_of(late, sequence=5),
        claim_of(fresh, slot=1, issued_unix_s=int(NOW.unix_s) + 30),
        claim_of(stops, slot=2, state=ClaimState.DRAINING),
    )
    for claim in claims:
        sight.take(SignedClaim(claim, b""))
    assert sight.overdue(NOW.unix_s + 10) == {late.peer_id: 5}


def test_workers_that_wait_for_their_turn_leave_a_slot_that_is_taken() -> None:
    hamlet = Hamlet(3, services=ServiceParameters(jitter_s=150.0)).given(wanting(1), for_s=200)
    [worker] = hamlet.having("echo")
    assert hamlet.steps(ServiceStep.GAP) == [worker.name]


def test_a_gap_is_filled_where_the_one_that_knows_of_its_claims_is_slow() -> None:
    hamlet = Hamlet(3)
    others = [hamlet.world.add(f"other{number}") for number in range(32)]
    hamlet.world.elapse(5)
    echo = next(
        name
        for name in map("echo-{}".format, range(100))
        if all(node in others for node in keeping(hamlet, name))
    )
    hamlet.publish(wanting(1, name=echo))
    hamlet.world.elapse(120)
    [died] = hamlet.having(echo)
    *dying, slow = keeping(hamlet, echo)
    hamlet.world.latency = lambda a, b: 0.1 if slow in (a, b) else 0.01
    for node in (died, *dying):
        hamlet.world.kill(node)
    hamlet.world.elapse(60)
    assert len(hamlet.having(echo)) == 1
    assert len(hamlet.steps(ServiceStep.STARTED)) == 2


def services_of(node: SimNode) -> Services:
    assert isinstance(node.peer, Peer)
    return node.peer.services


def cut_power(hamlet: Hamlet) -> None:
    """All nodes die at one moment, and begin again a minute later with what their disks have."""
    nodes = list(hamlet.world.nodes.values())
    disks = {
        node.name: Recalled(
            tuple(each.raw for each in services_of(node).catalog.specs.values()),
            services_of(node).had,
        )
        for node in nodes
    }
    for node in nodes:
        hamlet.world.vanish(node)
    hamlet.world.elapse(60)
    for node in nodes:
        works = working(hamlet) if node in hamlet.workers else ()
        hamlet.world.restart(node, disks[node.name], *works)


def working(hamlet: Hamlet) -> tuple[PeerEvent, ...]:
    return hamlet.world.machine(cpu=8), ServeServices(CPU, 4)


def epochs(hamlet: Hamlet) -> dict[str, tuple[int, int]]:
    """Of each worker that has a replica: its slot and epoch."""
    return {
        node.name: (replica.slot, replica.epoch)
        for node in hamlet.having("echo")
        for replica in services_of(node).holding
    }


def test_after_a_power_cut_each_worker_has_its_slot_again_within_seconds() -> None:
    hamlet = Hamlet(6).given(wanting(3), for_s=100)
    before = epochs(hamlet)
    cut_power(hamlet)
    hamlet.world.elapse(15)  # peers that are new know of no holder for the life of a claim
    after = epochs(hamlet)
    assert {name: slot for name, (slot, _) in after.items()} == {
        x: at[0] for x, at in before.items()
    }
    assert all(epoch > before[name][1] for name, (_, epoch) in after.items())
    hamlet.world.elapse(100)
    assert len(hamlet.having("echo")) == 3


def test_a_pinned_service_has_a_higher_epoch_after_a_power_cut() -> None:
    hamlet = Hamlet(2)
    pinned = Pinned("data", hamlet.workers[0].identity.peer_id)
    hamlet.given(replace(ECHO, replicas=Replicas(1, 1, 1), pinned=pinned), for_s=20)
    before = epochs(hamlet)["worker0"]
    cut_power(hamlet)
    hamlet.world.elapse(5)
    assert epochs(hamlet)["worker0"] > before


@pytest.mark.at_length
def test_a_slot_that_another_has_taken_is_not_taken_back_by_who_had_it() -> None:
    hamlet = Hamlet(3).given(wanting(1), for_s=60)
    [had] = hamlet.having("echo")
    kept = Recalled((), services_of(had).had)
    hamlet.world.vanish(had)
    hamlet.world.elapse(60)
    [has] = hamlet.having("echo")
    hamlet.world.restart(had, kept, *working(hamlet))
    hamlet.world.elapse(120)
    assert hamlet.having("echo") == [has]


def test_a_worker_that_leaves_has_its_slot_again_and_one_that_is_drained_has_not() -> None:
    hamlet = Hamlet(1).given(wanting(1), for_s=30)
    [worker] = hamlet.workers
    assert [each.slot for each in services_of(worker).had] == [0]
    hamlet.world.deliver(worker, StopServing())
    hamlet.world.elapse(20)
    assert [each.slot for each in services_of(worker).had] == [0]
    hamlet.world.deliver(worker, ServeServices(CPU, 4))
    hamlet.world.elapse(30)
    hamlet.world.deliver(worker, DrainReplica("echo"))
    hamlet.world.elapse(60)
    assert services_of(worker).had == ()


def test_of_workers_that_claim_a_slot_at_once_one_starts_and_the_others_yield() -> None:
    """They are far from each other: each has claimed before it hears of the others."""
    hamlet = Hamlet(6, seed=0)
    hamlet.world.elapse(5)
    hamlet.world.latency = lambda a, b: 0.4
    hamlet.publish(wanting(1))
    hamlet.world.elapse(60)
    assert len(hamlet.having("echo")) == 1
    assert len(hamlet.steps(ServiceStep.STARTED)) == 1
    assert "another has the slot" in why_yielded(hamlet)


TYPES = {
    "first": {WorkerType.GPU, WorkerType.EDGE},
    "second": {WorkerType.CPU, WorkerType.GPU, WorkerType.EDGE},
    "third": {WorkerType.STORAGE, WorkerType.CPU},
}


def lab(replicas: int) -> tuple[Hamlet, list[str]]:
    """Three workers of different types with eleven services, three of them pinned to the third. All
    have just been started."""
    hamlet = Hamlet(0, max_services=14)
    for name, types in TYPES.items():
        node = hamlet.world.add(name, serve=hamlet.world.machine(cpu=8))
        hamlet.workers.append(node)
        hamlet.world.deliver(node, ServeServices(frozenset(types), 14))
    hamlet.world.elapse(5)
    tiers = [1, 1, 2, 2, 2, 4, 4, 4, 3, 3, 3]
    names = [f"service-{number}" for number in range(len(tiers))]
    for name, tier in zip(names, tiers, strict=True):
        pinned = Pinned(name, hamlet.workers[2].identity.peer_id) if tier == 3 else None
        count = Replicas(1, replicas, replicas) if tier != 3 else Replicas(1, 1, 1)
        spec = replace(ECHO, name=name, tier=tier, replicas=count, pinned=pinned)
        hamlet.publish(spec)
    seconds_until_all_run(hamlet, names)
    hamlet.world.elapse(1)
    return hamlet, names


def seconds_until_all_run(hamlet: Hamlet, names: list[str]) -> float:
    began_s = hamlet.world.now_s
    while not all(map(hamlet.having, names)):
        hamlet.world.elapse(0.5)
    return hamlet.world.now_s - began_s


def kill(hamlet: Hamlet, node: SimNode) -> None:
    hamlet.world.kill(node)
    for other in hamlet.workers:
        hamlet.world.later(LATENCY_S, other, Disconnected(node.identity.peer_id))


@pytest.mark.at_length
@pytest.mark.parametrize("replicas", [1, 2])
def test_what_a_killed_worker_had_is_started_by_those_that_are_left_within_seconds(
    replicas: int,
) -> None:
    hamlet, names = lab(replicas)
    lost = len(hamlet.workers[1].replicas.running)
    before = len(hamlet.steps(ServiceStep.STARTED))
    kill(hamlet, hamlet.workers[1])
    assert seconds_until_all_run(hamlet, names) < 4.0
    hamlet.world.elapse(60)
    assert len(hamlet.steps(ServiceStep.STARTED)) - before <= lost


def test_what_a_worker_had_whose_power_failed_is_started_by_those_that_are_left() -> None:
    hamlet, names = lab(1)
    hamlet.world.vanish(hamlet.workers[1])
    assert seconds_until_all_run(hamlet, names) < 15.0


def test_a_worker_that_came_late_is_chosen_as_a_guardian_within_a_minute() -> None:
    hamlet = Hamlet(1).given(wanting(1), for_s=30)
    [replica] = services_of(hamlet.workers[0]).holding
    assert not replica.guardians
    late = hamlet.join("late")
    hamlet.world.elapse(70)
    assert replica.guardians == (late.contact,)


def claimed(means: Means, name: str, **fields: Any) -> PeerId:
    """That worker has claimed a slot of a service."""
    author = person(name)
    service = fields.setdefault("service", "echo")
    means.sight(service).take(SignedClaim(claim_of(author, **fields), b""))
    return author.peer_id


def test_workers_are_busy_that_have_as_many_replicas_as_far_as_their_claims_say() -> None:
    means = Played().means
    more = claimed(means, "more", service="other", services_held=3)
    as_many = claimed(means, "as many", service="other", services_held=2)
    has_it = claimed(means, "has it", services_held=1)
    suspect = claimed(means, "suspect", service="other", services_held=1)
    claimed(means, "less", service="other", services_held=1)
    claimed(means, "less by now", service="other", services_held=3)
    claimed(means, "less by now", service="third", services_held=1, sequence=2)
    claimed(means, "of old", service="other", services_held=3, expires_unix_s=int(NOW.unix_s))
    claimed(means, "gpu", service="gpu", services_held=3, worker_type=WorkerType.GPU)
    busy = means.busy(ECHO, 2, NOW, {suspect: 1})
    assert busy == {more, as_many, has_it, suspect, means.peer_id}
