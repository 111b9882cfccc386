"""The messages of circuit relay v2 as protobuf: one writer and one parser for each of both.

A peer asks a relay by HopMessage: to be reachable through it (RESERVE), or to be connected to one
that is (CONNECT). The relay asks that one by StopMessage. What a parser returns has been checked.

Source: libp2p circuit relay v2 specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, assert_never

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import Identity, PeerId, peer_id_from_bytes, peer_id_to_bytes
from formation_p2p.core.units import KIB
from formation_p2p.reach.core import circuit_pb2 as pb
from formation_p2p.records.core.addresses import MAX_ADDRESSES, address_bytes, read_addresses
from formation_p2p.records.core.envelope import seal
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.records.core.protobuf import read_protobuf

HOP_PROTOCOL: Final = "/libp2p/circuit/relay/0.2.0/hop"
STOP_PROTOCOL: Final = "/libp2p/circuit/relay/0.2.0/stop"
# The specification's bound. A grant has 2 KiB of it at most.
MAX_MESSAGE_BYTES: Final = 4 * KIB
# The signed envelope of a voucher: RFC 0002, and multicodec's `libp2p-relay-rsvp`.
_VOUCHER_DOMAIN: Final = "libp2p-relay-rsvp"
_VOUCHER_TYPE: Final = b"\x03\x02"


class Status(IntEnum):
    """How a request ended. One that the specification does not name is read as MALFORMED."""

    OK = 100
    RESERVATION_REFUSED = 200
    RESOURCE_LIMIT_EXCEEDED = 201
    PERMISSION_DENIED = 202
    CONNECTION_FAILED = 203
    NO_RESERVATION = 204
    MALFORMED = 400
    UNEXPECTED = 401


_STATUSES: Final[Mapping[Status, pb.Status]] = {
    Status.OK: pb.OK,
    Status.RESERVATION_REFUSED: pb.RESERVATION_REFUSED,
    Status.RESOURCE_LIMIT_EXCEEDED: pb.RESOURCE_LIMIT_EXCEEDED,
    Status.PERMISSION_DENIED: pb.PERMISSION_DENIED,
    Status.CONNECTION_FAILED: pb.CONNECTION_FAILED,
    Status.NO_RESERVATION: pb.NO_RESERVATION,
    Status.MALFORMED: pb.MALFORMED_MESSAGE,
    Status.UNEXPECTED: pb.UNEXPECTED_MESSAGE,
}


@dataclass(frozen=True, slots=True)
class Limit:
    """What one circuit may last, and carry in each direction; None for without an end."""

    duration_s: int | None = None
    data_bytes: int | None = None


UNLIMITED: Final = Limit()


@dataclass(frozen=True, slots=True)
class Reserve:
    """Be reachable through the relay. `peer` is whom a foreign message names, None for the sender.
    `grant` shows a member."""

    grant: bytes = b""
    peer: PeerId | None = None


@dataclass(frozen=True, slots=True)
class Connect:
    """A circuit to `peer`, please."""

    peer: PeerId
    grant: bytes = b""


@dataclass(frozen=True, slots=True)
class Reserved:
    """The reservation holds until `expires_unix_s`. `addresses` are the relay's, at its word;
    `voucher` is a signed envelope."""

    expires_unix_s: int
    addresses: tuple[str, ...] = ()
    voucher: bytes = b""
    limit: Limit = UNLIMITED


@dataclass(frozen=True, slots=True)
class Answered:
    """How a request ended. `limit` is that of the circuit, once it is OK."""

    status: Status
    limit: Limit = UNLIMITED


@dataclass(frozen=True, slots=True)
class Incoming:
    """The relay brings a circuit from `peer`."""

    peer: PeerId
    limit: Limit = UNLIMITED


HopRequest = Reserve | Connect
HopReply = Reserved | Answered
StopMessage = Incoming | Answered


def encode_hop(message: HopRequest | HopReply) -> bytes:
    """The protobuf of a message that this side made; nothing in it is checked."""
    wire = pb.HopMessage()
    match message:
        case Reserve(grant):
            wire.type = pb.HopMessage.RESERVE
            if grant:
                wire.grant = grant
        case Connect(peer, grant):
            wire.type = pb.HopMessage.CONNECT
            wire.peer.id = peer_id_to_bytes(peer)
            if grant:
                wire.grant = grant
        case Reserved(expires_unix_s, addresses, voucher, limit):
            wire.type, wire.status = pb.HopMessage.STATUS, pb.OK
            wire.reservation.expire = expires_unix_s
            wire.reservation.addrs.extend(map(address_bytes, addresses))
            wire.reservation.voucher = voucher
            _write_limit(wire, limit)
        case Answered(status, limit):
            wire.type, wire.status = pb.HopMessage.STATUS, _STATUSES[status]
            _write_limit(wire, limit)
        case _:
            assert_never(message)
    return wire.SerializeToString()


def parse_hop_request(raw: bytes) -> HopRequest:
    """Raises ProtocolViolation for all but a request within the bounds."""
    wire = _parse_hop(raw)
    if len(wire.grant) > MAX_GRANT_BYTES:
        raise ProtocolViolation(f"a grant of {len(wire.grant)} bytes")
    if wire.type == pb.HopMessage.CONNECT:
        return Connect(_read_peer(wire.peer), wire.grant)
    if wire.type == pb.HopMessage.RESERVE and wire.HasField("type"):
        return Reserve(wire.grant, _read_peer(wire.peer) if wire.HasField("peer") else None)
    raise ProtocolViolation(f"a hop message of type {wire.type} that requests nothing")


def parse_hop_reply(raw: bytes) -> HopReply:
    """Raises ProtocolViolation for all but a reply within the bounds."""
    wire = _parse_hop(raw)
    if wire.type != pb.HopMessage.STATUS:
        raise ProtocolViolation(f"a hop message of type {wire.type} in place of a status")
    status, limit = _read_status(wire.status), _read_limit(wire)
    if status is not Status.OK or not wire.HasField("reservation"):
        return Answered(status, limit)
    held = wire.reservation
    addresses = read_addresses(held.addrs[:MAX_ADDRESSES])
    return Reserved(held.expire, addresses, held.voucher, limit)


def encode_stop(message: StopMessage) -> bytes:
    """As `encode_hop`."""
    wire = pb.StopMessage()
    match message:
        case Incoming(peer, limit):
            wire.type = pb.StopMessage.CONNECT
            wire.peer.id = peer_id_to_bytes(peer)
            _write_limit(wire, limit)
        case Answered(status, limit):
            wire.type, wire.status = pb.StopMessage.STATUS, _STATUSES[status]
            _write_limit(wire, limit)
        case _:
            assert_never(message)
    return wire.SerializeToString()


def parse_stop(raw: bytes) -> StopMessage:
    """Raises ProtocolViolation for all but a message within the bounds."""
    _check_size(raw)
    wire = read_protobuf(pb.StopMessage, raw, "a stop message")
    limit = _read_limit(wire)
    if wire.type == pb.StopMessage.STATUS:
        return Answered(_read_status(wire.status), limit)
    if not wire.HasField("type"):
        raise ProtocolViolation("a stop message without a type")
    return Incoming(_read_peer(wire.peer), limit)


def make_voucher(relay: Identity, peer: PeerId, expires_unix_s: int) -> bytes:
    """A signed word of the relay that it has a reservation of `peer`."""
    said = pb.Voucher(
        relay=peer_id_to_bytes(relay.peer_id),
        peer=peer_id_to_bytes(peer),
        expiration=expires_unix_s,
    )
    return seal(relay, _VOUCHER_DOMAIN, _VOUCHER_TYPE, said.SerializeToString())


def _parse_hop(raw: bytes) -> pb.HopMessage:
    _check_size(raw)
    return read_protobuf(pb.HopMessage, raw, "a hop message")


def _check_size(raw: bytes) -> None:
    if len(raw) > MAX_MESSAGE_BYTES:
        raise ProtocolViolation(f"a circuit message of {len(raw)} bytes")


def _read_peer(wire: pb.Peer) -> PeerId:
    try:
        return peer_id_from_bytes(wire.id)
    except ValueError as error:
        raise ProtocolViolation(f"a circuit message names {error}") from error


def _read_status(number: int) -> Status:
    try:
        return Status(number)
    except ValueError:
        return Status.MALFORMED


def _read_limit(wire: pb.HopMessage | pb.StopMessage) -> Limit:
    """Zero is for without an end, as in the specification."""
    return Limit(wire.limit.duration or None, wire.limit.data or None)


def _write_limit(wire: pb.HopMessage | pb.StopMessage, limit: Limit) -> None:
    if limit.duration_s is not None:
        wire.limit.duration = limit.duration_s
    if limit.data_bytes is not None:
        wire.limit.data = limit.data_bytes
