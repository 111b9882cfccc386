"""Messages of p2pd's control protocol: protobuf, as far as it is needed here.

On a daemon's socket each message is a protobuf with its length before it, as a varint. A client is
`p2pd.py`; a daemon of ours is `daemon_node.py`. Source: `p2pd.proto` of go-libp2p-daemon.
"""

from enum import IntEnum

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import peer_id_from_bytes, peer_id_to_bytes
from formation_p2p.records.core.addresses import address_bytes, read_addresses
from tests.support.protobuf import octets

Fields = dict[int, list[bytes | int]]


class Request(IntEnum):
    IDENTIFY = 0
    CONNECT = 1
    STREAM_OPEN = 2
    STREAM_HANDLER = 3
    DHT = 4
    LIST_PEERS = 5
    DISCONNECT = 7


class Dht(IntEnum):
    FIND_PEER = 0
    FIND_PROVIDERS = 2
    CLOSEST = 3
    GET_VALUE = 5
    PUT_VALUE = 7
    PROVIDE = 8


class Part(IntEnum):
    """Of an answer of the DHT that has several."""

    BEGIN = 0
    VALUE = 1
    END = 2


def fields_of(message: bytes) -> Fields:
    """All fields, of which the protocol has varints and bytes alone, in order."""
    fields: Fields = {}
    at = 0

    def read_varint() -> int:
        nonlocal at
        number, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(message):
        tag = read_varint()
        number = read_varint()
        value: bytes | int = number
        if tag & 7 == 2:
            value = message[at : at + number]
            at += number
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def one_bytes(fields: Fields, field: int) -> bytes:
    [value] = fields[field]
    assert isinstance(value, bytes)
    return value


def one_integer(fields: Fields, field: int) -> int:
    [value] = fields[field]
    assert isinstance(value, int)
    return value


def addresses_in(fields: Fields, field: int) -> tuple[str, ...]:
    """Without a trailing `/p2p/…`, as Contact has them."""
    raws = [raw for raw in fields.get(field, []) if isinstance(raw, bytes)]
    return tuple(text.partition("/p2p/")[0] for text in read_addresses(raws))


def contact_in(peer: bytes | int) -> Contact:
    assert isinstance(peer, bytes)
    fields = fields_of(peer)
    return Contact(peer_id_from_bytes(one_bytes(fields, 1)), addresses_in(fields, 2))


def peer_info(contact: Contact) -> bytes:
    """An id and its addresses: also what IDENTIFY answers, and CONNECT asks."""
    raws = b"".join(octets(2, address_bytes(each)) for each in contact.addresses)
    return octets(1, peer_id_to_bytes(contact.peer_id)) + raws
