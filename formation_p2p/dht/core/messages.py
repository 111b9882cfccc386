"""The DHT's requests and replies, and their bounds.

On the wire every message is the same protobuf struct (`kad.proto`, `codec.py`); here each has the
fields that it really uses.

Source: libp2p kad-dht specification, "RPC messages".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple, assert_never

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import PeerId, peer_id_from_bytes, peer_id_to_bytes
from formation_p2p.core.keyspace import MAX_DEPTH, Key, key_from_bytes, key_to_bytes
from formation_p2p.dht.core import kad_pb2
from formation_p2p.records.core.addresses import (
    MAX_ADDRESSES,
    address_bytes,
    read_addresses,
    short_addresses,
)
from formation_p2p.records.core.codec import MAX_INT
from formation_p2p.records.core.protobuf import read_protobuf

# A key is the name of a record or a peer id; the longest in use is `/formation/<peer id>`.
MAX_NAME_BYTES: Final = 128
# k = 20 by the specification; go-libp2p sends at most that many.
MAX_CLOSER: Final = 20
# Profiles are at most 4 KiB and addresses 2 KiB, so that an answer full of them, and of closer
# peers, stays below the 256 KiB of a frame.
MAX_PROVIDERS: Final = 32
# Records of services that an answer may hold: as many as a catalog has specs. They are smaller, and
# who answers gives no more of them than have room in a frame.
MAX_RECORDS: Final = 256
# A worker's names that one peer is among the nearest to: in a small network, all of them.
MAX_NAMES: Final = 64
# A peer id is a multihash; those in use have 34 and 38 bytes.
MAX_ID_BYTES: Final = 64
# A network's charter (trust/core/signed_charter.py): the one value that may be longer. A request is
# a frame of up to 16 KiB.
MAX_CHARTER_BYTES: Final = 15 * 1024
CHARTER_PREFIX: Final = b"/formation/charter/"
# A signed profile's bound (records/core/profile.py); and that of requirements in CBOR, with a mark
# before them (discovery/core/finder.py).
MAX_VALUE_BYTES: Final = 4096
MAX_REQUIREMENTS_BYTES: Final = 2049


@dataclass(frozen=True, slots=True)
class ProviderQuery:
    """What the storing peer is to filter by and rank for. `requirements` is CBOR, or empty."""

    target: Key
    requirements: bytes
    limit: int


@dataclass(frozen=True, slots=True)
class Provider:
    """Who provides a key. `profile` is its signed profile; empty for foreign providers."""

    contact: Contact
    profile: bytes = b""


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered, and not sent: the specification has peers look for something instead."""


@dataclass(frozen=True, slots=True)
class FindNode:
    """`name` is a peer id's bytes or any other name; its SHA-256 is the key looked for.
    `dial_back`: dial me as well, over a new connection, and say whether that worked."""

    name: bytes
    dial_back: bool = False


@dataclass(frozen=True, slots=True)
class GetProviders:
    name: bytes
    query: ProviderQuery | None = None


@dataclass(frozen=True, slots=True)
class AddProvider:
    """Keep a provider under `name`, and under `more` names. The specification has no reply to
    it; one that is `acknowledged` has `Added`, which only our own peers know."""

    name: bytes
    provider: Provider
    more: tuple[bytes, ...] = ()
    acknowledged: bool = False

    @property
    def names(self) -> tuple[bytes, ...]:
        return (self.name, *self.more)


@dataclass(frozen=True, slots=True)
class GetValue:
    name: bytes


@dataclass(frozen=True, slots=True)
class PutValue:
    name: bytes
    value: bytes


Query = FindNode | GetProviders | GetValue
Write = AddProvider | PutValue
Request = Ping | Query | Write


@dataclass(frozen=True, slots=True)
class Pong:
    """The reply to a Ping."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """`reached`: whether the dial back worked; None where it was not tried."""

    closer: tuple[Contact, ...]
    reached: bool | None = None


class ShardCount(NamedTuple):
    """What a peer holds under the name of a capability shard, by what the authors signed.

    `members` announce themselves here in full. The others count only those on the side of the
    key that was asked for, which share the bit with it that comes after the shard's prefix:
    `settled` are members of no other shard, `shallower` members who are in a shallower one as
    well, `deeper` are in a deeper one as well, or only there and here as a sample; `depth` is
    the median of how deep. `beyond` are the deeper ones on the other side, whose depth it is
    where there are none on this.
    """

    members: int = 0
    settled: int = 0
    shallower: int = 0
    deeper: int = 0
    depth: int = 0
    beyond: int = 0


@dataclass(frozen=True, slots=True)
class Providers:
    """`count` is of all that the peer holds, of which `providers` are those asked for."""

    providers: tuple[Provider, ...]
    closer: tuple[Contact, ...] = ()
    count: ShardCount | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """`name` is the record's, which go and js compare with what they asked for; who asks knows
    it, so it is left out of comparisons. `received_unix_s` is when the asked peer got it."""

    value: bytes | None
    closer: tuple[Contact, ...]
    name: bytes = field(default=b"", compare=False)
    received_unix_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Stored:
    """The reply to a PUT_VALUE that was accepted: it echoes the request."""

    name: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Added:
    """The reply to an acknowledged ADD_PROVIDER: a count for each of its names, in their order,
    and the peers nearest to the first of them."""

    counts: tuple[ShardCount, ...]
    closer: tuple[Contact, ...] = ()


Reply = Pong | Nodes | Providers | Value | Stored | Added
Message = Request | Reply


# The DHT's messages as protobuf: one writer, and one parser for requests and one for replies.
#
# What a parser returns has been checked.

_Type = kad_pb2.Message
# A request and its reply are of one type.
_TYPES: Final[Mapping[type, kad_pb2.Message.MessageType]] = {
    **dict.fromkeys((Ping, Pong), _Type.PING),
    **dict.fromkeys((FindNode, Nodes), _Type.FIND_NODE),
    **dict.fromkeys((GetProviders, Providers), _Type.GET_PROVIDERS),
    **dict.fromkeys((AddProvider, Added), _Type.ADD_PROVIDER),
    **dict.fromkeys((GetValue, Value), _Type.GET_VALUE),
    **dict.fromkeys((PutValue, Stored), _Type.PUT_VALUE),
}


def encode(message: Message, charter: int = 0) -> bytes:
    """The protobuf of a message that this side made; nothing in it is checked. It
    carries the version of the sender's charter."""
    wire = kad_pb2.Message(charter=charter)
    wire.type = _TYPES[type(message)]
    match message:
        case Ping() | Pong():
            pass
        case FindNode(name, dial_back):
            wire.key, wire.dialBack = name, dial_back
        case GetValue(name):
            wire.key = name
        case Nodes(closer, reached):
            wire.closerPeers.extend(map(_closer_peer, closer))
            if reached is not None:
                wire.reached = reached
        case GetProviders(name, query):
            wire.key = name
            if query is not None:
                wire.query.target = key_to_bytes(query.target)
                wire.query.requirements = query.requirements
                wire.query.limit = query.limit
        case Providers(providers, closer, count):
            wire.closerPeers.extend(map(_closer_peer, closer))
            wire.providerPeers.extend(_write_peer(p.contact, p.profile) for p in providers)
            if count is not None:
                wire.shards.append(_write_count(count))
        case AddProvider(name, provider, more, acknowledged):
            wire.key = name
            wire.providerPeers.append(_write_peer(provider.contact, provider.profile))
            wire.moreKeys.extend(more)
            wire.acknowledged = acknowledged
        case Added(counts, closer):
            wire.closerPeers.extend(map(_closer_peer, closer))
            wire.shards.extend(map(_write_count, counts))
        case Value(value, closer, name, received_unix_s):
            wire.closerPeers.extend(map(_closer_peer, closer))
            if value is not None:
                wire.record.key, wire.record.value = name, value
            if value is not None and received_unix_s is not None:
                received = datetime.fromtimestamp(received_unix_s, UTC)
                wire.record.timeReceived = received.isoformat().replace("+00:00", "Z")
        case PutValue(name, value) | Stored(name, value):
            wire.key = wire.record.key = name
            wire.record.value = value
        case _:
            assert_never(message)
    return wire.SerializeToString()


def parse_asked(raw: bytes, sender: PeerId | None = None) -> tuple[Request, int]:
    """A request, and the version of the sender's charter. Of several providers that ADD_PROVIDER
    names, the one that is its sender counts. Raises ProtocolViolation for all but a request within
    the bounds."""
    wire = read_protobuf(kad_pb2.Message, raw, "a DHT message")
    return _read_request(wire, sender), min(wire.charter, MAX_INT)


def _read_request(wire: kad_pb2.Message, sender: PeerId | None) -> Request:
    if wire.type == _Type.PING:
        return Ping()
    if not 0 < len(wire.key) <= MAX_NAME_BYTES:
        raise ProtocolViolation(
            f"a key of {len(wire.key)} bytes; 1 to {MAX_NAME_BYTES} are allowed"
        )
    if wire.type == _Type.FIND_NODE:
        return FindNode(wire.key, wire.dialBack)
    if wire.type == _Type.GET_PROVIDERS:
        return GetProviders(wire.key, _read_query(wire) if wire.HasField("query") else None)
    if wire.type == _Type.ADD_PROVIDER:
        if len(wire.providerPeers) > 1:
            _keep_sender(wire, sender)
        providers = _read_providers(wire)
        if not providers:
            raise ProtocolViolation("ADD_PROVIDER names 0 providers that can be read, not one")
        more = tuple(wire.moreKeys[:MAX_NAMES])
        if not all(0 < len(name) <= MAX_NAME_BYTES for name in more):
            raise ProtocolViolation(f"a further key of other than 1 to {MAX_NAME_BYTES} bytes")
        if len({wire.key, *more}) <= len(more):  # each is counted, for who waits for a reply
            raise ProtocolViolation("a key is given twice")
        return AddProvider(wire.key, providers[0], more, wire.acknowledged)
    if wire.type == _Type.GET_VALUE:
        return GetValue(wire.key)
    if wire.type == _Type.PUT_VALUE:
        value = _read_value(wire, wire.key)
        if wire.record.key != wire.key:
            raise ProtocolViolation("PUT_VALUE has a record with another key than its own")
        return PutValue(wire.key, value)
    raise ProtocolViolation(f"message type {wire.type} is not in the specification")


def parse_answer(raw: bytes, request: Request) -> tuple[Reply | None, int]:
    """The reply to `request`, None for a plain ADD_PROVIDER, which has none; and the version of the
    sender's charter. Raises ProtocolViolation for all else."""
    if isinstance(request, AddProvider) and not request.acknowledged:
        return None, 0
    wire = read_protobuf(kad_pb2.Message, raw, "a DHT message")
    return _read_reply(wire, request), min(wire.charter, MAX_INT)


def _read_reply(wire: kad_pb2.Message, request: Request) -> Reply:
    expected = _TYPES[type(request)]
    if wire.type != expected:
        raise ProtocolViolation(f"a reply of type {wire.type} to a request of type {expected}")
    match request:
        case Ping():
            return Pong()
        case FindNode():
            reached = wire.reached if wire.HasField("reached") else None
            return Nodes(_read_closer(wire), reached)
        case GetProviders():
            count = _read_count(wire.shards[0]) if wire.shards else None
            most = MAX_PROVIDERS if request.query is None else request.query.limit
            return Providers(_read_providers(wire, most), _read_closer(wire), count)
        case AddProvider(names=names):
            if len(wire.shards) != len(names):
                raise ProtocolViolation(f"{len(wire.shards)} counts for {len(names)} names")
            return Added(tuple(map(_read_count, wire.shards)), _read_closer(wire))
        case GetValue():
            value = _read_value(wire, request.name) if wire.HasField("record") else None
            return Value(value, _read_closer(wire), wire.record.key)
        case PutValue():
            return Stored(request.name, _read_value(wire, request.name))
        case _:
            assert_never(request)


def _keep_sender(wire: kad_pb2.Message, sender: PeerId | None) -> None:
    """Of the providers. Before their addresses are read, which takes a millisecond for some."""
    own = None if sender is None else peer_id_to_bytes(sender)
    matching = [peer for peer in wire.providerPeers if peer.id == own]
    if not matching:
        count = len(wire.providerPeers)
        raise ProtocolViolation(f"ADD_PROVIDER names {count} providers, none of them its sender")
    del wire.providerPeers[:]
    wire.providerPeers.append(matching[0])


def _read_query(wire: kad_pb2.Message) -> ProviderQuery:
    query = wire.query
    if len(query.requirements) > MAX_REQUIREMENTS_BYTES:
        raise ProtocolViolation(f"requirements of {len(query.requirements)} bytes")
    try:
        target = key_from_bytes(query.target)
    except ValueError as error:
        raise ProtocolViolation(str(error)) from error
    limit = min(query.limit, MAX_RECORDS)
    return ProviderQuery(target, query.requirements, limit)


def _read_value(wire: kad_pb2.Message, name: bytes) -> bytes:
    is_charter = name.startswith(CHARTER_PREFIX)
    if len(wire.record.value) > (MAX_CHARTER_BYTES if is_charter else MAX_VALUE_BYTES):
        raise ProtocolViolation(f"a value of {len(wire.record.value)} bytes")
    return wire.record.value


def _read_providers(wire: kad_pb2.Message, most: int = MAX_PROVIDERS) -> tuple[Provider, ...]:
    providers = []
    for peer in wire.providerPeers[: max(most, MAX_PROVIDERS)]:
        if len(peer.profile) > MAX_VALUE_BYTES:
            raise ProtocolViolation(f"a profile of {len(peer.profile)} bytes")
        contact = _read_peer(peer)
        if contact is not None:
            providers.append(Provider(contact, peer.profile))
    return tuple(providers)


def _read_closer(wire: kad_pb2.Message) -> tuple[Contact, ...]:
    contacts = (_read_peer(peer) for peer in wire.closerPeers[:MAX_CLOSER])
    return tuple(contact for contact in contacts if contact is not None)


def _read_peer(peer: kad_pb2.Message.Peer) -> Contact | None:
    """None where the id cannot be read: a newer kind of id must not spoil the rest."""
    if len(peer.id) > MAX_ID_BYTES:
        return None  # before it is remembered
    return _contact(peer.id, *short_addresses(peer.addrs[:MAX_ADDRESSES]))


# 4 us without it, and every reply names twenty of the same few thousand. With eight addresses of
# 256 bytes each these are 8 MiB at the worst.
@lru_cache(maxsize=4096)
def _contact(raw_id: bytes, *addresses: bytes) -> Contact | None:
    try:
        peer_id = peer_id_from_bytes(raw_id)
    except ValueError:
        return None
    # js and py write `/p2p/` and the peer's own id at the end of each.
    texts = (text.removesuffix(f"/p2p/{peer_id}") for text in read_addresses(addresses))
    return Contact(peer_id, tuple(texts))


_numbers = attrgetter(*ShardCount._fields)


def _read_count(shard: kad_pb2.ShardCount) -> ShardCount:
    count = ShardCount(*_numbers(shard))
    return count if count.depth <= MAX_DEPTH else count._replace(depth=MAX_DEPTH)


def _write_count(count: ShardCount) -> kad_pb2.ShardCount:
    return kad_pb2.ShardCount(**count._asdict())


def _write_peer(contact: Contact, profile: bytes = b"") -> kad_pb2.Message.Peer:
    peer = kad_pb2.Message.Peer(id=peer_id_to_bytes(contact.peer_id), profile=profile)
    peer.addrs.extend(address_bytes(text) for text in contact.addresses[:MAX_ADDRESSES])
    return peer


_closer_peer = lru_cache(maxsize=4096)(_write_peer)  # as above
