"""AutoNAT v2: which address is dialled for whom, at what cost, and what is believed of it."""

import ipaddress
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.reach.core import autonat as messages
from formation_p2p.reach.core.autonat import (
    MAX_DATA_BYTES,
    MAX_NONCES,
    MIN_CHUNK_BYTES,
    MIN_DATA_BYTES,
    DialBack,
    DialBackServer,
    DialDataRequest,
    DialRequest,
    DialResponse,
    DialStatus,
    Nonces,
    Status,
    enough,
    verdict,
    wants_data,
)
from tests.support.dht_world import person
from tests.support.protobuf import integer, octets

ALICE, BOB = person("alice").peer_id, person("bob").peer_id
SEEN = "11.0.0.2"
HERE = f"/ip4/{SEEN}/tcp/4001"
ELSEWHERE = "/ip4/11.0.0.3/tcp/4001"
BOTH = (4, 6)
REFUSED = DialResponse(Status.DIAL_REFUSED)
REJECTED = DialResponse(Status.REQUEST_REJECTED)


def server() -> DialBackServer:
    return DialBackServer(random.Random(1))


def asked(
    *addresses: str | None, seen: str | None = SEEN, families: tuple[int, ...] = BOTH
) -> DialBack | DialResponse:
    return server().asked(ALICE, DialRequest(addresses, 7), seen, families, 0.0)


def test_where_a_peer_comes_from_is_dialled_at_once() -> None:
    assert asked(HERE) == DialBack(0, HERE, 0, 7)
    whole = f"{HERE}/p2p/{ALICE}"
    assert asked(whole) == DialBack(0, whole, 0, 7)
    assert asked("/ip4/10.0.0.9/tcp/1", seen="10.0.0.9") == DialBack(0, "/ip4/10.0.0.9/tcp/1", 0, 7)


def test_a_dial_elsewhere_costs_more_than_it_does_there() -> None:
    for families in (BOTH, (4,)):
        chosen = asked(ELSEWHERE, families=families)
        assert isinstance(chosen, DialBack)
        assert MIN_DATA_BYTES <= chosen.data_bytes <= MAX_DATA_BYTES
    over_a_circuit = asked(HERE, seen=None)
    assert isinstance(over_a_circuit, DialBack)
    assert over_a_circuit.data_bytes >= MIN_DATA_BYTES


def test_exactly_one_is_dialled_the_first_that_may_be() -> None:
    assert asked(None, "/ip4/10.0.0.1/tcp/1", HERE, ELSEWHERE) == DialBack(2, HERE, 0, 7)


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/10.0.0.1/tcp/4001",  # of our own network
        "/ip4/127.0.0.1/tcp/22",
        "/ip4/169.254.1.1/tcp/80",
        "/ip6/fe80::1/tcp/80",
        "/ip6/fd00::1/tcp/80",
        "/ip4/224.0.0.251/tcp/80",
        "/ip4/0.0.0.0/tcp/80",
        f"/ip4/{SEEN}/tcp/0",
        f"/ip4/{SEEN}/udp/4001",
        f"/ip4/{SEEN}/tcp/4001/ws",
        f"/ip4/{SEEN}/tcp/4001/p2p/{BOB}",  # another peer there
        f"{HERE}/p2p/{BOB}/p2p-circuit",
        "/dns4/example.org/tcp/4001",
        None,
    ],
)
def test_what_is_no_public_address_of_the_peer_is_refused(address: str | None) -> None:
    assert asked(address) == REFUSED


def test_a_family_that_this_node_does_not_reach_is_refused() -> None:
    assert asked("/ip6/2a00::1/tcp/1", families=(4,)) == REFUSED
    assert isinstance(asked("/ip6/2a00::1/tcp/1", families=(6,)), DialBack)


def test_a_peer_has_a_few_dials_a_minute_and_all_peers_some() -> None:
    limits = DhtParameters()
    dialling = server()
    request = DialRequest((HERE,), 7)
    chosen = DialBack(0, HERE, 0, 7)
    for _ in range(limits.max_probes_of_one):
        assert dialling.asked(ALICE, request, SEEN, BOTH, 0.0) == chosen
    assert dialling.asked(ALICE, request, SEEN, BOTH, 1.0) == REJECTED
    for number in range(limits.max_probes_in_flight):
        peer = person(f"peer {number}").peer_id
        assert dialling.asked(peer, request, SEEN, BOTH, 1.0) == chosen
        assert dialling.begins(chosen)
    assert not dialling.begins(chosen)  # all busy
    dialling.ended()
    assert dialling.begins(chosen)
    assert dialling.asked(ALICE, request, SEEN, BOTH, 90.0) == chosen


def test_those_who_ask_for_dials_elsewhere_leave_half_to_the_others() -> None:
    limits = DhtParameters()
    dialling = server()
    elsewhere = [
        dialling.asked(person(f"{n}").peer_id, DialRequest((ELSEWHERE,), 7), SEEN, BOTH, 0.0)
        for n in range(limits.max_probes_of_all)
    ]
    paid = [chosen for chosen in elsewhere if isinstance(chosen, DialBack)]
    assert len(paid) == limits.max_probes_of_all // 2
    here = dialling.asked(BOB, DialRequest((HERE,), 7), SEEN, BOTH, 0.0)
    assert isinstance(here, DialBack)
    # No place is held until the data has come.
    began = [chosen for chosen in paid if dialling.begins(chosen)]
    assert len(began) == limits.max_probes_in_flight // 2
    assert dialling.begins(here)


def test_data_comes_in_chunks_of_some_size() -> None:
    assert enough(30_000, 4096) == 30_000 - 4096
    assert enough(100, 4096) == 0  # the last may be larger than what is missing
    assert enough(30_000, MIN_CHUNK_BYTES - 1) is None
    assert enough(10, 10) == 0
    assert enough(10, 9) is None


def test_a_nonce_counts_that_came_over_a_connection_made_for_it() -> None:
    nonces = Nonces(random.Random(1))
    nonce = nonces.begin(10.0)
    other = nonces.begin(10.0)
    assert nonce is not None
    assert other is not None
    assert not nonces.came(nonce + 1, 11.0)
    assert not nonces.came(nonce, 9.0)  # it was there before
    assert nonces.came(other, 11.0)
    assert not nonces.end(nonce)
    assert nonces.end(other)
    assert not nonces.came(nonce, 11.0)


def test_so_many_nonces_are_under_way() -> None:
    nonces = Nonces(random.Random(1))
    begun = [nonces.begin(0.0) for _ in range(MAX_NONCES + 1)]
    assert begun[-1] is None
    assert begun[0] is not None
    nonces.end(begun[0])
    assert nonces.begin(0.0) is not None


def test_what_a_server_says_is_believed_as_far_as_it_can_be_seen() -> None:
    ok = DialResponse(Status.OK, 1, DialStatus.OK)
    assert verdict(ok, 2, came=True) == (1, True)
    assert verdict(ok, 2, came=False) is None  # it lies
    assert verdict(ok, 1, came=True) is None  # at an address that was not named
    failed = DialResponse(Status.OK, 0, DialStatus.DIAL_ERROR)
    assert verdict(failed, 1, came=False) == (0, False)
    assert verdict(failed, 1, came=True) == (0, True)
    assert verdict(DialResponse(Status.OK, 0, DialStatus.DIAL_BACK_ERROR), 1, came=False) is None
    assert verdict(REFUSED, 1, came=False) is None


def test_a_server_that_wants_more_data_than_servers_do_gets_none() -> None:
    assert wants_data(DialDataRequest(0, MAX_DATA_BYTES), 1)
    assert not wants_data(DialDataRequest(0, MAX_DATA_BYTES + 1), 1)
    assert not wants_data(DialDataRequest(0, 0), 1)
    assert not wants_data(DialDataRequest(1, 1), 1)


# -- messages --------------------------------------------------------------------------------------


def test_messages_come_back() -> None:
    request = DialRequest((HERE, ELSEWHERE), 2**64 - 1)
    assert messages.parse_request(messages.encode_request(request)) == request
    for answer in (
        DialDataRequest(3, 50_000),
        DialResponse(Status.OK, 1, DialStatus.DIAL_ERROR),
        REFUSED,
    ):
        assert messages.parse_answer(messages.encode_answer(answer)) == answer
    assert messages.parse_chunk(messages.encode_chunk(4096)) == 4096
    assert messages.parse_back(messages.encode_back(5)) == 5
    assert messages.encode_back_response() == integer(1, 0)


def test_the_bytes_are_those_of_the_specification() -> None:
    """Field numbers of `Message`, of what is in it, and a nonce of eight bytes."""
    addresses = octets(1, bytes.fromhex("040b000002060fa1"))
    request = octets(1, addresses + b"\x11" + (7).to_bytes(8, "little"))
    assert messages.parse_request(request) == DialRequest((HERE,), 7)
    assert messages.encode_request(DialRequest((HERE,), 7)) == request
    said = octets(2, integer(1, 200) + integer(2, 1) + integer(3, 101))
    expected = DialResponse(Status.OK, 1, DialStatus.DIAL_BACK_ERROR)
    assert messages.parse_answer(said) == expected
    wants = octets(3, integer(1, 2) + integer(2, 40_000))
    assert messages.parse_answer(wants) == DialDataRequest(2, 40_000)
    assert messages.parse_chunk(octets(4, octets(1, b"abc"))) == 3
    assert messages.parse_back(b"\x09" + (7).to_bytes(8, "little")) == 7


def test_addresses_that_cannot_be_read_keep_their_numbers() -> None:
    request = octets(1, octets(1, b"\xff\xff") + octets(1, bytes.fromhex("040b000002060fa1")))
    assert messages.parse_request(request).addresses == (None, HERE)
    many = octets(1, octets(1, b"\xff") * (messages.MAX_REQUESTED + 1))
    assert len(messages.parse_request(many).addresses) == messages.MAX_REQUESTED


def test_statuses_without_a_name_say_nothing() -> None:
    said = octets(2, integer(1, 299) + integer(3, 7))
    assert messages.parse_answer(said) == DialResponse(Status.INTERNAL_ERROR)


def test_what_is_another_message_is_refused() -> None:
    chunk, request = messages.encode_chunk(1), messages.encode_request(DialRequest((), 1))
    for parse, raw in (
        (messages.parse_request, chunk),
        (messages.parse_request, b"\xff"),
        (messages.parse_answer, request),
        (messages.parse_chunk, request),
        (messages.parse_chunk, messages.encode_chunk(messages.MAX_CHUNK_BYTES + 1)),
        (messages.parse_back, bytes(messages.MAX_MESSAGE_BYTES + 1)),
    ):
        with pytest.raises(ProtocolViolation):
            parse(raw)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    for parse in (
        messages.parse_request,
        messages.parse_answer,
        messages.parse_chunk,
        messages.parse_back,
    ):
        try:
            parse(raw)
        except ProtocolViolation:
            continue


ips = st.sampled_from([SEEN, "11.0.0.3"]) | st.ip_addresses(v=4).map(str)
named = st.builds("/ip4/{}/tcp/{}".format, ips, st.integers(0, 65_535))


@given(st.lists(named, max_size=5))
def test_no_third_party_is_dialled_for_nothing(addresses: list[str]) -> None:
    chosen = asked(*addresses)
    if isinstance(chosen, DialBack) and f"/{SEEN}/" not in chosen.address:
        assert chosen.data_bytes >= MIN_DATA_BYTES
        assert ipaddress.ip_address(chosen.address.split("/")[2]).is_global
