"""What changes while a worker waits for an answer on its way to a replica, and what follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from formation_p2p.features.services.core.events import (
    DrainReplica,
    ServeServices,
    ServiceStep,
    StopServing,
)
from formation_p2p.features.services.core.spec import ONE, Pinned, WorkerType
from simulations.simulator.node import SimNode
from tests.support.services_world import CPU, ECHO, Hamlet, asked, lone, wanting


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


@pytest.mark.at_length
@pytest.mark.parametrize("cause", ["confirm", "claim", "check"])
def test_a_service_that_is_withdrawn_on_the_way_is_not_started(cause: str) -> None:
    hamlet = lone()
    worker = asking(hamlet, cause)
    hamlet.publish(wanting(1, version=2, withdrawn=True), worker)
    settled(hamlet)
    assert hamlet.steps(ServiceStep.STARTED) == []


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


@pytest.mark.parametrize("cause", ["watch", "confirm", "claim", "check"])
def test_a_service_that_is_pinned_by_now_is_not_run_elsewhere(cause: str) -> None:
    hamlet = lone()
    home = hamlet.gate.identity.peer_id
    worker = asking(hamlet, cause)
    pinned = replace(ECHO, version=2, replicas=ONE, pinned=Pinned("data", home))
    hamlet.publish(pinned, worker)
    settled(hamlet)
    assert hamlet.steps(ServiceStep.STARTED) == []


def test_types_are_served_as_they_are_told_last() -> None:
    hamlet = lone()
    worker = asking(hamlet, "check")
    hamlet.world.deliver(worker, ServeServices(frozenset({WorkerType.GPU})))
    settled(hamlet)
    assert hamlet.steps(ServiceStep.STARTED) == []
