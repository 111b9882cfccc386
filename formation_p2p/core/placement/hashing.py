"""Hashes of names that another system, Formation, places by: 64 bits, compared by XOR.

They are for a mixed cluster, where every node has to name the same worker as the nodes of Formation
beside it. Our own keys are those of the DHT (core/keyspace.py).

Sources: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012; what Rust's
`DefaultHasher` makes of a `str` (SipHash-1-3, both keys zero, the text and a byte 0xff).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.resources.bounds import shown

_MASK: Final = 2**64 - 1
# "somepseudorandomlygeneratedbytes": the state that both keys are mixed into.
_START: Final = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def default_hasher(name: str) -> int:
    """As Formation's form-pack ranks nodes for a build: Rust's `DefaultHasher`."""
    return _siphash13(name.encode() + b"\xff")


def sha256_low64(name: str) -> int:
    """As Formation's form-state ranks nodes for a task: the first 8 bytes of SHA-256, the lowest
    first."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


HASHES: Final[Mapping[str, Callable[[str], int]]] = {
    "default-hasher": default_hasher,
    "sha256-64": sha256_low64,
}
"""By the name that a policy is written with: `xor(sha256-64)`."""


def hash_of(field: str, name: str) -> Callable[[str], int]:
    """Raises InvalidInput for a name that none of them has."""
    if name not in HASHES:
        known = " and ".join(sorted(HASHES))
        raise InvalidInput(field, f"{shown(name)} is not a hash of names; there are {known}")
    return HASHES[name]


def _siphash13(message: bytes) -> int:
    """One round for each word, three at the end; both keys zero."""
    tail = len(message) % 8
    padded = message + bytes(7 - tail) + bytes([len(message) & 0xFF])
    a, b, c, d = _START
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        a, b, c, d = _round(a, b, c, d ^ word)
        a ^= word
    c ^= 0xFF
    for _ in range(3):
        a, b, c, d = _round(a, b, c, d)
    return a ^ b ^ c ^ d


def _round(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    a = a + b & _MASK
    b = _rotated(b, 13) ^ a
    a = _rotated(a, 32)
    c = c + d & _MASK
    d = _rotated(d, 16) ^ c
    a = a + d & _MASK
    d = _rotated(d, 21) ^ a
    c = c + b & _MASK
    b = _rotated(b, 17) ^ c
    c = _rotated(c, 32)
    return a, b, c, d


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _MASK
