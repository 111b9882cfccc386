"""Kademlia's keys and its metric.

A key is an integer of 256 bits, the SHA-256 of a name read big-endian (as libp2p does with the
bytes of a peer id). Nothing here needs 256: the metric holds in any number of bits, and the
tests' worlds have 8.

Source: Maymounkov and Mazières, "Kademlia", 2002, section 2.1.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple, NewType

Key = NewType("Key", int)

KEY_BITS: Final = 256
# Of the shards of a bucket (records/core/buckets.py): 2**24 of 24 workers are 400 million.
MAX_DEPTH: Final = 24


class Span(NamedTuple):
    """From which depth to which a worker announces itself in full: one depth as a rule, two
    while its shard splits or merges. Depth is the number of leading bits that a shard shares."""

    low: int = 0
    high: int = 0


WHOLE: Final = Span()


def key_of(name: bytes) -> Key:
    """The key of a name: of a peer id's bytes, of a record's key as it stands on the wire."""
    return Key(int.from_bytes(hashlib.sha256(name).digest(), "big"))


def distance(a: Key, b: Key) -> int:
    """XOR distance. A metric: zero only for equals, symmetric, with the triangle inequality."""
    return a ^ b


def prefix(key: Key, depth: int) -> str:
    """The first `depth` bits of a key, as text: `0110`."""
    return f"{key >> (KEY_BITS - depth):0{depth}b}" if depth else ""


def key_to_bytes(key: Key) -> bytes:
    """Big-endian, 32 bytes: the form on the wire."""
    return key.to_bytes(KEY_BITS // 8, "big")


def key_from_bytes(raw: bytes) -> Key:
    """The inverse of `key_to_bytes`. Raises ValueError for any other length."""
    if len(raw) != KEY_BITS // 8:
        raise ValueError(f"a key has 32 bytes, not {len(raw)}")
    return Key(int.from_bytes(raw, "big"))
