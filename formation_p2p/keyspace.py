"""Kademlia's keys and its metric.

A key is an integer of 256 bits, the SHA-256 of a name read big-endian (as libp2p does with the
bytes of a peer id). Nothing here needs 256: the metric holds in any number of bits, and the
tests' worlds have 8.

Source: Maymounkov and Mazières, "Kademlia", 2002, section 2.1.
"""

from __future__ import annotations

import hashlib
from typing import Final, NewType

Key = NewType("Key", int)

KEY_BITS: Final = 256


def key_of(name: bytes) -> Key:
    """The key of a name: of a peer id's bytes, of a record's key as it stands on the wire."""
    return Key(int.from_bytes(hashlib.sha256(name).digest(), "big"))


def distance(a: Key, b: Key) -> int:
    """XOR distance. A metric: zero only for equals, symmetric, with the triangle inequality."""
    return a ^ b


def common_prefix(a: Key, b: Key, bits: int = KEY_BITS) -> int:
    """How many leading bits two keys share; `bits` for equal keys."""
    return bits - (a ^ b).bit_length()


def key_to_bytes(key: Key) -> bytes:
    """Big-endian, 32 bytes: the form on the wire."""
    return key.to_bytes(KEY_BITS // 8, "big")


def key_from_bytes(raw: bytes) -> Key:
    """The inverse of `key_to_bytes`. Raises ValueError for any other length."""
    if len(raw) != KEY_BITS // 8:
        raise ValueError(f"a key has 32 bytes, not {len(raw)}")
    return Key(int.from_bytes(raw, "big"))
