"""What a gate relays, for whom, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.nat.circuit_messages import UNLIMITED, Connect, Reserve, Reserved
from formation_p2p.core.nat.relay import (
    FOREIGN_LIMIT,
    Circuit,
    Refusal,
    Relay,
    RelayFor,
    RelayParameters,
)

GATE = Identity.from_seed(bytes(32))
GRANT = b"a grant"
SMALL = RelayParameters(
    max_reservations=3,
    max_foreign_reservations=2,
    max_circuits_of_member=3,
    max_foreign_circuits_of_peer=2,
    max_circuits_of_pair=2,
    max_circuits=5,
    max_foreign_circuits=4,
    max_counted=8,
)
UNHURRIED = replace(SMALL, request_burst=10_000)


def peer(number: int) -> PeerId:
    return Identity.from_seed(bytes([number] * 32)).peer_id


ALICE, BOB, CAROL, DAVE, ERIN = map(peer, range(1, 6))


def at(now_s: float) -> Moment:
    return Moment(now_s, 1_800_000_000 + now_s)


def gate(serves: RelayFor = RelayFor.MEMBERS, parameters: RelayParameters = UNHURRIED) -> Relay:
    return Relay(GATE, serves, lambda grant, _, __: grant == GRANT, parameters)


def reserve(
    relay: Relay, sender: PeerId, grant: bytes = GRANT, *, now_s: float = 0.0
) -> Reserved | Refusal:
    return relay.reserve(sender, Reserve(grant), (), at(now_s), relayed=False)


def connect(
    relay: Relay, sender: PeerId, to: PeerId, grant: bytes = GRANT, *, now_s: float = 0.0
) -> Circuit | Refusal:
    return relay.connect(sender, Connect(to, grant), at(now_s), relayed=False)


def test_a_member_reserves_and_is_connected_to_without_an_end() -> None:
    relay = gate()
    held = relay.reserve(ALICE, Reserve(GRANT), ("/ip4/192.0.2.1/tcp/1",), at(0), relayed=False)
    assert isinstance(held, Reserved)
    assert held.expires_unix_s == 1_800_003_600
    assert (held.addresses, held.limit) == (("/ip4/192.0.2.1/tcp/1",), UNLIMITED)
    circuit = connect(relay, BOB, ALICE)
    assert isinstance(circuit, Circuit)
    assert (circuit.source, circuit.target, circuit.limit) == (BOB, ALICE, UNLIMITED)
    assert (relay.reservations, relay.circuits, relay.circuits_of(ALICE)) == (1, 1, 1)
    relay.ended(circuit)
    assert (relay.circuits, relay.circuits_of(ALICE), relay.circuits_of(BOB)) == (0, 0, 0)


def test_who_shows_no_grant_neither_reserves_nor_connects() -> None:
    relay = gate()
    assert reserve(relay, ALICE, b"") is Refusal.NO_MEMBER
    reserve(relay, ALICE)
    assert connect(relay, BOB, ALICE, b"") is Refusal.NO_MEMBER
    assert relay.refused == {Refusal.NO_MEMBER: 2}


def test_where_anyone_may_foreigners_have_the_limits_of_the_specification() -> None:
    relay = gate(RelayFor.ANYONE)
    held = reserve(relay, ALICE, b"")
    assert isinstance(held, Reserved)
    assert held.limit == FOREIGN_LIMIT
    for sender, grant in ((BOB, b""), (CAROL, GRANT)):
        circuit = connect(relay, sender, ALICE, grant)
        assert isinstance(circuit, Circuit)
        assert circuit.limit == FOREIGN_LIMIT


def test_foreigners_do_not_take_the_places_of_members() -> None:
    relay = gate(RelayFor.ANYONE)
    reserve(relay, ALICE, b"")
    reserve(relay, BOB, b"")
    assert reserve(relay, CAROL, b"") is Refusal.TOO_MANY_RESERVATIONS
    assert isinstance(reserve(relay, CAROL), Reserved)
    assert reserve(relay, DAVE) is Refusal.TOO_MANY_RESERVATIONS
    assert isinstance(reserve(relay, CAROL), Reserved)  # its own, for longer


def test_nobody_reserves_for_another() -> None:
    relay = gate()
    for named, ends in ((BOB, Refusal.FOR_ANOTHER), (ALICE, None)):
        held = relay.reserve(ALICE, Reserve(GRANT, named), (), at(0), relayed=False)
        assert held is ends or (ends is None and isinstance(held, Reserved))
    assert not relay.is_reserved(BOB)


def test_there_is_no_hop_over_a_circuit() -> None:
    relay = gate()
    reserve(relay, ALICE)
    assert relay.reserve(BOB, Reserve(GRANT), (), at(0), relayed=True) is Refusal.RELAYED
    assert relay.connect(BOB, Connect(ALICE, GRANT), at(0), relayed=True) is Refusal.RELAYED


def test_a_reservation_ends_with_its_connection() -> None:
    relay = gate()
    reserve(relay, ALICE)
    relay.disconnected(ALICE)
    relay.disconnected(BOB)
    assert connect(relay, BOB, ALICE) is Refusal.NOT_RESERVED


def test_a_reservation_that_is_not_renewed_lapses() -> None:
    relay = gate()
    reserve(relay, ALICE)
    reserve(relay, BOB)
    reserve(relay, ALICE, now_s=1800)
    relay.tick(at(3600))
    assert relay.is_reserved(ALICE)
    assert not relay.is_reserved(BOB)
    assert connect(relay, BOB, ALICE, now_s=5401) is Refusal.NOT_RESERVED


def test_no_peer_is_connected_to_itself() -> None:
    relay = gate()
    reserve(relay, ALICE)
    assert connect(relay, ALICE, ALICE) is Refusal.NOT_RESERVED


def test_circuits_are_bounded_at_either_end_and_in_all() -> None:
    relay = gate()
    for target in (ALICE, BOB, CAROL):
        reserve(relay, target)
    of_dave = [connect(relay, DAVE, target) for target in (ALICE, BOB, CAROL)]
    assert connect(relay, DAVE, ALICE) is Refusal.TOO_MANY_OF_SENDER
    for _ in range(2):
        assert isinstance(connect(relay, ERIN, ALICE), Circuit)
    assert connect(relay, peer(9), ALICE) is Refusal.TOO_MANY_OF_PEER
    assert connect(relay, peer(9), BOB) is Refusal.TOO_MANY
    assert isinstance(of_dave[2], Circuit)
    relay.ended(of_dave[2])
    assert isinstance(connect(relay, peer(9), BOB), Circuit)


def test_a_foreigner_has_fewer_circuits() -> None:
    relay = gate(RelayFor.ANYONE)
    reserve(relay, ALICE)
    assert isinstance(connect(relay, BOB, ALICE, b""), Circuit)
    assert isinstance(connect(relay, BOB, ALICE, b""), Circuit)
    assert connect(relay, BOB, ALICE, b"") is Refusal.TOO_MANY_OF_SENDER
    reserve(relay, CAROL, b"")
    connect(relay, DAVE, CAROL)
    connect(relay, DAVE, CAROL)
    assert connect(relay, ERIN, CAROL) is Refusal.TOO_MANY_OF_PEER


def test_one_peer_does_not_take_all_circuits_of_another() -> None:
    relay = gate()
    reserve(relay, ALICE)
    first = connect(relay, BOB, ALICE)
    assert isinstance(first, Circuit)
    assert isinstance(connect(relay, BOB, ALICE), Circuit)
    assert connect(relay, BOB, ALICE) is Refusal.TOO_MANY_OF_PAIR
    assert isinstance(connect(relay, CAROL, ALICE), Circuit)
    relay.ended(first)
    assert isinstance(connect(relay, BOB, ALICE), Circuit)


def test_foreigners_leave_circuits_of_a_member_to_members() -> None:
    relay = gate(RelayFor.ANYONE)
    reserve(relay, ALICE)
    foreign = [connect(relay, sender, ALICE, b"") for sender in (BOB, CAROL)]
    assert connect(relay, DAVE, ALICE, b"") is Refusal.TOO_MANY_OF_PEER
    assert isinstance(connect(relay, ERIN, ALICE), Circuit)
    assert isinstance(foreign[0], Circuit)
    relay.ended(foreign[0])
    assert connect(relay, DAVE, ALICE) is not Refusal.TOO_MANY_OF_PEER


def test_foreigners_leave_circuits_of_a_gate_to_members() -> None:
    relay = gate(RelayFor.ANYONE)
    for target in (ALICE, BOB, CAROL):
        reserve(relay, target)
    for source, target in ((DAVE, ALICE), (DAVE, BOB), (ERIN, ALICE), (ERIN, BOB)):
        assert isinstance(connect(relay, source, target, b""), Circuit)
    assert connect(relay, peer(9), CAROL, b"") is Refusal.TOO_MANY
    assert isinstance(connect(relay, peer(9), CAROL), Circuit)


def test_requests_come_at_a_rate() -> None:
    """Refused before a grant is read, which takes a millisecond for one that is foreign."""
    read: list[bytes] = []

    def admits(grant: bytes, _: PeerId, __: Moment) -> bool:
        read.append(grant)
        return False

    relay = Relay(GATE, RelayFor.MEMBERS, admits, SMALL)
    asked = [reserve(relay, ALICE, b"?") for _ in range(1000)]
    assert len(read) == SMALL.request_burst
    assert asked.count(Refusal.TOO_FAST) == 1000 - SMALL.request_burst
    assert reserve(relay, BOB, b"?") is Refusal.NO_MEMBER
    assert reserve(relay, ALICE, b"?", now_s=0.5) is Refusal.NO_MEMBER
    assert reserve(relay, ALICE, b"?", now_s=0.5) is Refusal.TOO_FAST


def test_of_strangers_that_come_and_go_the_latest_are_remembered() -> None:
    relay = gate(parameters=replace(SMALL, request_burst=1))
    assert reserve(relay, ALICE, b"") is Refusal.NO_MEMBER
    assert reserve(relay, ALICE, b"") is Refusal.TOO_FAST
    for number in range(10, 18):
        reserve(relay, peer(number), b"")
    assert reserve(relay, ALICE, b"") is Refusal.NO_MEMBER


PEERS = [peer(number) for number in range(1, 7)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["reserve", "connect", "end", "leave", "wait"]),
            st.sampled_from(PEERS),
            st.sampled_from(PEERS),
            st.booleans(),
            st.booleans(),
        ),
        max_size=80,
    ),
    st.sampled_from(RelayFor),
)
def test_whatever_is_asked_the_bounds_hold(
    steps: list[tuple[str, PeerId, PeerId, bool, bool]], serves: RelayFor
) -> None:
    relay, now_s, circuits = gate(serves), 0.0, list[Circuit]()
    for what, one, other, member, relayed in steps:
        shown = GRANT if member else b""
        if what == "reserve":
            held = relay.reserve(one, Reserve(shown), (), at(now_s), relayed=relayed)
            may = (member or serves is RelayFor.ANYONE) and not relayed
            assert may or isinstance(held, Refusal)
        elif what == "connect":
            there = relay.is_reserved(other)
            circuit = relay.connect(one, Connect(other, shown), at(now_s), relayed=relayed)
            if isinstance(circuit, Circuit):
                assert there
                assert not relayed
                circuits.append(circuit)
        elif what == "end" and circuits:
            relay.ended(circuits.pop())
        elif what == "leave":
            relay.disconnected(one)
        elif what == "wait":
            now_s += 1000
        assert relay.reservations <= SMALL.max_reservations
        assert relay.circuits == len(circuits) <= SMALL.max_circuits
        for each in PEERS:
            ends = sum((c.source == each) + (c.target == each) for c in circuits)
            assert relay.circuits_of(each) == ends <= SMALL.max_circuits_of_member


@pytest.mark.parametrize("refusal", Refusal)
def test_every_refusal_has_a_status_and_words(refusal: Refusal) -> None:
    assert refusal.status >= 200
    assert refusal.words
