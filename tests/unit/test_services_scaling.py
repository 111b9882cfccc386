"""How many replicas a service has: by its load, alike at every node, and never by a false gap."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.peer.peer import Peer
from formation_p2p.core.services.claim import Claim
from formation_p2p.core.services.events import (
    ReadServices,
    ReplicaReported,
    ReplicaState,
    ServicesRead,
    ServiceStep,
)
from formation_p2p.core.services.scaling import DOWN_S, UP_S, Load, Scaler, wanted
from formation_p2p.core.services.spec import Replicas, ServiceSpec
from formation_p2p.core.services.view import view_of
from formation_p2p.sim.node import SimNode
from tests.support.services_world import ECHO, Hamlet, claim_of, person

ELASTIC = replace(ECHO, replicas=Replicas(1, 1, 3))
PAIR = replace(ECHO, replicas=Replicas(1, 2, 3))


def claims(*words: int, version: int = 1) -> list[Claim]:
    return [
        claim_of(person(f"worker{slot}"), slot=slot, wanted=word, version=version)
        for slot, word in enumerate(words)
    ]


# -- the number ------------------------------------------------------------------------------------


def test_what_the_most_of_the_live_claims_wants_is_wanted() -> None:
    assert wanted(PAIR, []) == 2
    assert wanted(PAIR, claims(0, 0)) == 2
    assert wanted(PAIR, claims(3, 1)) == 3
    assert wanted(PAIR, claims(1, 1)) == 1
    assert wanted(PAIR, claims(1, 0)) == 2  # one of them leaves it to the spec


def test_what_was_said_of_an_older_version_counts_where_it_is_more() -> None:
    newer = replace(PAIR, version=2)
    assert wanted(newer, claims(1, 1)) == 2
    assert wanted(newer, claims(3, 1)) == 3
    assert wanted(newer, claims(1, 1, version=2)) == 1


@given(st.lists(st.integers(0, 64), max_size=8), st.integers(1, 64), st.integers(1, 64))
def test_it_stays_within_what_the_spec_allows(words: list[int], one: int, other: int) -> None:
    least, most = sorted((one, other))
    spec = replace(ECHO, replicas=Replicas(least, least, most))
    assert least <= wanted(spec, claims(*words)) <= most
    assert wanted(spec, reversed(claims(*words))) == wanted(spec, claims(*words))


# -- one holder ------------------------------------------------------------------------------------


def test_a_load_is_what_there_was_of_late() -> None:
    load = Load()
    assert load.busy_percent(ECHO, 1000.0) == 0
    load.told(0.0, 16, 1000.0)
    assert load.busy_percent(ECHO, 1010.0) == 39
    assert load.busy_percent(ECHO, 1024.0) == 70
    load.told(16.0, 0, 1100.0)
    assert load.busy_percent(ECHO, 1100.0) == 99
    assert load.busy_percent(ECHO, 1200.0) == 1
    load.told(1000.0, 0, 1300.0)  # most of them waited
    assert load.busy_percent(ECHO, 1300.0) == 200


def test_a_holder_wants_more_at_once_and_then_waits() -> None:
    scaler = Scaler(ELASTIC)
    assert scaler.decide(1, 60.0, 0.0, is_whole=True) is None
    assert scaler.decide(1, 80.0, 1.0, is_whole=True) == 2
    scaler.changed(1.0)
    assert scaler.decide(2, 80.0, UP_S, is_whole=True) is None
    assert scaler.decide(2, 80.0, 1.0 + UP_S, is_whole=False) == 3
    assert scaler.decide(3, 200.0, 1000.0, is_whole=True) is None  # the most there may be


def test_a_holder_wants_fewer_only_where_fewer_were_enough_all_the_time() -> None:
    scaler = Scaler(ELASTIC)
    assert scaler.decide(3, 10.0, 0.0, is_whole=True) is None
    assert scaler.decide(3, 50.0, 300.0, is_whole=True) is None
    assert scaler.decide(3, 10.0, DOWN_S - 1, is_whole=True) is None
    assert scaler.decide(3, 10.0, DOWN_S, is_whole=True) == 2
    scaler.changed(DOWN_S)
    assert scaler.decide(2, 0.0, DOWN_S + 1, is_whole=True) is None
    assert scaler.decide(2, 0.0, 2 * DOWN_S, is_whole=True) is None
    assert scaler.decide(2, 0.0, 2 * DOWN_S + 1, is_whole=True) == 1


def test_where_one_is_missing_little_load_says_nothing() -> None:
    scaler = Scaler(ELASTIC)
    scaler.decide(3, 10.0, 0.0, is_whole=True)
    assert scaler.decide(3, 10.0, 500.0, is_whole=False) is None
    assert scaler.decide(3, 10.0, DOWN_S, is_whole=True) is None
    assert scaler.decide(3, 10.0, 2 * DOWN_S, is_whole=True) == 1


# -- all of them -----------------------------------------------------------------------------------


def serving(spec: ServiceSpec, workers: int = 4) -> Hamlet:
    hamlet = Hamlet(workers)
    hamlet.world.elapse(5)
    hamlet.publish(spec)
    hamlet.world.elapse(60)
    assert len(hamlet.having("echo")) == spec.replicas.target
    return hamlet


def busy(hamlet: Hamlet, node: SimNode, requests: int, before: int = 0) -> None:
    """The replica on a node has so many from now on, and had others since it was told last."""
    epoch, slot = node.replicas.running["echo"]
    state = ReplicaState.READY
    told = ReplicaReported("echo", slot, epoch, state, requests, busy=float(before))
    hamlet.world.deliver(node, told)


def wanted_at(hamlet: Hamlet, node: SimNode) -> int:
    node.services_read.clear()
    hamlet.world.deliver(node, ReadServices(1))
    hamlet.world.elapse(5)
    [told] = node.services_read
    assert isinstance(told, ServicesRead)
    return view_of(told).wanted("echo")


def test_a_service_grows_with_its_load_and_shrinks_slowly() -> None:
    hamlet = serving(ELASTIC)
    [first] = hamlet.having("echo")
    busy(hamlet, first, 16)
    hamlet.world.elapse(75)
    assert len(hamlet.having("echo")) == 2
    [second] = [node for node in hamlet.having("echo") if node is not first]
    busy(hamlet, second, 16)
    hamlet.world.elapse(90)
    assert len(hamlet.having("echo")) == 3
    for node in hamlet.having("echo"):
        busy(hamlet, node, 0, before=16)
    hamlet.world.elapse(560)
    assert len(hamlet.having("echo")) == 3
    hamlet.world.elapse(200)
    assert len(hamlet.having("echo")) == 2  # there was less and less, and 2 were enough for it
    hamlet.world.elapse(600)
    assert len(hamlet.having("echo")) == 1
    assert {wanted_at(hamlet, node) for node in hamlet.workers} == {1}


def test_a_moment_of_load_starts_nothing() -> None:
    hamlet = serving(ELASTIC)
    [first] = hamlet.having("echo")
    busy(hamlet, first, 16)
    hamlet.world.elapse(8)
    busy(hamlet, first, 0, before=16)
    hamlet.world.elapse(60)
    assert hamlet.steps(ServiceStep.SCALED) == []


@pytest.mark.parametrize("silent", [False, True])
def test_the_load_of_one_that_died_does_not_count_twice(silent: bool) -> None:
    hamlet = serving(PAIR)
    one, other = hamlet.having("echo")
    for node in (one, other):
        busy(hamlet, node, 10)
    hamlet.world.elapse(60)
    (hamlet.world.vanish if silent else hamlet.world.kill)(one)
    busy(hamlet, other, 16)
    hamlet.world.elapse(50)
    assert hamlet.steps(ServiceStep.SCALED) == []
    assert len(hamlet.having("echo")) == 2


def test_a_service_that_cannot_be_read_keeps_its_size() -> None:
    hamlet = serving(PAIR)
    hamlet.world.elapse(400)
    hamlet.world.loss = 1.0
    hamlet.world.elapse(120)
    hamlet.world.loss = 0.0
    hamlet.world.elapse(300)
    assert hamlet.steps(ServiceStep.SCALED) == []
    assert len(hamlet.steps(ServiceStep.STARTED)) == 2


def test_a_replica_that_goes_while_the_others_are_asked_wants_nothing() -> None:
    hamlet = serving(PAIR)
    one, other = hamlet.having("echo")
    for node in (one, other):
        busy(hamlet, node, 10)
    hamlet.world.elapse(60)
    hamlet.world.vanish(one)
    busy(hamlet, other, 16)
    assert isinstance(other.peer, Peer)
    scaling = other.peer.services.autoscaling
    for _ in range(600):
        hamlet.world.elapse(0.1)
        if scaling.asking:
            break
    assert scaling.asking
    epoch, slot = other.replicas.running["echo"]
    unready = ReplicaReported("echo", slot, epoch, ReplicaState.UNREADY, 16)
    hamlet.world.deliver(other, unready)
    hamlet.world.elapse(10)
    assert hamlet.steps(ServiceStep.SCALED) == []
