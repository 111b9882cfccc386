"""Workers that keep services running, with the shipped peer, on a virtual clock."""

from dataclasses import replace
from typing import Any

import pytest

from formation_p2p.assembly import PeerParameters
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.features.services.core.claim import ClaimState
from formation_p2p.features.services.core.events import (
    DrainReplica,
    PublishSpec,
    ReadServices,
    ReplicaReported,
    ReplicaState,
    ServeServices,
    ServicesRead,
    ServiceStep,
    StopServing,
)
from formation_p2p.features.services.core.parameters import ServiceParameters
from formation_p2p.features.services.core.signed_spec import seal_spec
from formation_p2p.features.services.core.spec import ONE, Pinned, WorkerType
from formation_p2p.trust.core.grants import Right, Rights
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from tests.support.services_world import CPU, ECHO, Hamlet, asked, lone, wanting


def started(workers: int, target: int, **changes: Any) -> Hamlet:
    """A hamlet whose echo service runs as often as it wants to."""
    hamlet = Hamlet(workers, **changes).given(wanting(target), for_s=90)
    assert len(hamlet.having("echo")) == target
    return hamlet


def read(hamlet: Hamlet, *named: str) -> ServicesRead:
    hamlet.gate.services_read.clear()
    hamlet.world.deliver(hamlet.gate, ReadServices(7, named))
    hamlet.world.elapse(10)
    [told] = hamlet.gate.services_read
    assert isinstance(told, ServicesRead)
    assert told.query == 7
    return told


# -- filling ---------------------------------------------------------------------------------------


@pytest.mark.at_length
def test_workers_fill_the_slots_of_a_service_each_once() -> None:
    hamlet = Hamlet(6).given(wanting(3), for_s=120)
    [told] = hamlet.published()
    assert told.why == ""
    assert told.stored == 7
    assert len(hamlet.having("echo")) == 3
    assert len(hamlet.steps(ServiceStep.STARTED)) == 3
    assert len(hamlet.steps(ServiceStep.READY)) == 3
    found = read(hamlet)
    assert found.heard
    assert [each.spec.name for each in found.catalog] == ["echo"]
    assert [each.claim.state for each in found.claims] == [ClaimState.READY] * 3
    assert {each.claim.slot for each in found.claims} == {0, 1, 2}
    assert read(hamlet, "other").catalog == ()


@pytest.mark.at_length
def test_a_worker_that_dies_silently_is_replaced_within_seconds() -> None:
    hamlet = started(4, 2)
    hamlet.world.vanish(hamlet.having("echo")[0])
    hamlet.world.elapse(25)
    assert len(hamlet.having("echo")) == 2
    assert len(hamlet.steps(ServiceStep.STARTED)) == 3


def test_a_worker_alone_runs_what_is_missing_up_to_what_it_may() -> None:
    services = (wanting(1, name=name) for name in ("one", "two", "three"))
    hamlet = Hamlet(1, max_services=2).given(*services, for_s=120)
    assert len(hamlet.workers[0].replicas.running) == 2


@pytest.mark.at_length
def test_a_replica_that_fails_is_left_to_another_worker() -> None:
    hamlet = Hamlet(2)
    fails = [None, 1.0]
    hamlet.world.performer.start_s = lambda service: fails.pop(0) if fails else 1.0
    hamlet.given(wanting(1), for_s=60)
    [failed], [runs] = hamlet.steps(ServiceStep.FAILED), hamlet.having("echo")
    assert failed != runs.name


def test_a_worker_that_serves_other_types_runs_nothing() -> None:
    hamlet = Hamlet(0)
    node = hamlet.world.add("gpu", serve=hamlet.world.machine())
    hamlet.world.deliver(node, ServeServices(frozenset({WorkerType.GPU})))
    hamlet.given(wanting(1), for_s=60)
    assert node.replicas.running == {}


def test_what_a_replica_needs_is_not_leased_to_tasks() -> None:
    hamlet = Hamlet(1).given(wanting(1, needs=replace(ECHO.needs, cpu_milli=6000)), for_s=60)
    worker = hamlet.workers[0]
    status = worker.peer.status(hamlet.world.moment(worker))  # type: ignore[attr-defined]
    assert status.free.cpu_milli == 2000
    hamlet.world.deliver(worker, StopServing())
    hamlet.world.elapse(10)
    status = worker.peer.status(hamlet.world.moment(worker))  # type: ignore[attr-defined]
    assert status.free.cpu_milli == 8000


@pytest.mark.at_length
def test_what_is_most_important_does_not_wait_until_its_workers_have_less_to_do() -> None:
    hamlet = Hamlet(2, max_services=8)
    both = frozenset({WorkerType.GPU, WorkerType.CPU})
    for node in hamlet.workers:
        hamlet.world.deliver(node, ServeServices(both, 8))
    hamlet.given(*(wanting(1, name=f"other-{number}") for number in range(8)), for_s=200)
    assert sum(len(node.replicas.running) for node in hamlet.workers) == 8
    hamlet.publish(wanting(1, name="first", tier=1))
    hamlet.world.elapse(45)
    assert len(hamlet.having("first")) == 1


# -- what must not happen -------------------------------------------------------------------------


@pytest.mark.at_length
def test_both_parts_of_a_network_fill_their_gaps_and_what_is_too_much_goes() -> None:
    hamlet = started(5, 2)
    first, second = hamlet.having("echo")
    for node in hamlet.workers[::2]:
        node.side = 1
    hamlet.world.elapse(120)
    assert len(hamlet.having("echo")) > 2 or first.side == second.side
    for node in hamlet.workers:
        node.side = 0
    hamlet.world.elapse(180)
    assert len(hamlet.having("echo")) == 2


@pytest.mark.at_length
def test_a_pinned_service_runs_on_its_home_alone() -> None:
    hamlet = Hamlet(4)
    home = hamlet.workers[2]
    pinned = Pinned("data", home.identity.peer_id)
    hamlet.given(replace(ECHO, replicas=ONE, pinned=pinned), for_s=60)
    assert hamlet.having("echo") == [home]
    hamlet.world.vanish(home)
    hamlet.world.elapse(200)
    assert hamlet.having("echo") == []


@pytest.mark.at_length
def test_others_go_on_to_see_pinned_services() -> None:
    hamlet = Hamlet(4)
    pinned = Pinned("data", hamlet.workers[2].identity.peer_id)
    spec = replace(ECHO, replicas=ONE, pinned=pinned)
    hamlet.given(*(replace(spec, name=name) for name in ("a", "b", "c", "d")), for_s=200)
    assert [each.claim.state for each in read(hamlet).claims] == [ClaimState.READY] * 4


def test_a_pinned_service_is_updated_in_its_place() -> None:
    hamlet = Hamlet(2)
    home = hamlet.workers[0]
    spec = replace(ECHO, replicas=ONE, pinned=Pinned("data", home.identity.peer_id))
    hamlet.given(spec, for_s=60)
    hamlet.publish(replace(spec, version=2))
    hamlet.world.elapse(120)
    assert hamlet.steps(ServiceStep.STARTED) == [home.name] * 2


def test_a_publisher_without_the_right_is_told_so() -> None:
    hamlet = Hamlet(1)
    rights = Rights(int(EPOCH_UNIX_S) + 10**6, frozenset({Right.SUBMIT, Right.WORK}))
    mallory = hamlet.world.add("mallory", rights=rights)
    hamlet.world.elapse(5)
    hamlet.publish(wanting(1), mallory)
    hamlet.world.elapse(60)
    [told] = mallory.services_read
    assert "right to services" in told.why  # type: ignore[union-attr]
    assert hamlet.having("echo") == []


def test_an_older_version_is_not_published() -> None:
    hamlet = Hamlet(1).given(wanting(1, version=2), for_s=5)
    hamlet.publish(wanting(1))
    hamlet.world.elapse(5)
    assert "newer version" in hamlet.published()[-1].why


def test_what_has_not_changed_is_published_again_whatever_its_new_digest() -> None:
    hamlet = started(2, 1)
    for _ in range(8):  # of which some have a smaller digest than all before, and some have not
        hamlet.world.elapse(5)
        hamlet.publish(wanting(1))
    hamlet.world.elapse(60)
    assert [each.why for each in hamlet.published()] == [""] * len(hamlet.published())
    assert all(each.stored for each in hamlet.published())
    assert len(hamlet.steps(ServiceStep.STARTED)) == 1


# -- changes ------------------------------------------------------------------------


@pytest.mark.at_length
def test_a_withdrawn_service_ends() -> None:
    hamlet = started(4, 2)
    hamlet.publish(wanting(2, version=2, withdrawn=True))
    hamlet.world.elapse(90)
    assert hamlet.having("echo") == []


@pytest.mark.parametrize(("services", "then"), [(2, [1, 1]), (4, [3, 1])])
def test_a_newcomer_takes_one_from_a_worker_that_has_more_than_its_share(
    services: int, then: list[int]
) -> None:
    names = [f"service-{number}" for number in range(services)]
    hamlet = Hamlet(1).given(*(wanting(1, name=name) for name in names), for_s=60)
    assert len(hamlet.workers[0].replicas.running) == services
    hamlet.workers.append(hamlet.join("newcomer"))
    for _ in range(60):
        hamlet.world.elapse(20)
        assert all(map(hamlet.having, names))
    assert [len(node.replicas.running) for node in hamlet.workers] == then


@pytest.mark.at_length
def test_a_drained_replica_is_announced_first_and_replaced_by_another() -> None:
    hamlet = started(4, 1)
    [had] = hamlet.having("echo")
    hamlet.world.deliver(had, DrainReplica("echo"))
    hamlet.world.elapse(0.5)
    assert len(read(hamlet).claims) == 1
    hamlet.world.elapse(90)
    [has] = hamlet.having("echo")
    assert has is not had
    assert hamlet.steps(ServiceStep.DRAINING) == [had.name]


@pytest.mark.at_length
def test_a_worker_that_leaves_hands_its_services_on() -> None:
    hamlet = started(4, 1)
    [had] = hamlet.having("echo")
    had.leave()
    hamlet.world.elapse(90)
    [has] = hamlet.having("echo")
    assert has is not had


def test_a_replica_that_is_not_ready_is_not_listed_as_ready() -> None:
    hamlet = started(3, 1)
    [node] = hamlet.having("echo")
    epoch, slot = node.replicas.running["echo"]
    for state in (ReplicaState.UNREADY, ReplicaState.STARTING):
        hamlet.world.deliver(node, ReplicaReported("echo", slot, epoch, state, 3, "it is busy"))
    [claim] = read(hamlet).claims
    assert claim.claim.state is ClaimState.JOINING
    report = ReplicaReported("echo", slot, epoch - 1, ReplicaState.FAILED)
    hamlet.world.deliver(node, report)  # of one before
    hamlet.world.deliver(node, ReplicaReported("echo", slot, epoch, ReplicaState.READY, 5))
    [claim] = read(hamlet).claims
    assert (claim.claim.state, claim.claim.outstanding) == (ClaimState.READY, 5)


def test_services_may_be_served_before_the_machine_is_lent() -> None:
    hamlet = Hamlet(0)
    node = hamlet.world.add("early")
    hamlet.world.deliver(node, ServeServices(CPU))
    hamlet.given(wanting(1), for_s=20)
    hamlet.world.deliver(node, hamlet.world.machine(cpu=2))
    hamlet.world.elapse(60)
    assert "echo" in node.replicas.running


@pytest.mark.at_length
def test_a_spec_outlives_its_publisher_and_its_first_holders() -> None:
    hamlet = Hamlet(3)
    publisher = hamlet.world.add("publisher")
    hamlet.world.elapse(5)
    hamlet.publish(wanting(1), publisher)
    hamlet.world.elapse(60)
    hamlet.world.vanish(publisher)
    late = hamlet.join("late")
    hamlet.workers.append(late)
    hamlet.world.elapse(120)
    found = read(hamlet)
    assert [each.spec.name for each in found.catalog] == ["echo"]


# -- a bad day -------------------------------------------------------------------------------------


@pytest.mark.at_length
def test_services_run_as_often_as_they_want_though_messages_are_lost() -> None:
    names = ("one", "two")
    hamlet = Hamlet(6).given(*(wanting(2, name=name) for name in names))
    hamlet.world.loss = 0.15
    hamlet.world.elapse(120)
    hamlet.world.kill(hamlet.having("one")[0])
    hamlet.world.elapse(60)
    hamlet.world.loss = 0.0
    hamlet.world.elapse(200)
    assert [len(hamlet.having(name)) for name in names] == [2, 2]


def test_who_has_the_slot_of_a_worker_that_restarts_does_not_yield_to_its_old_claim() -> None:
    hamlet = started(4, 2)
    node = hamlet.having("echo")[0]
    hamlet.world.kill(node)
    hamlet.world.elapse(1)
    serve = hamlet.world.machine(cpu=8)
    hamlet.world.restart(node, serve, ServeServices(CPU))
    hamlet.world.elapse(20)
    assert len(hamlet.having("echo")) == 2
    hamlet.world.elapse(70)
    assert len(hamlet.having("echo")) == 2
    assert hamlet.steps(ServiceStep.DRAINING) == []


# Workers in networks that are young, crowded or large: what they wait for, and what they guess.


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
    services = (wanting(1, name=name) for name in ("one", "two"))
    hamlet = Hamlet(2, max_services=1).given(*services, for_s=90)
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


def test_a_worker_that_finds_its_slot_taken_takes_the_next_one_at_once() -> None:
    """Both begin with the same slot, in a network of two."""
    hamlet = Hamlet(2, seed=2).given(wanting(2))
    assert seconds_until_two_run(hamlet) < 20
    assert len(hamlet.steps(ServiceStep.STARTED)) == 2


@pytest.mark.at_length
def test_a_catalog_that_is_published_before_the_network_has_met_is_soon_read() -> None:
    hamlet = Hamlet(2, seed=2)
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


# What changes while a worker waits for an answer on its way to a replica, and what follows.


def asking(hamlet: Hamlet, cause: str) -> SimNode:
    """The first worker that asks another for this cause from now on; its request is in flight."""
    worker, _ = asked(hamlet, cause)
    return worker


def settled(hamlet: Hamlet) -> None:
    """Nothing runs, is set aside, or is claimed any more."""
    hamlet.world.elapse(100)
    assert hamlet.having("echo") == []
    for node in hamlet.workers:
        if node.alive:
            status = node.peer.status(hamlet.world.moment(node))  # type: ignore[attr-defined]
            assert status.free.cpu_milli == 8000
    before = hamlet.world.messages["services: republish"]
    hamlet.world.elapse(100)
    assert hamlet.world.messages["services: republish"] == before


def test_a_service_that_is_withdrawn_while_no_holder_answers_is_not_read_again() -> None:
    hamlet = lone()
    hamlet.world.elapse(60)  # by now the worker knows how many peers there are
    hamlet.publish(wanting(1, name="other"))
    worker = asking(hamlet, "confirm")
    hamlet.world.loss = 1.0
    hamlet.publish(wanting(1, name="other", version=2, withdrawn=True), worker)
    hamlet.world.elapse(40)
    hamlet.world.loss = 0.0
    before = hamlet.world.messages["services: confirm"]
    hamlet.world.elapse(60)
    assert hamlet.world.messages["services: confirm"] == before
    assert hamlet.steps(ServiceStep.GAP) == [worker.name]


def test_a_guardian_that_is_to_run_nothing_any_more_does_not_claim() -> None:
    hamlet = Hamlet(2).given(wanting(1), for_s=90)
    [had] = hamlet.having("echo")
    hamlet.world.vanish(had)
    guardian = asking(hamlet, "probe")
    hamlet.world.deliver(guardian, StopServing())
    settled(hamlet)
    assert hamlet.steps(ServiceStep.STARTED) == [had.name]


@pytest.mark.parametrize("cause", ["confirm", "claim", "check"])
def test_a_worker_that_stops_serving_while_it_fills_a_slot_starts_nothing(cause: str) -> None:
    hamlet = lone()
    hamlet.world.deliver(asking(hamlet, cause), StopServing())
    settled(hamlet)
    assert hamlet.steps(ServiceStep.STARTED) == []


@pytest.mark.at_length
def test_guardians_ask_no_more_often_than_in_their_periods() -> None:
    hamlet = Hamlet(4).given(wanting(1), for_s=60)
    before = hamlet.world.messages["services: guard"]
    hamlet.world.elapse(100)
    asked_and_answered = hamlet.world.messages["services: guard"] - before
    every_s = [0.9 * each for each in ServiceParameters().guard_s]
    assert 0 < asked_and_answered <= 2 * sum(100 / each + 1 for each in every_s)


def test_a_worker_that_stops_serving_while_it_reads_fills_nothing() -> None:
    hamlet = lone()
    hamlet.world.deliver(asking(hamlet, "watch"), StopServing())
    settled(hamlet)
    assert hamlet.steps(ServiceStep.GAP) == []


def test_workers_are_counted_no_more_by_one_that_stops_serving() -> None:
    hamlet = Hamlet(1)
    [worker] = hamlet.workers
    hamlet.world.elapse(30)
    hamlet.world.deliver(worker, StopServing())
    before = hamlet.world.messages["services: count"]
    hamlet.world.elapse(1000)
    assert hamlet.world.messages["services: count"] == before


def test_a_count_that_fails_after_the_end_is_not_repeated() -> None:
    hamlet = Hamlet(1)
    [worker] = hamlet.workers
    hamlet.world.elapse(30)
    hamlet.world.deliver(worker, ServeServices(CPU))
    assert asking(hamlet, "count") is worker
    hamlet.world.deliver(worker, StopServing())
    hamlet.world.loss = 1.0
    hamlet.world.elapse(20)
    hamlet.world.loss = 0.0
    before = hamlet.world.messages["services: count"]
    hamlet.world.elapse(1000)
    assert hamlet.world.messages["services: count"] == before


def test_a_worker_tries_a_service_that_failed_on_it_again_after_a_while() -> None:
    hamlet = Hamlet(1)
    fails = [None]
    hamlet.world.performer.start_s = lambda service: fails.pop() if fails else 1.0
    hamlet.world.elapse(5)
    hamlet.publish(wanting(1))
    hamlet.world.elapse(250)
    assert hamlet.having("echo") == []
    hamlet.world.elapse(150)
    assert hamlet.having("echo") == hamlet.workers


def test_a_drained_claim_is_withdrawn_before_its_replica_starts() -> None:
    hamlet = lone()
    worker = asking(hamlet, "claim")
    hamlet.world.deliver(worker, DrainReplica("echo"))
    settled(hamlet)
    assert hamlet.steps(ServiceStep.STARTED) == []


@pytest.mark.parametrize(
    ("cause", "is_withdrawn"),
    [("watch", False), ("confirm", True), ("claim", False), ("claim", True), ("check", True)],
)
def test_a_service_that_is_withdrawn_or_pinned_elsewhere_on_the_way_is_not_started(
    cause: str, is_withdrawn: bool
) -> None:
    hamlet = lone()
    home = hamlet.gate.identity.peer_id
    worker = asking(hamlet, cause)
    pinned = replace(ECHO, version=2, replicas=ONE, pinned=Pinned("data", home))
    hamlet.publish(wanting(1, version=2, withdrawn=True) if is_withdrawn else pinned, worker)
    settled(hamlet)
    assert hamlet.steps(ServiceStep.STARTED) == []


def test_types_are_served_as_they_are_told_last() -> None:
    hamlet = lone()
    worker = asking(hamlet, "check")
    hamlet.world.deliver(worker, ServeServices(frozenset({WorkerType.GPU})))
    settled(hamlet)
    assert hamlet.steps(ServiceStep.STARTED) == []
