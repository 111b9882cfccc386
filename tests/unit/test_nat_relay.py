"""What a gate relays, for whom, and what it refuses."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.dht.core.reachability import Reach
from formation_p2p.reach.core.circuit_messages import UNLIMITED, Connect, Reserve, Reserved
from formation_p2p.reach.core.relay import (
    FOREIGN_LIMIT,
    Circuit,
    Refusal,
    Relay,
    RelayFor,
    RelayParameters,
)
from formation_p2p.reach.core.reservations import (
    NEVER_S,
    CircuitsChanged,
    ReservationEffect,
    ReservationParameters,
    Reservations,
    ReserveAt,
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
    assert isinstance(of_dave[2], Circuit)
    relay.ended(of_dave[2])
    for sender in (ERIN, peer(9)):
        assert isinstance(connect(relay, sender, ALICE), Circuit)
    assert connect(relay, peer(8), ALICE) is Refusal.TOO_MANY_OF_PEER
    last = connect(relay, ERIN, BOB)
    assert isinstance(last, Circuit)
    assert connect(relay, peer(9), CAROL) is Refusal.TOO_MANY
    relay.ended(last)
    assert isinstance(connect(relay, peer(9), CAROL), Circuit)
    assert not relay.displaced


def test_peers_that_have_many_circuits_keep_none_from_a_peer_nor_from_the_gate() -> None:
    """Few ids would otherwise take all that the far end may have, and all that there are."""
    relay = gate()
    for target in (ALICE, BOB):
        reserve(relay, target)
    erins = [connect(relay, ERIN, target) for target in (ALICE, ALICE, BOB)]
    assert isinstance(connect(relay, DAVE, ALICE), Circuit)
    assert isinstance(connect(relay, CAROL, ALICE), Circuit)  # all that alice may have
    assert relay.displaced == [erins[0]]
    assert connect(relay, ERIN, ALICE) is Refusal.TOO_MANY_OF_PEER
    daves = [connect(relay, DAVE, BOB) for _ in range(2)]
    assert isinstance(daves[0], Circuit)
    assert daves[1] is Refusal.TOO_MANY
    assert isinstance(connect(relay, peer(9), BOB), Circuit)  # all that the gate has
    assert relay.displaced[1:] == [erins[1]]
    # Its end comes later, and is counted once.
    assert isinstance(erins[1], Circuit)
    relay.ended(erins[1])
    assert (relay.circuits, relay.circuits_of(ERIN)) == (5, 1)


def test_foreigners_displace_foreigners_alone() -> None:
    relay = gate(RelayFor.ANYONE)
    reserve(relay, ALICE)
    connect(relay, DAVE, ALICE)
    connect(relay, DAVE, ALICE)
    assert isinstance(connect(relay, BOB, ALICE, b""), Circuit)
    assert connect(relay, CAROL, ALICE, b"") is Refusal.TOO_MANY_OF_PEER
    reserve(relay, ERIN)
    assert isinstance(connect(relay, BOB, ERIN, b""), Circuit)
    assert isinstance(connect(relay, CAROL, ERIN, b""), Circuit)
    assert connect(relay, CAROL, ERIN, b"") is Refusal.TOO_MANY_OF_PEER


def test_a_foreigner_has_fewer_circuits() -> None:
    relay = gate(RelayFor.ANYONE)
    reserve(relay, ALICE)
    assert isinstance(connect(relay, BOB, ALICE, b""), Circuit)
    assert isinstance(connect(relay, BOB, ALICE, b""), Circuit)
    assert connect(relay, BOB, ALICE, b"") is Refusal.TOO_MANY_OF_SENDER
    reserve(relay, CAROL, b"")
    for sender in (DAVE, ERIN):
        connect(relay, sender, CAROL)
    assert connect(relay, peer(9), CAROL) is Refusal.TOO_MANY_OF_PEER


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
    assert isinstance(connect(relay, DAVE, ALICE, b""), Circuit)


def test_foreigners_leave_circuits_of_a_gate_to_members() -> None:
    relay = gate(RelayFor.ANYONE)
    for target in (ALICE, BOB, CAROL):
        reserve(relay, target)
    for source, target in ((DAVE, ALICE), (ERIN, BOB), (peer(6), ALICE), (peer(7), BOB)):
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
                circuits = [each for each in circuits if each not in relay.displaced]
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


# At which gates a node is reachable: two, for as long as it needs them, whatever they do.


LIMITS = ReservationParameters()
HOUR_S = 3600


ME = peer(99)
GATES = [Contact(peer(n), (f"/ip4/192.0.2.{n}/tcp/4001",)) for n in range(1, 4)]


def asked(effects: Iterable[ReservationEffect]) -> list[PeerId]:
    return [effect.gate.peer_id for effect in effects if isinstance(effect, ReserveAt)]


def circuits(effects: Iterable[ReservationEffect]) -> list[tuple[str, ...]]:
    return [effect.addresses for effect in effects if isinstance(effect, CircuitsChanged)]


def circuit_of(gate: PeerId) -> str:
    [address] = next(each.addresses for each in GATES if each.peer_id == gate)
    return f"{address}/p2p/{gate}/p2p-circuit"


def said(now_s: float, holds_s: float = HOUR_S) -> Reserved:
    return Reserved(int(1_800_000_000 + now_s + holds_s))


class World:
    """A node that others cannot dial, and its gates."""

    def __init__(self, gates: int = 2, reach: Reach = Reach.CLIENT) -> None:
        self.reservations = Reservations(ME)
        self.effects = self.reservations.began(GATES[:gates], at(0))
        self.effects += self.reservations.reached(reach, at(0))

    def holding(self) -> list[PeerId]:
        """It holds a reservation at each gate that it asked."""
        names = asked(self.effects)
        for name in names:
            self.effects += self.reservations.reserved(name, said(0), at(0))
        return names


def test_a_client_reserves_at_two_gates_and_says_where_it_is() -> None:
    world = World(gates=3)
    one, two = world.holding()
    assert circuits(world.effects) == [(circuit_of(one),), (circuit_of(one), circuit_of(two))]
    assert world.reservations.holds(one, at(10))
    assert not world.reservations.holds(peer(50), at(10))
    assert world.reservations.at_s == HOUR_S / 2


def test_who_does_not_know_its_reach_waits_for_it() -> None:
    world = World(reach=Reach.UNKNOWN)
    assert world.effects == []
    assert world.reservations.reached(Reach.UNKNOWN, at(1)) == []
    assert world.reservations.at_s == LIMITS.unknown_s
    assert len(asked(world.reservations.tick(at(LIMITS.unknown_s)))) == 2


def test_who_can_be_dialled_reserves_nowhere() -> None:
    world = World(reach=Reach.SERVER)
    assert world.effects == []
    assert world.reservations.at_s == NEVER_S
    assert not world.reservations.needed


def test_who_comes_to_be_dialled_tells_of_no_circuit_and_takes_those_that_come() -> None:
    world = World()
    one, _ = world.holding()
    effects = world.reservations.reached(Reach.SERVER, at(10))
    assert circuits(effects) == [()]
    assert world.reservations.holds(one, at(11))
    assert asked(world.reservations.tick(at(HOUR_S / 2))) == []
    assert not world.reservations.holds(one, at(HOUR_S + 1))


def test_a_reservation_is_renewed_in_half_of_its_time() -> None:
    world = World()
    one, two = world.holding()
    assert asked(world.reservations.tick(at(HOUR_S / 2 - 1))) == []
    effects = world.reservations.tick(at(HOUR_S / 2))
    assert set(asked(effects)) == {one, two}
    assert circuits(effects) == []
    assert world.reservations.tick(at(HOUR_S / 2 + 1)) == []  # they were asked
    world.reservations.reserved(one, said(HOUR_S / 2), at(HOUR_S / 2))
    effects = world.reservations.refused(two, at(HOUR_S / 2))
    assert effects == []  # it holds for another half
    effects = world.reservations.tick(at(HOUR_S))
    assert circuits(effects) == [(circuit_of(one),)]


def test_where_the_connection_breaks_it_reserves_at_once() -> None:
    world = World()
    one, two = world.holding()
    effects = world.reservations.disconnected(one, at(100))
    assert asked(effects) == [one]
    assert circuits(effects) == [(circuit_of(two),)]
    effects = world.reservations.reserved(one, said(100), at(100))
    assert circuits(effects) == [(circuit_of(one), circuit_of(two))]
    assert world.reservations.disconnected(peer(50), at(100)) == []


def test_a_third_gate_takes_the_place_of_one_that_is_gone() -> None:
    world = World(gates=3)
    one, two = world.holding()
    world.reservations.disconnected(one, at(100))
    [third] = asked(world.reservations.unreachable(one, at(101)))
    assert third not in (one, two)
    effects = world.reservations.reserved(third, said(102), at(102))
    assert len(circuits(effects)[0]) == 2
    assert asked(world.reservations.tick(at(103))) == []  # two are enough


def test_a_gate_that_does_not_answer_is_asked_again_for_ever() -> None:
    world, now_s, waits = World(gates=1), 0.0, []
    [gate] = asked(world.effects)
    for _ in range(60):
        world.reservations.unreachable(gate, at(now_s))
        waits.append(world.reservations.at_s - now_s)
        now_s = world.reservations.at_s
        assert asked(world.reservations.tick(at(now_s))) == [gate]
    assert waits[0] < 0.5
    assert all(wait < 5 for wait in waits[:30])  # back within seconds of its restart
    assert LIMITS.patient_retry_s <= waits[-1] <= LIMITS.patient_retry_s * 1.25
    world.reservations.reserved(gate, said(now_s), at(now_s))
    world.reservations.disconnected(gate, at(now_s + 1))
    world.reservations.unreachable(gate, at(now_s + 1))
    assert world.reservations.at_s - now_s - 1 < 0.5


def test_a_gate_that_refuses_is_asked_more_rarely() -> None:
    world, now_s = World(gates=1), 0.0
    [gate] = asked(world.effects)
    for _ in range(9):
        assert world.reservations.refused(gate, at(now_s)) == []
        assert world.reservations.at_s - now_s >= LIMITS.refused_retry_s
        now_s = world.reservations.at_s
        world.reservations.tick(at(now_s))
    world.reservations.refused(gate, at(now_s))
    assert world.reservations.at_s - now_s <= LIMITS.last_refused_retry_s * 1.25


def test_a_reservation_that_is_over_at_once_is_a_lie() -> None:
    world = World(gates=1)
    [gate] = asked(world.effects)
    assert world.reservations.reserved(gate, said(0, holds_s=5), at(0)) == []
    assert not world.reservations.holds(gate, at(1))
    assert world.reservations.at_s >= LIMITS.refused_retry_s


def test_a_reservation_for_a_year_is_renewed_within_hours() -> None:
    world = World(gates=1)
    [gate] = asked(world.effects)
    world.reservations.reserved(gate, said(0, holds_s=365 * 86_400), at(0))
    assert world.reservations.at_s == LIMITS.most_s / 2


def test_a_gate_that_was_met_serves_as_well() -> None:
    world = World(gates=0)
    assert world.effects == []
    met = GATES[0]
    assert asked(world.reservations.met(met, at(1))) == [met.peer_id]
    moved = Contact(met.peer_id, ("/ip4/192.0.2.77/tcp/4001",))
    world.reservations.met(moved, at(2))
    effects = world.reservations.reserved(met.peer_id, said(2), at(2))
    assert circuits(effects) == [(f"{moved.addresses[0]}/p2p/{met.peer_id}/p2p-circuit",)]


def test_where_a_gate_of_the_network_is_dialled_is_for_the_network_to_say() -> None:
    world = World(gates=1)
    [gate] = asked(world.effects)
    world.reservations.met(Contact(gate, ("/ip4/192.0.2.77/tcp/4001",)), at(1))
    effects = world.reservations.reserved(gate, said(1), at(1))
    assert circuits(effects) == [(circuit_of(gate),)]


def test_gates_that_are_met_are_bounded() -> None:
    world = World(gates=0)
    for number in range(1, 60):
        world.reservations.met(Contact(peer(number), (f"/ip4/192.0.2.{number}/tcp/1",)), at(1))
    unknown = peer(59)
    assert world.reservations.reserved(unknown, said(1), at(1)) == []
    assert world.reservations.refused(unknown, at(1)) == []
    assert world.reservations.unreachable(unknown, at(1)) == []
    assert not world.reservations.holds(unknown, at(1))


def test_strangers_serve_only_while_no_gate_of_the_network_does() -> None:
    world = World(gates=1)
    node, (own, near, other) = world.reservations, GATES
    for stranger in (near, other):
        assert asked(node.met(stranger, at(0))) == []  # its own is asked
    node.reserved(own.peer_id, said(0), at(0))
    assert asked(node.tick(at(1))) == []  # and serves
    node.disconnected(own.peer_id, at(2))
    strangers = asked(node.unreachable(own.peer_id, at(3)))
    assert set(strangers) == {near.peer_id, other.peer_id}
    effects = [effect for each in strangers for effect in node.reserved(each, said(3), at(3))]
    assert circuits(effects)[-1] == tuple(map(circuit_of, strangers))
    assert asked(node.tick(at(node.at_s))) == [own.peer_id]  # although two others serve
    effects = node.reserved(own.peer_id, said(5), at(5))
    assert circuits(effects) == [(circuit_of(own.peer_id),)]
    assert asked(node.tick(at(5 + HOUR_S / 2))) == [own.peer_id]  # no more of strangers


def test_a_gate_that_was_met_and_fails_goes_for_the_next_one() -> None:
    node = Reservations(ME, ReservationParameters(max_gates=2))
    node.began((), at(0))
    node.reached(Reach.CLIENT, at(0))
    one, two, three = GATES
    assert asked(node.met(one, at(0)) + node.met(two, at(0))) == [one.peer_id, two.peer_id]
    assert node.met(three, at(1)) == []
    node.reserved(two.peer_id, said(1), at(1))
    node.refused(one.peer_id, at(1))
    assert asked(node.met(three, at(2))) == [three.peer_id]
    assert node.reserved(one.peer_id, said(2), at(2)) == []
    assert node.holds(two.peer_id, at(2))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["yes", "lie", "no", "silent", "break", "wait", "server", "client", "meet"]
        ),
        st.sampled_from(GATES),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 3))
def test_whatever_gates_do_the_node_is_bound_to_two_and_goes_on(
    steps: list[tuple[str, Contact]], gates: int
) -> None:
    world, now_s = World(gates=gates), 0.0
    open_asks: set[PeerId] = set(asked(world.effects))
    told: tuple[str, ...] = ()
    node = world.reservations
    for what, gate in steps:
        name = gate.peer_id
        effects: list[ReservationEffect] = []
        if what in ("yes", "lie", "no", "silent") and name in open_asks:
            open_asks.remove(name)
            if what in ("yes", "lie"):
                holds_s = HOUR_S if what == "yes" else -1
                effects = node.reserved(name, said(now_s, holds_s), at(now_s))
            elif what == "no":
                effects = node.refused(name, at(now_s))
            else:
                effects = node.unreachable(name, at(now_s))
        elif what == "break":
            effects = node.disconnected(name, at(now_s))
        elif what == "wait":
            now_s = max(now_s, min(node.at_s, now_s + HOUR_S))
            effects = node.tick(at(now_s))
        elif what in ("server", "client"):
            effects = node.reached(Reach(what), at(now_s))
        elif what == "meet":
            effects = node.met(gate, at(now_s))
        new = asked(effects)
        assert open_asks.isdisjoint(new)  # one answer is waited for
        open_asks.update(new)
        for addresses in circuits(effects):
            assert addresses != told
            told = addresses
        assert len(told) <= 2
        held = {circuit_of(g.peer_id) for g in GATES if node.holds(g.peer_id, at(now_s))}
        assert set(told) <= held
        assert node.needed or told == ()
        if node.needed and len(told) < 2:  # then it waits for a gate, or for a time
            assert open_asks or node.at_s < NEVER_S
