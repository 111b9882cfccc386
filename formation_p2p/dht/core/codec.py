"""The DHT's messages as protobuf: one writer, and one parser for requests and one for replies.

What a parser returns has been checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Final, assert_never

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import PeerId, peer_id_from_bytes, peer_id_to_bytes
from formation_p2p.core.keyspace import MAX_DEPTH, key_from_bytes, key_to_bytes
from formation_p2p.dht.core import kad_pb2
from formation_p2p.dht.core import messages as kad
from formation_p2p.records.core.addresses import (
    MAX_ADDRESSES,
    address_bytes,
    read_addresses,
    short_addresses,
)
from formation_p2p.records.core.codec import MAX_INT
from formation_p2p.records.core.protobuf import read_protobuf

_Type = kad_pb2.Message
# A request and its reply are of one type.
_TYPES: Final[Mapping[type, kad_pb2.Message.MessageType]] = {
    **dict.fromkeys((kad.Ping, kad.Pong), _Type.PING),
    **dict.fromkeys((kad.FindNode, kad.Nodes), _Type.FIND_NODE),
    **dict.fromkeys((kad.GetProviders, kad.Providers), _Type.GET_PROVIDERS),
    **dict.fromkeys((kad.AddProvider, kad.Added), _Type.ADD_PROVIDER),
    **dict.fromkeys((kad.GetValue, kad.Value), _Type.GET_VALUE),
    **dict.fromkeys((kad.PutValue, kad.Stored), _Type.PUT_VALUE),
}


def encode(message: kad.Message, charter: int = 0) -> bytes:
    """The protobuf of a message that this side made; nothing in it is checked. It
    carries the version of the sender's charter."""
    wire = kad_pb2.Message(charter=charter)
    wire.type = _TYPES[type(message)]
    match message:
        case kad.Ping() | kad.Pong():
            pass
        case kad.FindNode(name, dial_back):
            wire.key, wire.dialBack = name, dial_back
        case kad.GetValue(name):
            wire.key = name
        case kad.Nodes(closer, reached):
            wire.closerPeers.extend(map(_closer_peer, closer))
            if reached is not None:
                wire.reached = reached
        case kad.GetProviders(name, query):
            wire.key = name
            if query is not None:
                wire.query.target = key_to_bytes(query.target)
                wire.query.requirements = query.requirements
                wire.query.limit = query.limit
        case kad.Providers(providers, closer, count):
            wire.closerPeers.extend(map(_closer_peer, closer))
            wire.providerPeers.extend(_write_peer(p.contact, p.profile) for p in providers)
            if count is not None:
                wire.shards.append(_write_count(count))
        case kad.AddProvider(name, provider, more, acknowledged):
            wire.key = name
            wire.providerPeers.append(_write_peer(provider.contact, provider.profile))
            wire.moreKeys.extend(more)
            wire.acknowledged = acknowledged
        case kad.Added(counts, closer):
            wire.closerPeers.extend(map(_closer_peer, closer))
            wire.shards.extend(map(_write_count, counts))
        case kad.Value(value, closer, name, received_unix_s):
            wire.closerPeers.extend(map(_closer_peer, closer))
            if value is not None:
                wire.record.key, wire.record.value = name, value
            if value is not None and received_unix_s is not None:
                received = datetime.fromtimestamp(received_unix_s, UTC)
                wire.record.timeReceived = received.isoformat().replace("+00:00", "Z")
        case kad.PutValue(name, value) | kad.Stored(name, value):
            wire.key = wire.record.key = name
            wire.record.value = value
        case _:
            assert_never(message)
    return wire.SerializeToString()


def parse_request(raw: bytes, sender: PeerId | None = None) -> kad.Request:
    """As `parse_asked`, without the version."""
    return parse_asked(raw, sender)[0]


def parse_asked(raw: bytes, sender: PeerId | None = None) -> tuple[kad.Request, int]:
    """A request, and the version of the sender's charter. Of several providers that ADD_PROVIDER
    names, the one that is its sender counts. Raises ProtocolViolation for all but a request within
    the bounds."""
    wire = read_protobuf(kad_pb2.Message, raw, "a DHT message")
    return _read_request(wire, sender), min(wire.charter, MAX_INT)


def _read_request(wire: kad_pb2.Message, sender: PeerId | None) -> kad.Request:
    if wire.type == _Type.PING:
        return kad.Ping()
    if not 0 < len(wire.key) <= kad.MAX_NAME_BYTES:
        raise ProtocolViolation(
            f"a key of {len(wire.key)} bytes; 1 to {kad.MAX_NAME_BYTES} are allowed"
        )
    if wire.type == _Type.FIND_NODE:
        return kad.FindNode(wire.key, wire.dialBack)
    if wire.type == _Type.GET_PROVIDERS:
        return kad.GetProviders(wire.key, _read_query(wire) if wire.HasField("query") else None)
    if wire.type == _Type.ADD_PROVIDER:
        if len(wire.providerPeers) > 1:
            _keep_sender(wire, sender)
        providers = _read_providers(wire)
        if not providers:
            raise ProtocolViolation("ADD_PROVIDER names 0 providers that can be read, not one")
        more = tuple(wire.moreKeys[: kad.MAX_NAMES])
        if not all(0 < len(name) <= kad.MAX_NAME_BYTES for name in more):
            raise ProtocolViolation(f"a further key of other than 1 to {kad.MAX_NAME_BYTES} bytes")
        if len({wire.key, *more}) <= len(more):  # each is counted, for who waits for a reply
            raise ProtocolViolation("a key is given twice")
        return kad.AddProvider(wire.key, providers[0], more, wire.acknowledged)
    if wire.type == _Type.GET_VALUE:
        return kad.GetValue(wire.key)
    if wire.type == _Type.PUT_VALUE:
        value = _read_value(wire, wire.key)
        if wire.record.key != wire.key:
            raise ProtocolViolation("PUT_VALUE has a record with another key than its own")
        return kad.PutValue(wire.key, value)
    raise ProtocolViolation(f"message type {wire.type} is not in the specification")


def parse_reply(raw: bytes, request: kad.Request) -> kad.Reply | None:
    """As `parse_answer`, without the version."""
    return parse_answer(raw, request)[0]


def parse_answer(raw: bytes, request: kad.Request) -> tuple[kad.Reply | None, int]:
    """The reply to `request`, None for a plain ADD_PROVIDER, which has none; and the version of the
    sender's charter. Raises ProtocolViolation for all else."""
    if isinstance(request, kad.AddProvider) and not request.acknowledged:
        return None, 0
    wire = read_protobuf(kad_pb2.Message, raw, "a DHT message")
    return _read_reply(wire, request), min(wire.charter, MAX_INT)


def _read_reply(wire: kad_pb2.Message, request: kad.Request) -> kad.Reply:
    expected = _TYPES[type(request)]
    if wire.type != expected:
        raise ProtocolViolation(f"a reply of type {wire.type} to a request of type {expected}")
    match request:
        case kad.Ping():
            return kad.Pong()
        case kad.FindNode():
            reached = wire.reached if wire.HasField("reached") else None
            return kad.Nodes(_read_closer(wire), reached)
        case kad.GetProviders():
            count = _read_count(wire.shards[0]) if wire.shards else None
            most = kad.MAX_PROVIDERS if request.query is None else request.query.limit
            return kad.Providers(_read_providers(wire, most), _read_closer(wire), count)
        case kad.AddProvider(names=names):
            if len(wire.shards) != len(names):
                raise ProtocolViolation(f"{len(wire.shards)} counts for {len(names)} names")
            return kad.Added(tuple(map(_read_count, wire.shards)), _read_closer(wire))
        case kad.GetValue():
            value = _read_value(wire, request.name) if wire.HasField("record") else None
            return kad.Value(value, _read_closer(wire), wire.record.key)
        case kad.PutValue():
            return kad.Stored(request.name, _read_value(wire, request.name))
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


def _read_query(wire: kad_pb2.Message) -> kad.ProviderQuery:
    query = wire.query
    if len(query.requirements) > kad.MAX_REQUIREMENTS_BYTES:
        raise ProtocolViolation(f"requirements of {len(query.requirements)} bytes")
    try:
        target = key_from_bytes(query.target)
    except ValueError as error:
        raise ProtocolViolation(str(error)) from error
    limit = min(query.limit, kad.MAX_RECORDS)
    return kad.ProviderQuery(target, query.requirements, limit)


def _read_value(wire: kad_pb2.Message, name: bytes) -> bytes:
    is_charter = name.startswith(kad.CHARTER_PREFIX)
    if len(wire.record.value) > (kad.MAX_CHARTER_BYTES if is_charter else kad.MAX_VALUE_BYTES):
        raise ProtocolViolation(f"a value of {len(wire.record.value)} bytes")
    return wire.record.value


def _read_providers(
    wire: kad_pb2.Message, most: int = kad.MAX_PROVIDERS
) -> tuple[kad.Provider, ...]:
    providers = []
    for peer in wire.providerPeers[: max(most, kad.MAX_PROVIDERS)]:
        if len(peer.profile) > kad.MAX_VALUE_BYTES:
            raise ProtocolViolation(f"a profile of {len(peer.profile)} bytes")
        contact = _read_peer(peer)
        if contact is not None:
            providers.append(kad.Provider(contact, peer.profile))
    return tuple(providers)


def _read_closer(wire: kad_pb2.Message) -> tuple[Contact, ...]:
    contacts = (_read_peer(peer) for peer in wire.closerPeers[: kad.MAX_CLOSER])
    return tuple(contact for contact in contacts if contact is not None)


def _read_peer(peer: kad_pb2.Message.Peer) -> Contact | None:
    """None where the id cannot be read: a newer kind of id must not spoil the rest."""
    if len(peer.id) > kad.MAX_ID_BYTES:
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


_numbers = attrgetter(*kad.ShardCount._fields)


def _read_count(shard: kad_pb2.ShardCount) -> kad.ShardCount:
    count = kad.ShardCount(*_numbers(shard))
    return count if count.depth <= MAX_DEPTH else count._replace(depth=MAX_DEPTH)


def _write_count(count: kad.ShardCount) -> kad_pb2.ShardCount:
    return kad_pb2.ShardCount(**count._asdict())


def _write_peer(contact: Contact, profile: bytes = b"") -> kad_pb2.Message.Peer:
    peer = kad_pb2.Message.Peer(id=peer_id_to_bytes(contact.peer_id), profile=profile)
    peer.addrs.extend(address_bytes(text) for text in contact.addresses[:MAX_ADDRESSES])
    return peer


_closer_peer = lru_cache(maxsize=4096)(_write_peer)  # as above
