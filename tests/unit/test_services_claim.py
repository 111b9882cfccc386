"""Claims: signed, bounded, and which of two counts."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import (
    BadRecord,
    ExpiredRecord,
    ForgedRecord,
    InvalidInput,
    MalformedRecord,
)
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.operations import Answer
from formation_p2p.discovery.core.finder import Finder
from formation_p2p.features.services.core.claim import (
    CLAIM_PAYLOAD_TYPE,
    CLAIM_TTL_S,
    Claim,
    ClaimState,
    _pack,
    open_claim,
    seal_claim,
    wins,
)
from formation_p2p.features.services.core.guards import MAX_GUARDS, Guards
from formation_p2p.features.services.core.holders import Holders
from formation_p2p.features.services.core.means import Inquiries, Means
from formation_p2p.features.services.core.parameters import ServiceParameters
from formation_p2p.features.services.core.shelf import Shelf
from formation_p2p.records.core import codec
from formation_p2p.records.core.envelope import seal
from tests.support.dht_world import NETWORK, DhtNode, DhtWorld
from tests.support.services_world import NOW, claim_of, person

ALICE, BOB = person("alice"), person("bob")
LATER_S = NOW.unix_s + CLAIM_TTL_S


def test_what_is_sealed_opens_as_it_was() -> None:
    claim = claim_of(
        ALICE,
        addresses=("/ip4/192.0.2.1/tcp/4001",),
        guardians=(BOB.peer_id,),
        outstanding=3,
        capacity=16,
        services_held=2,
    )
    signed = seal_claim(ALICE, claim)
    assert open_claim(signed.raw, NOW.unix_s) == signed
    assert signed.claim == claim
    assert claim.is_live


def test_a_claim_that_has_expired_is_history_for_a_while() -> None:
    raw = seal_claim(ALICE, claim_of(ALICE)).raw
    with pytest.raises(ExpiredRecord, match="0 s ago"):
        open_claim(raw, LATER_S)
    assert not open_claim(raw, LATER_S, late_s=10).claim.is_fresh(LATER_S)
    with pytest.raises(ExpiredRecord):
        open_claim(raw, LATER_S + 10, late_s=10)
    with pytest.raises(ExpiredRecord, match="ahead"):
        open_claim(raw, NOW.unix_s - 100)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("service", "Not A Name"),
        ("digest", b"short"),
        ("slot", -1),
        ("epoch", -1),
        ("outstanding", -1),
        ("capacity", -1),
        ("services_held", -1),
        ("addresses", ("/ip4/192.0.2.1/tcp/1",) * 9),
        ("guardians", (BOB.peer_id,) * 4),
        ("grant", bytes(2049)),
    ],
)
def test_a_bad_field_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput):
        claim_of(ALICE, **{field: value})


def test_only_ones_own_claim_is_sealed_for_a_life_that_is_allowed() -> None:
    with pytest.raises(InvalidInput, match="peer_id"):
        seal_claim(BOB, claim_of(ALICE))
    with pytest.raises(InvalidInput, match="expires"):
        seal_claim(ALICE, claim_of(ALICE, expires_unix_s=int(LATER_S) + 1))
    address = "/dns/" + ".".join(("x" * 60,) * 4) + "/tcp/1"
    with pytest.raises(InvalidInput, match="announce fewer"):
        seal_claim(ALICE, claim_of(ALICE, addresses=(address,) * 8, grant=bytes(2048)))


def forged(claim: Claim, **changes: Any) -> bytes:
    """The claim by number of its fields, signed by alice whatever it says."""
    row = _pack(claim)
    for number, value in changes.items():
        row[int(number.removeprefix("f"))] = value
    return seal(ALICE, "formation-service-claim", CLAIM_PAYLOAD_TYPE, codec.encode(row))


def test_what_another_says_is_checked() -> None:
    with pytest.raises(ForgedRecord):
        open_claim(forged(claim_of(BOB)), NOW.unix_s)
    for change in ({"f6": 4}, {"f10": "quantum"}, {"f4": 10**6}, {"f2": b""}):
        with pytest.raises(MalformedRecord):
            open_claim(forged(claim_of(ALICE), **change), NOW.unix_s)
    with pytest.raises(ExpiredRecord, match="longer"):
        open_claim(forged(claim_of(ALICE), f9=int(LATER_S) + 50), NOW.unix_s)


@given(st.binary(max_size=300))
def test_no_bytes_but_a_bad_record_come_of_noise(raw: bytes) -> None:
    with pytest.raises(BadRecord):
        open_claim(raw, NOW.unix_s)


states = st.sampled_from(list(ClaimState))


@given(states, states, st.integers(1, 3), st.integers(1, 3))
def test_of_two_claims_of_a_slot_exactly_one_counts(
    a: ClaimState, b: ClaimState, version_a: int, version_b: int
) -> None:
    first = claim_of(ALICE, state=a, version=version_a, grant=b"")
    second = claim_of(BOB, state=b, version=version_b, grant=b"")
    assert wins(first, second) != wins(second, first)
    if (a, b) == (ClaimState.READY, ClaimState.JOINING):
        assert wins(first, second)
    if a == b and version_a > version_b:
        assert wins(first, second)


# What the parts of the services part share: guesses of how many there are, claims, guards.


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
