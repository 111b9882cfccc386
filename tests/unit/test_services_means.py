"""What the parts of the services part share: guesses of how many there are, claims, guards."""

from __future__ import annotations

import random

import pytest

from formation_p2p.core.effects import Contact
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.operations import Answer
from formation_p2p.discovery.core.finder import Finder
from formation_p2p.features.services.core.claim import Claim, ClaimState, seal_claim
from formation_p2p.features.services.core.guards import MAX_GUARDS, Guards
from formation_p2p.features.services.core.holders import Holders
from formation_p2p.features.services.core.means import Inquiries, Means
from formation_p2p.features.services.core.parameters import ServiceParameters
from formation_p2p.features.services.core.shelf import Shelf
from tests.support.dht_world import NETWORK, DhtNode, DhtWorld
from tests.support.services_world import NOW, claim_of, person

ALICE, BOB = person("alice"), person("bob")


def means_of(node: DhtNode) -> Means:
    ours = ServiceParameters()
    return Means(
        identity=node.identity,
        dht=node.dht,
        inquiries=Inquiries(node.dht, Finder(node.dht, NETWORK)),
        holders=Holders(node.peer_id, node.dht, ours),
        shelf=Shelf(NETWORK, lambda *asked: None, lambda *asked: None),
        rng=random.Random(1),
        parameters=ours,
        own=lambda: node.contact,
        grant=lambda: b"",
        machine=lambda: None,
    )


@pytest.mark.at_length
def test_how_many_nodes_there_are_is_known_of_a_few_and_estimated_of_many() -> None:
    world = DhtWorld(seed=1)
    few = world.join(*(f"node{number}" for number in range(6)))
    world.elapse(10)
    assert means_of(few[0]).dht_size() == 6
    world.join(*(f"node{number}" for number in range(6, 60)))
    world.elapse(30)
    assert 35 <= means_of(world.nodes["node59"]).dht_size() <= 100


def test_a_claim_that_does_not_parse_spoils_no_other_of_the_answer() -> None:
    [node] = DhtWorld(seed=1).join("gate")
    means, good = means_of(node), seal_claim(BOB, claim_of(BOB))
    records = [(ALICE, b"no claim"), (BOB, good.raw)]
    given = tuple(kad.Provider(Contact(author.peer_id), raw) for author, raw in records)
    means.take("echo", [Answer(Contact(ALICE.peer_id), kad.Providers(given))], NOW)
    assert means.sight("echo").claims == {BOB.peer_id: good}


def test_a_worker_guards_so_many_replicas_and_no_more() -> None:
    [node] = DhtWorld(seed=1).join("gate")
    guards = Guards(means_of(node), lambda claim, rank, now: None)

    def guarded(number: int, state: ClaimState = ClaimState.READY) -> Claim:
        name, guardians = f"service-{number}", (node.peer_id,)
        return claim_of(ALICE, service=name, guardians=guardians, state=state)

    for number in range(MAX_GUARDS + 1):
        guards.noticed(guarded(number), NOW)
    assert guards.next_timeout() > NOW.mono_s  # they are not all asked at once
    for number in range(MAX_GUARDS):
        guards.noticed(guarded(number, ClaimState.GONE), NOW)
    assert guards.next_timeout() == float("inf")  # the last was one too many
    guards.noticed(guarded(MAX_GUARDS), NOW)
    assert guards.next_timeout() < NOW.mono_s + 10
