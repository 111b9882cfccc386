"""Which of a peer's addresses is dialled for it (AutoNAT v2), and what may be believed of that.

A server dials exactly one address, the first that it may. One at the IP address that the peer is
seen to come from is its own. Another one may be a third party's: it must be public, and the peer
first sends more than the dial costs, so that nothing is gained by having it dialled from here.

The client believes a nonce that came over a new connection, and nothing else, to be reached. So a
server can deny what is true, and cannot claim what is not.

Source: libp2p AutoNAT v2 specification; go-libp2p's server for the bounds.
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

from google.protobuf.message import Message

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.reachability import ProbeLimits
from formation_p2p.reach.core import autonat_pb2 as pb
from formation_p2p.records.core.addresses import address_bytes, address_text, is_public
from formation_p2p.records.core.protobuf import read_protobuf

# The messages of AutoNAT v2 as protobuf: one writer and one parser for each side.
#
# A peer asks to be dialled at one of the addresses that it names, with a nonce (DialRequest). The
# other may ask for data first (DialDataRequest), dials, and says over the new connection the nonce
# (DialBack); then it answers how that went (DialResponse).
#
# Source: libp2p AutoNAT v2 specification.

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


# What a peer sends before a dial elsewhere than to where it comes from: between these.
MIN_DATA_BYTES: Final = 30_000
MAX_DATA_BYTES: Final = 100_000
# A chunk of less, but for the last, is there to keep us busy.
MIN_CHUNK_BYTES: Final = 100
# Nonces under way: one for each address of ours that is asked about.
MAX_NONCES: Final = 16


Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class DialBack:
    """Dial `address`, the one of this number, once the peer has sent `data_bytes` and the server
    `begins`, and say the nonce. Call `ended` then, however it went."""

    number: int
    address: str
    data_bytes: int
    nonce: int


class DialBackServer:
    """What this node dials for others. Half of it is kept for those who ask for a dial to where
    they come from, as nodes do that want to know their own address."""

    def __init__(self, rng: random.Random, parameters: DhtParameters = DhtParameters()) -> None:
        self._rng = rng
        self._limits = ProbeLimits(parameters)

    def asked(
        self,
        peer: PeerId,
        request: DialRequest,
        seen_from: str | None,
        families: Iterable[int],
        now_s: float,
    ) -> DialBack | DialResponse:
        """`seen_from` is the IP address that the peer comes from, None over a circuit; `families`
        are the versions of IP that this node can dial others with."""
        seen = None if seen_from is None else ipaddress.ip_address(seen_from)
        can = frozenset(families)
        for number, address in enumerate(request.addresses):
            ip = _ip_of(address, peer)
            if ip is None or not (ip == seen or (is_public(ip) and ip.version in can)):
                continue
            free = ip == seen
            if not self._limits.counts(peer, now_s, in_half=not free):
                return DialResponse(Status.REQUEST_REJECTED)
            data_bytes = 0 if free else self._rng.randint(MIN_DATA_BYTES, MAX_DATA_BYTES)
            return DialBack(number, address or "", data_bytes, request.nonce)
        return DialResponse(Status.DIAL_REFUSED)

    def begins(self, wanted: DialBack) -> bool:
        """Whether there is a place to dial now: none is held while data comes."""
        return self._limits.begins(in_half=wanted.data_bytes > 0)

    def ended(self) -> None:
        self._limits.ended()


def enough(missing_bytes: int, chunk_bytes: int) -> int | None:
    """What is missing after a chunk of data, 0 where that is enough; None where the chunk is too
    small."""
    if chunk_bytes < min(MIN_CHUNK_BYTES, missing_bytes):
        return None
    return max(missing_bytes - chunk_bytes, 0)


class Nonces:
    """Those that this node has asked peers to come back with."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._begun_s: dict[int, float] = {}
        self._came: set[int] = set()

    def begin(self, now_s: float) -> int | None:
        """A new one; None where too many are under way. Call `end` for it."""
        if len(self._begun_s) >= MAX_NONCES:
            return None
        nonce = self._rng.getrandbits(64)
        self._begun_s[nonce] = now_s
        return nonce

    def came(self, nonce: int, opened_s: float) -> bool:
        """A peer says a nonce over a connection that it opened at this time. Returns whether that
        is one of these, and the connection was opened for it."""
        if self._begun_s.get(nonce, float("inf")) > opened_s:
            return False
        self._came.add(nonce)
        return True

    def end(self, nonce: int) -> bool:
        """Returns whether it came."""
        del self._begun_s[nonce]
        came = nonce in self._came
        self._came.discard(nonce)
        return came


def wants_data(answer: DialDataRequest, asked: int) -> bool:
    """Whether to send what the server of a request for `asked` addresses wants."""
    return answer.number < asked and 0 < answer.size_bytes <= MAX_DATA_BYTES


def verdict(answer: DialResponse, asked: int, *, came: bool) -> tuple[int, bool] | None:
    """The number of the address that was dialled, and whether it was reached. None where that is
    not known: the server did not dial, or says what did not happen."""
    if answer.status is not Status.OK or answer.number >= asked:
        return None
    if came:
        return answer.number, True
    return (answer.number, False) if answer.dial_status is DialStatus.DIAL_ERROR else None


def _ip_of(address: str | None, peer: PeerId) -> Ip | None:
    """Of `/ip4/192.0.2.1/tcp/4001`, also with the peer's id; None for what is not dialled: names
    could lead to where their owner likes, and circuits are dialled by others."""
    parts = (address or "").split("/")
    if len(parts) not in (5, 7) or parts[3] != "tcp" or parts[4] == "0":
        return None
    if parts[1] not in ("ip4", "ip6") or (len(parts) == 7 and parts[5:] != ["p2p", peer]):
        return None
    ip = ipaddress.ip_address(parts[2])
    return None if ip.is_multicast or ip.is_unspecified else ip
