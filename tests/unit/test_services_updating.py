"""From one version to the next: beside the old one, slot by slot, and back where it fails."""

from dataclasses import replace

import pytest

from formation_p2p.assembly import Peer
from formation_p2p.features.services.core.claim import Claim
from formation_p2p.features.services.core.events import (
    ReadServices,
    ReplicaReported,
    ReplicaState,
    ServicesRead,
    ServiceStep,
    StopServing,
)
from formation_p2p.machine.core.requirements import parse_requirements
from simulations.simulator.node import SimNode
from tests.support.services_world import ECHO, Hamlet, wanting

LARGE = parse_requirements("cpu=5")


def started(workers: int, target: int, **fields: object) -> Hamlet:
    hamlet = Hamlet(workers).given(wanting(target, **fields), for_s=180)
    assert len(hamlet.having("echo")) == target
    return hamlet


def updating(workers: int, target: int, start_s: float | None, for_s: float) -> Hamlet:
    """So long after a second version was published that takes this long to start, or fails."""
    hamlet = started(workers, target)
    hamlet.world.performer.start_s = lambda service: start_s
    hamlet.publish(wanting(target, version=2))
    hamlet.world.elapse(for_s)
    return hamlet


def claims(hamlet: Hamlet) -> list[Claim]:
    """Those that are read, by slot."""
    hamlet.gate.services_read.clear()
    hamlet.world.deliver(hamlet.gate, ReadServices(1))
    hamlet.world.elapse(5)
    [told] = (each for each in hamlet.gate.services_read if isinstance(each, ServicesRead))
    return sorted((each.claim for each in told.claims), key=lambda claim: claim.slot)


def versions(hamlet: Hamlet) -> list[int]:
    return [claim.version for claim in claims(hamlet)]


def free_cpu_milli(hamlet: Hamlet, node: SimNode) -> int:
    assert isinstance(node.peer, Peer)
    free = node.peer.status(hamlet.world.moment(node)).free
    assert free is not None
    return free.cpu_milli


@pytest.mark.at_length
def test_two_workers_go_over_to_a_new_version_and_never_serve_with_less() -> None:
    hamlet = started(2, 2, needs=parse_requirements("cpu=2"))
    hamlet.world.performer.start_s = lambda service: 2.0
    hamlet.publish(wanting(2, version=2, needs=parse_requirements("cpu=3")))
    hamlet.world.elapse(13)
    assert [claim.version for claim in claims(hamlet)] == [2, 1]
    hamlet.world.elapse(15)
    assert versions(hamlet) == [2, 2]
    hamlet.world.elapse(5)
    assert [free_cpu_milli(hamlet, node) for node in hamlet.workers] == [5000, 5000]
    assert len(hamlet.steps(ServiceStep.RENEWED)) == 2
    assert hamlet.steps(ServiceStep.DRAINING) == []


def test_another_number_of_replicas_starts_none_again() -> None:
    hamlet = started(4, 2)
    hamlet.publish(wanting(3, version=2))
    hamlet.world.elapse(120)
    assert versions(hamlet) == [2, 2, 2]
    hamlet.publish(wanting(1, version=3))
    hamlet.world.elapse(300)
    assert versions(hamlet) == [3]
    assert len(hamlet.steps(ServiceStep.STARTED)) == 3
    assert hamlet.steps(ServiceStep.RENEWED) == []


@pytest.mark.at_length
def test_a_version_that_fails_on_the_first_is_tried_on_no_other() -> None:
    hamlet = updating(4, 3, None, for_s=200)
    assert versions(hamlet) == [1, 1, 1]
    assert len(hamlet.steps(ServiceStep.FAILED)) == 1
    assert [claim.failed_version for claim in claims(hamlet)] == [2, 0, 0]
    assert len(hamlet.having("echo")) == 3


def test_a_worker_on_which_alone_it_fails_keeps_the_old_one_and_tries_again() -> None:
    hamlet = started(2, 2)
    starts: list[float | None] = [1.0, None]
    hamlet.world.performer.start_s = lambda service: starts.pop(0) if starts else 1.0
    hamlet.publish(wanting(2, version=2))
    hamlet.world.elapse(100)
    assert versions(hamlet) == [2, 1]
    hamlet.world.elapse(300)
    assert versions(hamlet) == [2, 2]


@pytest.mark.at_length
def test_what_is_missing_meanwhile_is_filled_with_the_version_that_serves() -> None:
    hamlet = updating(5, 2, None, for_s=30)
    assert [claim.failed_version for claim in claims(hamlet)] == [2, 0]
    hamlet.world.performer.start_s = lambda service: 1.0
    [_, other] = sorted(hamlet.having("echo"), key=lambda node: node.replicas.running["echo"][1])
    hamlet.world.kill(other)
    hamlet.world.elapse(60)
    assert versions(hamlet) == [1, 1]


@pytest.mark.at_length
def test_a_version_that_failed_is_tried_again_later_and_a_newer_one_at_once() -> None:
    hamlet = updating(2, 2, None, for_s=30)
    hamlet.world.performer.start_s = lambda service: 1.0
    hamlet.world.elapse(400)
    assert versions(hamlet) == [2, 2]
    hamlet.world.performer.start_s = lambda service: None
    hamlet.publish(wanting(2, version=3))
    hamlet.world.elapse(30)
    hamlet.world.performer.start_s = lambda service: 1.0
    hamlet.publish(wanting(2, version=4))
    hamlet.world.elapse(60)
    assert versions(hamlet) == [4, 4]


@pytest.mark.parametrize(
    "states",
    [
        (ReplicaState.STARTING, *[ReplicaState.UNREADY] * 3),
        (ReplicaState.READY, ReplicaState.READY, ReplicaState.UNREADY),
    ],
)
def test_one_that_stumbles_is_given_up(states: tuple[ReplicaState, ...]) -> None:
    hamlet = updating(1, 1, 500.0, for_s=6)
    [node] = hamlet.workers
    epoch, slot = node.replicas.beside["echo"]
    for state in states:
        assert hamlet.steps(ServiceStep.FAILED) == []
        hamlet.world.deliver(node, ReplicaReported("echo", slot, epoch, state, why="no"))
    assert hamlet.steps(ServiceStep.FAILED) == [node.name]
    hamlet.world.elapse(10)
    assert versions(hamlet) == [1]
    assert node.replicas.beside == {}


def test_one_that_is_never_ready_is_given_up() -> None:
    hamlet = updating(1, 1, 10_000.0, for_s=30)
    [claim] = claims(hamlet)
    assert (claim.version, claim.next_version) == (1, 2)
    hamlet.world.elapse(960)
    assert hamlet.steps(ServiceStep.FAILED) == [hamlet.workers[0].name]


@pytest.mark.parametrize(("is_ready", "serves"), [(True, 2), (False, 0)])
def test_where_the_old_one_fails_the_new_one_serves_if_it_is_ready(
    is_ready: bool, serves: int
) -> None:
    hamlet = updating(1, 1, 500.0, for_s=6)
    [node] = hamlet.workers
    epoch, slot = node.replicas.beside["echo"]
    if is_ready:
        hamlet.world.deliver(node, ReplicaReported("echo", slot, epoch, ReplicaState.READY))
    old = node.replicas.running["echo"][0]
    hamlet.world.deliver(node, ReplicaReported("echo", slot, old, ReplicaState.FAILED))
    hamlet.world.elapse(5)
    assert sum(versions(hamlet)) == serves


def test_yet_another_version_replaces_one_that_is_being_started() -> None:
    hamlet = updating(1, 1, 100.0, for_s=6)
    [node] = hamlet.workers
    hamlet.world.performer.start_s = lambda service: 1.0
    hamlet.publish(wanting(1, version=3))
    hamlet.world.elapse(40)
    assert versions(hamlet) == [3]
    assert hamlet.steps(ServiceStep.FAILED) == []
    assert node.replicas.ending == set()


def test_a_worker_that_stops_serving_stops_both() -> None:
    hamlet = updating(1, 1, 100.0, for_s=6)
    [node] = hamlet.workers
    assert "echo" in node.replicas.beside
    hamlet.world.deliver(node, StopServing())
    hamlet.world.elapse(10)
    assert (node.replicas.running, node.replicas.beside) == ({}, {})
    assert free_cpu_milli(hamlet, node) == 8000


def fewest(hamlet: Hamlet) -> int:
    """How many have run it, at the worst moment of the next minutes."""
    least = len(hamlet.having("echo"))
    for _ in range(300):
        hamlet.world.elapse(1)
        least = min(least, len(hamlet.having("echo")))
    return least


# -- where there is no room for both ---------------------------------------------------------------


@pytest.mark.parametrize(("workers", "fewest_of_all"), [(3, 2), (2, 1)])
def test_another_worker_takes_it_on_or_where_none_has_room_one_after_the_other_makes_some(
    workers: int, fewest_of_all: int
) -> None:
    hamlet = started(workers, 2, needs=LARGE)
    hamlet.publish(wanting(2, version=2, needs=LARGE))
    least = fewest(hamlet)
    assert versions(hamlet) == [2, 2]
    assert least == fewest_of_all


@pytest.mark.at_length
def test_where_others_could_and_do_not_the_last_one_stays() -> None:
    hamlet = started(2, 1, needs=LARGE)
    [idle] = [node for node in hamlet.workers if node not in hamlet.having("echo")]
    hamlet.publish(replace(ECHO, name="other", replicas=wanting(1).replicas, needs=LARGE))
    hamlet.world.elapse(60)
    assert "other" in idle.replicas.running
    hamlet.publish(wanting(1, version=2, needs=LARGE))
    hamlet.world.elapse(400)
    assert versions(hamlet)[:1] == [1]


def test_a_version_for_another_type_of_worker_is_not_started_here() -> None:
    hamlet = started(1, 1)
    hamlet.publish(wanting(1, version=2, tier=3))
    hamlet.world.elapse(60)
    assert versions(hamlet) == [1]
    assert len(hamlet.steps(ServiceStep.STARTED)) == 1
