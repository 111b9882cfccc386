"""The messages of circuit relay v2: what is written can be read, and what makes no sense cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import Identity, peer_id_to_bytes
from formation_p2p.reach.core import circuit_messages as circuit
from formation_p2p.reach.core import circuit_pb2 as pb
from formation_p2p.reach.core.circuit_messages import (
    Answered,
    Connect,
    HopReply,
    HopRequest,
    Incoming,
    Limit,
    Reserve,
    Reserved,
    Status,
    StopMessage,
)
from formation_p2p.records.core.envelope import open_envelope
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from tests.support.protobuf import integer, octets

GATE = Identity.from_seed(bytes(32))
ALICE = Identity.from_seed(b"a" * 32).peer_id
LIMIT = Limit(120, 1 << 17)
ADDRESS = "/ip4/192.0.2.1/tcp/4001/p2p/" + GATE.peer_id


@pytest.mark.parametrize(
    "request_", [Reserve(), Reserve(b"a grant"), Connect(ALICE), Connect(ALICE, b"a grant")]
)
def test_a_request_is_read_as_it_was_written(request_: HopRequest) -> None:
    assert circuit.parse_hop_request(circuit.encode_hop(request_)) == request_


@pytest.mark.parametrize(
    "reply",
    [
        Reserved(1_800_000_000, (ADDRESS,), b"a voucher", LIMIT),
        Reserved(1_800_000_000),
        Answered(Status.OK, LIMIT),
        *map(Answered, Status),
    ],
)
def test_a_reply_is_read_as_it_was_written(reply: HopReply) -> None:
    assert circuit.parse_hop_reply(circuit.encode_hop(reply)) == reply


@pytest.mark.parametrize(
    "message", [Incoming(ALICE), Incoming(ALICE, LIMIT), *map(Answered, Status)]
)
def test_a_stop_message_is_read_as_it_was_written(message: StopMessage) -> None:
    assert circuit.parse_stop(circuit.encode_stop(message)) == message


def test_whom_a_reservation_names_is_read() -> None:
    """The specification has no such field; a peer that reserves for another would fill it."""
    wire = integer(1, 0) + octets(2, octets(1, peer_id_to_bytes(ALICE)))
    assert circuit.parse_hop_request(wire) == Reserve(b"", ALICE)


def test_other_implementations_skip_the_grant() -> None:
    wire = pb.HopMessage.FromString(circuit.encode_hop(Connect(ALICE, b"a grant")))
    wire.ClearField("grant")
    assert circuit.parse_hop_request(wire.SerializeToString()) == Connect(ALICE)


NAMED = octets(2, octets(1, peer_id_to_bytes(ALICE)))


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff",
        b"",
        integer(1, 2) + integer(5, 100),  # a status
        integer(1, 1),  # to whom?
        integer(1, 1) + octets(2, octets(1, b"no peer id")),
        integer(1, 0) + octets(100, bytes(MAX_GRANT_BYTES + 1)),
        integer(1, 0) + octets(7, bytes(circuit.MAX_MESSAGE_BYTES)),
    ],
)
def test_what_requests_nothing_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        circuit.parse_hop_request(raw)


@pytest.mark.parametrize("raw", [b"", integer(1, 1) + NAMED, b"\x08"])
def test_what_is_no_reply_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        circuit.parse_hop_reply(raw)


@pytest.mark.parametrize("raw", [b"", NAMED, integer(1, 0), b"\x08"])
def test_what_is_no_stop_message_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        circuit.parse_stop(raw)


@pytest.mark.parametrize("number", [0, 99, 300])
def test_a_status_that_is_not_specified_is_a_refusal(number: int) -> None:
    raw = integer(1, 2) + integer(5, number)
    assert circuit.parse_hop_reply(raw) == Answered(Status.MALFORMED)


def test_a_limit_of_zero_is_none() -> None:
    raw = integer(1, 1) + octets(3, integer(1, 0) + integer(2, 0)) + integer(4, 100)
    assert circuit.parse_stop(raw) == Answered(Status.OK)


def test_a_voucher_is_what_the_specification_signs() -> None:
    voucher = circuit.make_voucher(GATE, ALICE, 1_800_000_000)
    signer, payload = open_envelope(voucher, "libp2p-relay-rsvp", b"\x03\x02", 4096)
    said = pb.Voucher.FromString(payload)
    assert signer == GATE.peer_id
    assert (said.relay, said.peer) == (peer_id_to_bytes(GATE.peer_id), peer_id_to_bytes(ALICE))
    assert said.expiration == 1_800_000_000


@given(st.binary(max_size=200))
def test_whatever_comes_is_read_or_refused(raw: bytes) -> None:
    for parse in (circuit.parse_hop_request, circuit.parse_hop_reply, circuit.parse_stop):
        try:
            parse(raw)
        except ProtocolViolation:
            continue
