"""The messages of AutoNAT v2 as protobuf: one writer and one parser for each side.

A peer asks to be dialled at one of the addresses that it names, with a nonce (DialRequest). The
other may ask for data first (DialDataRequest), dials, and says over the new connection the nonce
(DialBack); then it answers how that went (DialResponse).

Source: libp2p AutoNAT v2 specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

from google.protobuf.message import Message

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.units import KIB
from formation_p2p.reach.core import autonat_pb2 as pb
from formation_p2p.records.core.addresses import address_bytes, address_text
from formation_p2p.records.core.protobuf import read_protobuf

REQUEST_PROTOCOL: Final = "/libp2p/autonat/2/dial-request"
BACK_PROTOCOL: Final = "/libp2p/autonat/2/dial-back"
# A chunk of data has 4,096 bytes at most; a request of go-libp2p has some dozens of addresses.
MAX_MESSAGE_BYTES: Final = 8 * KIB
MAX_CHUNK_BYTES: Final = 4096
# Of a request, the first. go-libp2p's client sends all of its own.
MAX_REQUESTED: Final = 50


class Status(IntEnum):
    """How a request ended. One that the specification does not name is read as INTERNAL_ERROR."""

    INTERNAL_ERROR = 0
    REQUEST_REJECTED = 100
    DIAL_REFUSED = 101
    OK = 200


class DialStatus(IntEnum):
    """How the dial ended, where the request is OK. One that is not named is read as UNUSED."""

    UNUSED = 0
    DIAL_ERROR = 100
    DIAL_BACK_ERROR = 101
    OK = 200


@dataclass(frozen=True, slots=True)
class DialRequest:
    """`addresses` are multiaddrs, the most wanted first; None for one that cannot be read."""

    addresses: tuple[str | None, ...]
    nonce: int


@dataclass(frozen=True, slots=True)
class DialDataRequest:
    """Send so much before the address of this number is dialled."""

    number: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DialResponse:
    status: Status
    number: int = 0
    dial_status: DialStatus = DialStatus.UNUSED


_W = TypeVar("_W", bound=Message)


def encode_request(request: DialRequest) -> bytes:
    wire = pb.Message()
    wire.dialRequest.nonce = request.nonce
    wire.dialRequest.addrs.extend(address_bytes(each) for each in request.addresses if each)
    return wire.SerializeToString()


def parse_request(raw: bytes) -> DialRequest:
    """Raises ProtocolViolation for all but a request."""
    wire = _parse(pb.Message, raw)
    if not wire.HasField("dialRequest"):
        raise ProtocolViolation("an AutoNAT message in place of a request")
    named = wire.dialRequest.addrs[:MAX_REQUESTED]
    return DialRequest(tuple(map(address_text, named)), wire.dialRequest.nonce)


def encode_answer(answer: DialDataRequest | DialResponse) -> bytes:
    wire = pb.Message()
    if isinstance(answer, DialDataRequest):
        wants = wire.dialDataRequest
        wants.addrIdx, wants.numBytes = answer.number, answer.size_bytes
    else:
        said = wire.dialResponse
        said.status, said.addrIdx = answer.status, answer.number
        said.dialStatus = answer.dial_status
    return wire.SerializeToString()


def parse_answer(raw: bytes) -> DialDataRequest | DialResponse:
    """Raises ProtocolViolation for all but what answers a request."""
    wire = _parse(pb.Message, raw)
    if wire.HasField("dialDataRequest"):
        return DialDataRequest(wire.dialDataRequest.addrIdx, wire.dialDataRequest.numBytes)
    if not wire.HasField("dialResponse"):
        raise ProtocolViolation("an AutoNAT message in place of an answer")
    said = wire.dialResponse
    known, dialled = {*Status}, {*DialStatus}
    return DialResponse(
        Status(said.status) if said.status in known else Status.INTERNAL_ERROR,
        said.addrIdx,
        DialStatus(said.dialStatus) if said.dialStatus in dialled else DialStatus.UNUSED,
    )


def encode_chunk(size_bytes: int) -> bytes:
    """So much data, which says nothing."""
    wire = pb.Message()
    wire.dialDataResponse.data = bytes(size_bytes)
    return wire.SerializeToString()


def parse_chunk(raw: bytes) -> int:
    """How much data it has. Raises ProtocolViolation for all but a chunk within the bound."""
    wire = _parse(pb.Message, raw)
    size_bytes = len(wire.dialDataResponse.data)
    if not wire.HasField("dialDataResponse") or size_bytes > MAX_CHUNK_BYTES:
        raise ProtocolViolation("an AutoNAT message in place of data")
    return size_bytes


def encode_back(nonce: int) -> bytes:
    return pb.DialBack(nonce=nonce).SerializeToString()


def parse_back(raw: bytes) -> int:
    """The nonce. Raises ProtocolViolation."""
    return _parse(pb.DialBack, raw).nonce


def encode_back_response() -> bytes:
    return pb.DialBackResponse(status=0).SerializeToString()


def _parse(kind: type[_W], raw: bytes) -> _W:
    if len(raw) > MAX_MESSAGE_BYTES:
        raise ProtocolViolation(f"an AutoNAT message of {len(raw)} bytes")
    return read_protobuf(kind, raw, "an AutoNAT message")
