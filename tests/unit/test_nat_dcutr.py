"""Hole punching: its messages, and the exchanges of both sides."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.reach.core.dcutr import (
    ATTEMPTS,
    FIRST_RETRY_S,
    LAST_RETRY_S,
    MAX_MESSAGE_BYTES,
    MAX_READ_ADDRESSES,
    MAX_ROUND_TRIP_S,
    ROUND_S,
    Arrived,
    Began,
    Connect,
    DialAt,
    Dialled,
    Effect,
    Event,
    Failed,
    Listener,
    Message,
    NetworkChanged,
    OpenExchange,
    Reverse,
    Role,
    Say,
    State,
    Sync,
    Tick,
    pack,
    parse,
)
from tests.support.protobuf import integer, octets, varint

HERE, THERE = "/ip4/11.0.0.2/tcp/4001", "/ip4/11.0.0.3/tcp/4001"
addresses_drawn = st.builds(
    "/ip4/{}/tcp/{}".format, st.ip_addresses(v=4), st.integers(1, 65_535)
) | st.builds(
    "/ip6/{}/tcp/{}".format, st.ip_addresses(v=6, network="2000::/3"), st.integers(1, 65_535)
)


# -- messages -----------------------------------------------------------------------------------


def test_messages_are_those_of_the_specification() -> None:
    """As protoc writes them: HolePunch { type = 1 (CONNECT 100, SYNC 300); ObsAddrs = 2 }."""
    address = bytes([4, 11, 0, 0, 2, 6, 0x0F, 0xA1])
    assert pack(Connect((HERE,))) == b"\x08\x64\x12\x08" + address
    assert pack(Sync()) == b"\x08\xac\x02"
    assert parse(b"\x08\x64\x12\x08" + address) == Connect((HERE,))
    assert parse(b"\x08\xac\x02") == Sync()


def test_unknown_fields_and_unreadable_addresses_are_skipped() -> None:
    raw = (
        octets(2, b"\xff\xff")
        + integer(7, 1)
        + varint(3 << 3 | 1)
        + bytes(8)
        + varint(4 << 3 | 5)
        + bytes(4)
        + octets(9, b"of a newer version")
        + pack(Connect((HERE,)))
    )
    assert parse(raw) == Connect((HERE,))


def test_the_longest_message_is_read() -> None:
    one = pack(Connect((HERE,)))
    padding = octets(9, bytes(MAX_MESSAGE_BYTES - len(one) - 3))
    assert len(padding + one) == MAX_MESSAGE_BYTES
    assert parse(padding + one) == Connect((HERE,))


def test_of_many_addresses_the_first_are_read() -> None:
    many = tuple(f"/ip4/11.0.0.2/tcp/{port}" for port in range(1, 40))
    assert parse(pack(Connect(many))) == Connect(many[:MAX_READ_ADDRESSES])


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "of type 0"),
        (integer(1, 200), "of type 200"),
        (integer(1, 300) + octets(2, bytes(MAX_MESSAGE_BYTES)), "bytes"),
        (octets(2, b"abc")[:-1], "are not a message"),
        (varint(3 << 3 | 1) + bytes(7), "are not a message"),
        (varint(3 << 3 | 3), "are not a message"),
        (b"\x08\x80", "are not a message"),
        (b"\x08" + b"\xff" * 11, "are not a message"),
    ],
)
def test_what_is_no_message_is_a_violation(raw: bytes, why: str) -> None:
    with pytest.raises(ProtocolViolation, match=why):
        parse(raw)


@given(st.lists(addresses_drawn, max_size=MAX_READ_ADDRESSES))
def test_what_is_packed_is_parsed(addresses: list[str]) -> None:
    assert parse(pack(Connect(tuple(addresses)))) == Connect(tuple(addresses))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_violation(raw: bytes) -> None:
    try:
        parse(raw)
    except ProtocolViolation:
        return


# -- the listener -------------------------------------------------------------------------------


def to_exchange(listener: Listener, now_s: float) -> None:
    assert listener.handle(Tick(), now_s) == [Reverse()]
    assert listener.handle(Failed(), now_s) == [OpenExchange()]


def test_the_listener_reverses_first_and_then_punches_in_half_a_round_trip() -> None:
    listener = Listener(10.0)
    assert listener.handle(Tick(), 9.9) == []
    to_exchange(listener, 10.0)
    assert listener.handle(Began((HERE,)), 11.0) == [Say(Connect((HERE,)))]
    assert listener.handle(Arrived(Connect((THERE,))), 11.5) == [
        Say(Sync()),
        DialAt((THERE,), Role.SERVER, 11.75),
    ]
    assert listener.state is State.DIALLING


def test_a_round_trip_that_is_too_long_does_not_delay_the_dial_for_ever() -> None:
    listener = Listener(0.0)
    to_exchange(listener, 0.0)
    listener.handle(Began(()), 0.0)
    [_, dial] = listener.handle(Arrived(Connect(())), 60.0)
    assert dial == DialAt((), Role.SERVER, 60.0 + MAX_ROUND_TRIP_S / 2)


def test_a_round_has_three_exchanges_the_last_with_the_roles_swapped() -> None:
    listener = Listener(0.0)
    to_exchange(listener, 0.0)
    roles = []
    for attempt in range(1, ATTEMPTS + 1):
        listener.handle(Began((HERE,)), 0.0)
        [_, dial] = listener.handle(Arrived(Connect((THERE,))), 0.0)
        assert isinstance(dial, DialAt)
        roles.append(dial.role)
        again = listener.handle(Failed(), 0.0)
        assert again == ([OpenExchange()] if attempt < ATTEMPTS else [])
    assert roles == [Role.SERVER, Role.SERVER, Role.CLIENT]
    assert (listener.state, listener.at_s) == (State.WAITING, FIRST_RETRY_S)


def fail_round(listener: Listener, now_s: float) -> None:
    assert listener.handle(Tick(), now_s) == [Reverse()]
    for _ in range(ATTEMPTS):
        assert listener.handle(Failed(), now_s) == [OpenExchange()]
    assert listener.handle(Failed(), now_s) == []


def test_rounds_back_off_up_to_ten_minutes_and_begin_anew_with_the_network() -> None:
    listener = Listener(0.0)
    pauses = []
    now_s = 0.0
    for _ in range(7):
        fail_round(listener, now_s)
        pauses.append(listener.at_s - now_s)
        now_s = listener.at_s
    assert pauses == [30.0, 60.0, 120.0, 240.0, 480.0, LAST_RETRY_S, LAST_RETRY_S]
    fail_round(listener, now_s)
    assert listener.handle(NetworkChanged(), now_s + 1.0) == []
    assert listener.at_s == now_s + 1.0
    fail_round(listener, now_s + 1.0)
    assert listener.at_s == now_s + 1.0 + FIRST_RETRY_S


def test_a_network_that_changes_amid_a_round_lets_it_end() -> None:
    listener = Listener(0.0)
    to_exchange(listener, 0.0)
    listener.handle(NetworkChanged(), 0.0)
    assert (listener.state, listener.at_s) == (State.OPENING, math.inf)


def test_the_listener_takes_no_message_out_of_turn() -> None:
    listener = Listener(0.0)
    with pytest.raises(ProtocolViolation, match="waiting"):
        listener.handle(Arrived(Connect(())), 0.0)
    to_exchange(listener, 0.0)
    listener.handle(Began(()), 0.0)
    with pytest.raises(ProtocolViolation, match="Sync while asked"):
        listener.handle(Arrived(Sync()), 0.0)


# -- the side that dialled the circuit ----------------------------------------------------------


def exchange(dialled: Dialled, now_s: float) -> Role:
    assert dialled.handle(Began((HERE,)), now_s) == []
    assert dialled.handle(Arrived(Connect((THERE,))), now_s) == [Say(Connect((HERE,)))]
    [dial] = dialled.handle(Arrived(Sync()), now_s + 0.1)
    assert isinstance(dial, DialAt)
    assert (dial.addresses, dial.at_s) == ((THERE,), now_s + 0.1)
    return dial.role


def test_the_other_side_answers_and_dials_when_the_sync_comes() -> None:
    dialled = Dialled()
    assert exchange(dialled, 5.0) is Role.CLIENT
    assert dialled.handle(NetworkChanged(), 6.0) == []
    assert dialled.handle(Failed(), 6.0) == []
    assert dialled.state is State.WAITING


def test_it_swaps_the_roles_on_the_third_exchange_and_takes_no_fourth_in_a_round() -> None:
    dialled = Dialled()
    roles = [exchange(dialled, float(n)) for n in range(ATTEMPTS)]  # amid the dials of the last
    assert roles == [Role.CLIENT, Role.CLIENT, Role.SERVER]
    dialled.handle(Failed(), 4.0)
    with pytest.raises(ProtocolViolation, match="more than 3 exchanges"):
        dialled.handle(Began(()), 4.0)
    dialled.handle(Failed(), 4.0)
    assert exchange(dialled, ROUND_S) is Role.CLIENT


def test_it_takes_no_message_out_of_turn() -> None:
    dialled = Dialled()
    with pytest.raises(ProtocolViolation, match="Connect while waiting"):
        dialled.handle(Arrived(Connect(())), 0.0)
    dialled.handle(Began(()), 0.0)
    with pytest.raises(ProtocolViolation, match="Sync while opening"):
        dialled.handle(Arrived(Sync()), 0.0)
    with pytest.raises(ProtocolViolation, match="two exchanges"):
        dialled.handle(Began(()), 0.0)


# -- laws ---------------------------------------------------------------------------------------


@given(st.floats(0.0, 2.0), st.floats(0.0, 2.0), st.integers(1, ATTEMPTS))
def test_both_dial_at_once_where_the_ways_are_alike_and_in_two_roles(
    there_s: float, back_s: float, attempt: int
) -> None:
    """The skew is what the two directions differ by, halved."""
    listener, dialled = Listener(0.0), Dialled()
    to_exchange(listener, 0.0)
    now_s = 0.0
    for _ in range(attempt):
        [connect] = listener.handle(Began((HERE,)), now_s)
        assert isinstance(connect, Say)
        dialled.handle(Began((THERE,)), now_s + there_s)
        [reply] = dialled.handle(Arrived(connect.message), now_s + there_s)
        assert isinstance(reply, Say)
        now_s += there_s + back_s
        [sync, ours] = listener.handle(Arrived(reply.message), now_s)
        assert isinstance(sync, Say)
        [theirs] = dialled.handle(Arrived(sync.message), now_s + there_s)
        assert isinstance(ours, DialAt)
        assert isinstance(theirs, DialAt)
        assert ours.role is theirs.role.other
        assert abs(ours.at_s - theirs.at_s) == pytest.approx(abs(there_s - back_s) / 2)
        listener.handle(Failed(), now_s)


events_drawn = st.sampled_from(
    [
        Tick(),
        Failed(),
        Began((HERE,)),
        Arrived(Connect((THERE,))),
        Arrived(Sync()),
        NetworkChanged(),
    ]
)


def dials_of(machine: Listener | Dialled, events: list[tuple[Event, float]]) -> list[float]:
    """When it dials, fed as the host does: a violation ends the exchange."""
    dials: list[float] = []
    now_s = 0.0
    for event, later_s in events:
        now_s += later_s
        try:
            effects = machine.handle(event, now_s)
        except ProtocolViolation:
            effects = machine.handle(Failed(), now_s)
        dials += [now_s for effect in effects if isinstance(effect, DialAt)]
    return dials


@given(st.lists(st.tuples(events_drawn, st.floats(0.0, 3.0)), max_size=80))
def test_whatever_a_peer_sends_its_dials_are_bounded(events: list[tuple[Event, float]]) -> None:
    dials = dials_of(Dialled(), events)
    for first_s in dials:  # which may be the last of one round, and the next one follows
        within = [each for each in dials if first_s <= each < first_s + ROUND_S]
        assert len(within) <= 2 * ATTEMPTS


@given(st.lists(st.tuples(events_drawn, st.floats(0.0, 3.0)), max_size=80))
def test_the_listener_dials_only_at_the_end_of_its_own_exchanges(
    events: list[tuple[Event, float]],
) -> None:
    listener = Listener(0.0)
    asked = 0
    now_s = 0.0
    for event, later_s in events:
        now_s += later_s
        effects: list[Effect] = []
        try:
            effects = listener.handle(event, now_s)
        except ProtocolViolation:
            effects = listener.handle(Failed(), now_s)
        said: list[Message] = [effect.message for effect in effects if isinstance(effect, Say)]
        asked += sum(isinstance(message, Connect) for message in said)
        for effect in effects:
            if isinstance(effect, DialAt):
                asked -= 1
                assert Sync() in said
                assert now_s <= effect.at_s <= now_s + MAX_ROUND_TRIP_S / 2
        assert asked >= 0
