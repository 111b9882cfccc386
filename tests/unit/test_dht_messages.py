"""The DHT's messages, against bytes written by hand from the kad-dht specification.

Protobuf in short: a field begins with `number << 3 | kind`; kind 0 is a varint, kind 2 bytes
with their length before them.
"""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import peer_id_from_bytes, peer_id_to_bytes
from formation_p2p.core.keyspace import MAX_DEPTH, Key, key_to_bytes
from formation_p2p.dht.core import kad_pb2
from formation_p2p.dht.core.messages import (
    MAX_CLOSER,
    MAX_NAME_BYTES,
    MAX_NAMES,
    MAX_PROVIDERS,
    MAX_RECORDS,
    MAX_REQUIREMENTS_BYTES,
    MAX_VALUE_BYTES,
    Added,
    AddProvider,
    FindNode,
    GetProviders,
    GetValue,
    Nodes,
    Ping,
    Pong,
    Provider,
    ProviderQuery,
    Providers,
    PutValue,
    Reply,
    Request,
    ShardCount,
    Stored,
    Value,
    encode,
)
from formation_p2p.net.transport.frames import MAX_KAD_FRAME_BYTES
from formation_p2p.records.core.addresses import MAX_ADDRESSES
from tests.support import dht_world as world
from tests.support.dht_messages import parse_reply, parse_request
from tests.support.protobuf import integer, octets

ALICE, BOB = world.contact("alice"), world.contact("bob")
TYPES = {
    "PUT_VALUE": 0,
    "GET_VALUE": 1,
    "ADD_PROVIDER": 2,
    "GET_PROVIDERS": 3,
    "FIND_NODE": 4,
    "PING": 5,
}


def kind(name: str) -> bytes:
    """The type, field 1. As everywhere in proto3, a zero is left out."""
    return integer(1, TYPES[name]) if TYPES[name] else b""


def peer(contact: Contact, *more: bytes) -> bytes:
    """id = 1, addrs = 2."""
    [address] = contact.addresses
    _, _, host, _, port = address.split("/")
    raw = b"\x04" + bytes(map(int, host.split("."))) + b"\x06" + int(port).to_bytes(2, "big")
    return octets(1, peer_id_to_bytes(contact.peer_id)) + octets(2, raw) + b"".join(more)


def name_field(name: bytes) -> bytes:
    return octets(2, name)


RECORD, CLOSER, PROVIDER, QUERY, PROFILE = 3, 8, 9, 100, 100
MORE, ACKNOWLEDGED, SHARDS = 101, 102, 103
TARGET = Key(7)
COUNT = ShardCount(members=33, settled=9, shallower=2, deeper=300, depth=4, beyond=5)
COUNT_ON_THE_WIRE = octets(
    SHARDS, b"".join(integer(n, value) for n, value in enumerate((33, 300, 2, 4, 9, 5), start=1))
)
ANNOUNCED = AddProvider(b"name", Provider(ALICE, b"signed"), (b"other",), acknowledged=True)

NAME = name_field(b"name")
ADD, GET = kind("ADD_PROVIDER") + NAME, kind("GET_PROVIDERS") + NAME
ALICES = octets(PROVIDER, peer(ALICE, octets(PROFILE, b"signed")))
RECORD_ON_THE_WIRE = NAME + octets(RECORD, octets(1, b"name") + octets(2, b"signed"))

REQUESTS: list[tuple[Request, bytes]] = [
    (Ping(), kind("PING")),
    (FindNode(b"name"), kind("FIND_NODE") + NAME),
    (GetValue(b"name"), kind("GET_VALUE") + NAME),
    (GetProviders(b"name"), GET),
    (
        GetProviders(b"name", ProviderQuery(TARGET, b"cbor", 5)),
        GET + octets(QUERY, octets(1, key_to_bytes(TARGET)) + octets(2, b"cbor") + integer(3, 5)),
    ),
    (AddProvider(b"name", Provider(ALICE, b"signed")), ADD + ALICES),
    (ANNOUNCED, ADD + ALICES + octets(MORE, b"other") + integer(ACKNOWLEDGED, 1)),
    (PutValue(b"name", b"signed"), RECORD_ON_THE_WIRE),
]

REPLIES: list[tuple[Request, Reply, bytes]] = [
    (Ping(), Pong(), kind("PING")),
    (
        FindNode(b"name"),
        Nodes((ALICE, BOB)),
        kind("FIND_NODE") + octets(CLOSER, peer(ALICE)) + octets(CLOSER, peer(BOB)),
    ),
    (
        GetProviders(b"name"),
        Providers((Provider(ALICE, b"signed"),), (BOB,)),
        kind("GET_PROVIDERS") + octets(CLOSER, peer(BOB)) + ALICES,
    ),
    (GetProviders(b"name"), Providers((), (), COUNT), kind("GET_PROVIDERS") + COUNT_ON_THE_WIRE),
    (
        ANNOUNCED,
        Added((COUNT, ShardCount()), (BOB,)),
        kind("ADD_PROVIDER") + octets(CLOSER, peer(BOB)) + COUNT_ON_THE_WIRE + octets(SHARDS, b""),
    ),
    (
        GetValue(b"name"),
        Value(b"signed", (BOB,)),
        kind("GET_VALUE") + octets(RECORD, octets(2, b"signed")) + octets(CLOSER, peer(BOB)),
    ),
    (GetValue(b"name"), Value(None, ()), kind("GET_VALUE")),
    (PutValue(b"name", b"signed"), Stored(b"name", b"signed"), RECORD_ON_THE_WIRE),
]


@pytest.mark.parametrize(("request_", "wire"), REQUESTS)
def test_requests_are_written_and_read_as_the_specification_has_them(
    request_: Request, wire: bytes
) -> None:
    assert encode(request_) == wire
    assert parse_request(wire) == request_


@pytest.mark.parametrize(("request_", "reply", "wire"), REPLIES)
def test_replies_are_written_and_read_as_the_specification_has_them(
    request_: Request, reply: Reply, wire: bytes
) -> None:
    assert encode(reply) == wire
    assert parse_reply(wire, request_) == reply


def test_fields_that_we_do_not_know_are_skipped() -> None:
    # py-libp2p sends a sender's record as field 11, and a peer's signed one as its field 4.
    with_more = peer(BOB, integer(3, 1), octets(4, b"signed"))
    reply = kind("FIND_NODE") + octets(CLOSER, with_more) + octets(11, b"record")
    assert parse_reply(reply, FindNode(b"name")) == Nodes((BOB,))
    assert parse_request(integer(1, 5) + octets(666, b"news") + integer(15, 3)) == Ping()


def test_what_we_add_is_out_of_the_way_of_the_specifications_numbers() -> None:
    raw = encode(AddProvider(b"name", Provider(ALICE, b"signed")))
    assert b"\xa2\x06\x06signed" in raw  # field 100, and fields below 16 take one byte
    assert min(QUERY, PROFILE, MORE, ACKNOWLEDGED, SHARDS) >= 100


def test_what_others_send_lacks_what_we_add_and_is_good_without_it() -> None:
    add = ADD + octets(PROVIDER, peer(ALICE))
    assert parse_request(add) == AddProvider(b"name", Provider(ALICE), (), acknowledged=False)
    reply = kind("GET_PROVIDERS") + octets(PROVIDER, peer(ALICE))
    assert parse_reply(reply, GetProviders(b"name")) == Providers((Provider(ALICE),), (), None)


def test_what_is_too_much_is_cut_to_what_may_be() -> None:
    raw = kind("GET_PROVIDERS") + COUNT_ON_THE_WIRE + octets(SHARDS, integer(1, 1))
    assert parse_reply(raw, GetProviders(b"name")) == Providers((), (), COUNT)  # the first
    raw = kind("GET_PROVIDERS") + octets(SHARDS, integer(2, 1) + integer(4, (1 << 32) - 1))
    reported = parse_reply(raw, GetProviders(b"name"))
    assert reported == Providers((), (), ShardCount(deeper=1, depth=MAX_DEPTH))
    more = tuple(b"more %d" % number for number in range(MAX_NAMES + 5))
    raw = encode(AddProvider(b"name", Provider(ALICE), more))
    assert parse_request(raw) == AddProvider(b"name", Provider(ALICE), more[:MAX_NAMES])


@pytest.mark.parametrize("counts", [0, 1, 3])
def test_an_acknowledgement_has_one_count_for_each_name(counts: int) -> None:
    raw = kind("ADD_PROVIDER") + counts * COUNT_ON_THE_WIRE
    with pytest.raises(ProtocolViolation, match=f"{counts} counts for 2 names"):
        parse_reply(raw, ANNOUNCED)


FURTHER_KEY = "a further key of other than 1 to 128 bytes"


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"\xff", "not a DHT message"),
        (octets(RECORD, octets(5, b"\xff")), "not a DHT message"),  # timeReceived is text
        (kind("FIND_NODE"), "a key of 0 bytes"),
        (kind("FIND_NODE") + name_field(bytes(MAX_NAME_BYTES + 1)), "a key of 129 bytes"),
        (integer(1, 6) + NAME, "type 6"),
        (integer(1, (1 << 64) - 1) + NAME, "type -1"),
        (ADD, "0 providers"),
        (ADD + 2 * octets(PROVIDER, peer(ALICE)), "2 providers"),
        (ADD + octets(PROVIDER, octets(1, b"no id")), "0 providers"),
        (
            ADD + octets(PROVIDER, peer(ALICE, octets(PROFILE, bytes(MAX_VALUE_BYTES + 1)))),
            "a profile of 4097 bytes",
        ),
        (ADD + octets(PROVIDER, peer(ALICE)) + octets(MORE, b""), FURTHER_KEY),
        (
            ADD
            + octets(PROVIDER, peer(ALICE))
            + octets(MORE, b"good")
            + octets(MORE, bytes(MAX_NAME_BYTES + 1)),
            FURTHER_KEY,
        ),
        (NAME + octets(RECORD, octets(2, bytes(MAX_VALUE_BYTES + 1))), "a value of 4097 bytes"),
        (GET + octets(QUERY, octets(1, bytes(31))), "32 bytes, not 31"),
        (
            GET + octets(QUERY, octets(2, bytes(MAX_REQUIREMENTS_BYTES + 1))),
            "requirements of 2050 bytes",
        ),
    ],
)
def test_requests_that_the_protocol_does_not_allow_are_violations(raw: bytes, problem: str) -> None:
    with pytest.raises(ProtocolViolation, match=problem):
        parse_request(raw)


@pytest.mark.parametrize(
    ("request_", "asked", "answered"),
    [
        (PutValue(b"name", b""), 0, 1),
        (GetValue(b"name"), 1, 4),
        (ANNOUNCED, 2, 3),
        (GetProviders(b"name"), 3, 1),
        (FindNode(b"name"), 4, 5),
        (Ping(), 5, 0),
    ],
)
def test_a_reply_of_another_type_is_a_violation(
    request_: Request, asked: int, answered: int
) -> None:
    with pytest.raises(ProtocolViolation, match=f"type {answered} to a request of type {asked}"):
        parse_reply(integer(1, answered), request_)


def test_a_plain_add_provider_has_no_reply_whatever_comes() -> None:
    assert parse_reply(b"\xff", AddProvider(b"name", Provider(ALICE))) is None


@pytest.mark.parametrize(
    ("wanted", "given_"), [(0, 0), (5, 5), (MAX_RECORDS, MAX_RECORDS), (1 << 31, MAX_RECORDS)]
)
def test_a_query_gets_at_most_so_many_and_none_where_it_wants_only_the_count(
    wanted: int, given_: int
) -> None:
    query = octets(1, bytes(32)) + integer(3, wanted)
    parsed = parse_request(GET + octets(QUERY, query))
    assert parsed == GetProviders(b"name", ProviderQuery(Key(0), b"", given_))


def test_of_too_many_peers_the_first_are_read_and_of_their_addresses_too() -> None:
    address = octets(2, b"\x04\x0a\x00\x00\x01\x06\x0f\xa1")
    many = octets(1, peer_id_to_bytes(ALICE.peer_id)) + 50 * address
    raw = kind("GET_PROVIDERS") + 100 * octets(CLOSER, many) + 100 * octets(PROVIDER, many)
    reply = parse_reply(raw, GetProviders(b"name"))
    assert isinstance(reply, Providers)
    assert len(reply.closer) == MAX_CLOSER
    assert len(reply.providers) == MAX_PROVIDERS
    assert all(len(each.addresses) == MAX_ADDRESSES for each in reply.closer)


def test_a_peer_of_a_newer_kind_does_not_spoil_the_others() -> None:
    newer = octets(1, b"\x99" * 40)
    unreadable = octets(1, peer_id_to_bytes(ALICE.peer_id)) + octets(2, b"\xff\xff\x03")
    raw = kind("FIND_NODE") + b"".join(octets(CLOSER, p) for p in (newer, unreadable, peer(BOB)))
    assert parse_reply(raw, FindNode(b"name")) == Nodes((Contact(ALICE.peer_id), BOB))


def test_the_largest_messages_that_we_write_fit_into_a_frame() -> None:
    host = ".".join(["a" * 61] * 4)  # as long as a host's name may be
    addresses = tuple(f"/dns4/{host}/tcp/{port}" for port in range(MAX_ADDRESSES))
    largest = Contact(ALICE.peer_id, addresses)
    provider = Provider(largest, bytes(MAX_VALUE_BYTES))
    reply = Providers((provider,) * MAX_PROVIDERS, (largest,) * MAX_CLOSER)
    assert 200_000 < len(encode(reply)) <= MAX_KAD_FRAME_BYTES
    more = (bytes(MAX_NAME_BYTES),) * MAX_NAMES
    assert len(encode(AddProvider(more[0], provider, more, True))) <= MAX_KAD_FRAME_BYTES
    count = ShardCount(most := (1 << 32) - 1, most, most, most, MAX_DEPTH, most)
    added = Added((count,) * (MAX_NAMES + 1), (largest,) * MAX_CLOSER)
    assert len(encode(added)) <= MAX_KAD_FRAME_BYTES


names = st.binary(min_size=1, max_size=MAX_NAME_BYTES)
values = st.binary(max_size=64)
contacts = st.builds(
    Contact,
    # The last is of another implementation, by the SHA-256 of its key.
    st.sampled_from([ALICE.peer_id, BOB.peer_id, peer_id_from_bytes(b"\x12\x20" + bytes(32))]),
    st.lists(
        st.builds("/ip4/10.0.0.{}/tcp/{}".format, st.integers(0, 255), st.integers(0, 65535)),
        max_size=MAX_ADDRESSES,
    ).map(tuple),
)
closer = st.lists(contacts, max_size=MAX_CLOSER).map(tuple)
providers = st.builds(Provider, contacts, values)
queries = st.builds(
    ProviderQuery, st.integers(0, (1 << 256) - 1).map(Key), values, st.integers(0, MAX_PROVIDERS)
)
amounts = st.integers(0, (1 << 32) - 1)
counts = st.builds(
    ShardCount, amounts, amounts, amounts, amounts, st.integers(0, MAX_DEPTH), amounts
)
more_names = st.lists(names, max_size=8).map(tuple)


def names_each_once(write: AddProvider) -> bool:
    return len(set(write.names)) == len(write.names)


announced = st.builds(AddProvider, names, providers, more_names, st.just(True))
requests: st.SearchStrategy[Request] = st.one_of(
    st.just(Ping()),
    st.builds(FindNode, names),
    st.builds(GetProviders, names, st.none() | queries),
    st.builds(AddProvider, names, providers, more_names, st.booleans()).filter(names_each_once),
    st.builds(GetValue, names),
    st.builds(PutValue, names, values),
)
exchanges: st.SearchStrategy[tuple[Request, Reply]] = st.one_of(
    st.just((Ping(), Pong())),
    st.tuples(st.builds(FindNode, names), st.builds(Nodes, closer)),
    st.tuples(
        st.builds(GetProviders, names),
        st.builds(
            Providers,
            st.lists(providers, max_size=MAX_PROVIDERS).map(tuple),
            closer,
            st.none() | counts,
        ),
    ),
    announced.flatmap(
        lambda add: st.tuples(
            st.just(add),
            st.builds(
                Added,
                st.lists(counts, min_size=len(add.names), max_size=len(add.names)).map(tuple),
                closer,
            ),
        )
    ),
    st.tuples(st.builds(GetValue, names), st.builds(Value, st.none() | values, closer)),
    st.builds(PutValue, names, values).map(lambda put: (put, Stored(put.name, put.value))),
)


@given(requests)
def test_every_request_survives_the_wire(request_: Request) -> None:
    assert parse_request(encode(request_)) == request_


@given(exchanges)
def test_every_reply_survives_the_wire(exchange: tuple[Request, Reply]) -> None:
    request_, reply = exchange
    assert parse_reply(encode(reply), request_) == reply


# Bytes that are nearly messages: fields of the right numbers with junk in them.
fields = st.integers(1, 12) | st.integers(100, 105)
junk = st.recursive(
    st.binary(max_size=40),
    lambda inner: st.lists(
        st.one_of(
            st.builds(integer, fields, st.integers(0, (1 << 64) - 1)),
            st.builds(octets, fields, inner),
        ),
        max_size=5,
    ).map(b"".join),
    max_leaves=12,
)


@given(junk, requests)
def test_no_bytes_raise_anything_but_a_violation(raw: bytes, request_: Request) -> None:
    for each in (raw, *(integer(1, number) + raw for number in range(2, 6))):
        with contextlib.suppress(ProtocolViolation):
            parse_request(each)
        with contextlib.suppress(ProtocolViolation):
            parse_reply(each, request_)


@given(requests | exchanges.map(lambda exchange: exchange[1]), st.data())
def test_no_damage_raises_anything_but_a_violation(
    message: Request | Reply, data: st.DataObject
) -> None:
    raw = bytearray(encode(message))
    if raw:
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    with contextlib.suppress(ProtocolViolation):
        parse_request(bytes(raw))
    with contextlib.suppress(ProtocolViolation):
        parse_reply(bytes(raw), GetProviders(b"name"))


def test_a_peer_whose_id_is_absurdly_long_is_left_out_and_not_remembered() -> None:
    wire = kad_pb2.Message(type=kad_pb2.Message.FIND_NODE)
    wire.closerPeers.add(id=bytes(65), addrs=[bytes(6)])
    assert parse_reply(wire.SerializeToString(), FindNode(b"name")) == Nodes(())
