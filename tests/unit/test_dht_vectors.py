"""Messages and addresses of other implementations: their own test vectors where those are at hand
(in the folder that FORMATION_VECTORS names, or beside the project), and always some of the same
shapes, made by hand from the specifications.

What is in them is read here by a protobuf reader of ten lines, and compared with what ours says.
"""

import csv
import os
from pathlib import Path
from typing import Final

import pytest

from formation_p2p.dht.core.messages import encode
from formation_p2p.records.core.addresses import address_bytes, address_text
from tests.support.dht_messages import parse_request

ROOT: Final = Path(__file__).resolve().parents[2]
VECTORS: Final = Path(
    os.environ.get("FORMATION_VECTORS", ROOT.parent / "shared" / "vectors" / "conformance")
)

Field = tuple[int, int | bytes]

PUT_VALUE, GET_VALUE, ADD_PROVIDER, FIND_NODE = 0, 1, 2, 4
TYPE, KEY, RECORD, PROVIDER, CLUSTER_LEVEL = 1, 2, 3, 9, 10


def varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def written(*fields: Field) -> bytes:
    """As js-libp2p does it: in the order of the numbers, zeros included."""
    return b"".join(
        varint(number << 3) + varint(value)
        if isinstance(value, int)
        else varint(number << 3 | 2) + varint(len(value)) + value
        for number, value in fields
    )


def read(message: bytes, *numbers: int) -> dict[int, int | bytes]:
    """The fields, each of which is there once, and all numbers and lengths of one byte. Those of
    these `numbers` are integers, and all others bytes."""
    fields: dict[int, int | bytes] = {}
    while message:
        field, value, message = message[0] >> 3, message[1], message[2:]
        assert field not in fields
        if field in numbers:
            fields[field] = value
        else:
            fields[field], message = message[:value], message[value:]
    return fields


def read_message(message: bytes) -> dict[int, int | bytes]:
    return read(message, TYPE, CLUSTER_LEVEL)


def read_inner(fields: dict[int, int | bytes], field: int) -> dict[int, int | bytes]:
    """A record or a peer."""
    inner = fields[field]
    assert isinstance(inner, bytes)
    return read(inner)


NAME: Final = b"/v/hello"
MULTIHASH: Final = b"\x12\x20" + bytes(range(32))
PEER: Final = written((1, b"\x12\x20" + bytes(range(64, 96))), (2, b"\x04\x7f\0\0\1\x06\x0f\xa1"))

BY_HAND: Final = {
    "find a name": written((TYPE, FIND_NODE), (KEY, NAME), (CLUSTER_LEVEL, 0)),
    "find a multihash": written((TYPE, FIND_NODE), (KEY, MULTIHASH), (CLUSTER_LEVEL, 0)),
    "get": written((TYPE, GET_VALUE), (KEY, NAME), (CLUSTER_LEVEL, 0)),
    # The record's author, field 3, is of before the specification.
    "put": written(
        (TYPE, PUT_VALUE),
        (KEY, NAME),
        (RECORD, written((1, NAME), (2, b"world"), (3, MULTIHASH))),
        (CLUSTER_LEVEL, 0),
    ),
    "provide": written(
        (TYPE, ADD_PROVIDER), (KEY, MULTIHASH), (PROVIDER, PEER), (CLUSTER_LEVEL, 0)
    ),
}
MESSAGES: Final = BY_HAND | {
    path.name: path.read_bytes() for path in sorted(VECTORS.glob("js-kad-dht-msg-*.bin"))
}


@pytest.mark.parametrize("name", MESSAGES)
def test_what_we_write_for_it_lacks_nothing_but_what_the_specification_lacks(name: str) -> None:
    raw = MESSAGES[name]
    fields, ours = read_message(raw), read_message(encode(parse_request(raw)))
    del fields[CLUSTER_LEVEL]
    if RECORD in fields:
        record = read_inner(fields, RECORD)
        del record[3]
        assert read_inner(ours, RECORD) == record
        del fields[RECORD], ours[RECORD]
    # proto3 leaves out what is zero.
    assert {TYPE: 0} | ours == fields


def test_all_of_the_vectors_are_there_or_none() -> None:
    assert len(MESSAGES) - len(BY_HAND) in (0, 8)


# Code, bits (V: a length before them) and name, of the multiaddr specification's table.
PROTOCOLS_BY_HAND: Final = [
    ("4", "32", "ip4"),
    ("6", "16", "tcp"),
    ("41", "128", "ip6"),
    ("53", "V", "dns"),
    ("54", "V", "dns4"),
    ("55", "V", "dns6"),
    ("273", "16", "udp"),
    ("290", "0", "p2p-circuit"),
    ("421", "V", "p2p"),
    ("461", "0", "quic-v1"),
    ("477", "0", "ws"),
]
# What a node may be dialled at, or passes on for others.
WE_SPEAK: Final = {name for _, _, name in PROTOCOLS_BY_HAND}


def protocols() -> list[tuple[str, str, str]]:
    table = VECTORS / "multiaddr-protocols.csv"
    if not table.exists():
        return PROTOCOLS_BY_HAND
    with table.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    found = [(code.strip(), bits.strip(), name.strip()) for code, bits, name, *_ in rows]
    assert set(PROTOCOLS_BY_HAND) <= set(found)
    return found


@pytest.mark.parametrize(("code", "bits", "name"), protocols())
def test_an_address_of_any_protocol_is_read_back_or_left_out(
    code: str, bits: str, name: str
) -> None:
    value = b"a.example" if name.startswith("dns") else b"\x12\x20" + bytes(32)
    body = varint(len(value)) + value if bits == "V" else bytes(int(bits) // 8)
    raw = varint(int(code)) + body
    text = address_text(raw)
    if text is not None:
        assert address_bytes(text) == raw
    if name in WE_SPEAK:
        assert text is not None
        assert text.startswith(f"/{name}")
