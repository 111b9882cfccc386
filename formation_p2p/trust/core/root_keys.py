"""The keys at the root of a network: one, or m of n.

A network is named by 32 bytes. Where one key is its root, they are that public key. Where the root
is split, they are the SHA-256 of how many of which keys sign together: a peer that shows the
keys proves with it that they are the right ones, so that an invite need not carry them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, peer_id_of, verify
from formation_p2p.machine.core.bounds import check_amount
from formation_p2p.records.core import codec

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
# A board of a cooperative; more signatures would cost every reader of a charter more.
MAX_SIGNERS: Final = 16

Signature = tuple[bytes, bytes]
"""A public key, and what it signed with."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """`threshold` of these Ed25519 public keys sign together. Raises InvalidInput."""

    threshold: int
    keys: tuple[bytes, ...]

    def __post_init__(self) -> None:
        keys = tuple(sorted(self.keys))
        object.__setattr__(self, "keys", keys)
        check_amount("signers", len(keys), 1, MAX_SIGNERS)
        check_amount("threshold", self.threshold, 1, len(keys))
        if not all(type(key) is bytes and len(key) == KEY_BYTES for key in keys):
            raise InvalidInput("signers", f"a public key has {KEY_BYTES} bytes")
        if len(set(keys)) != len(keys):
            raise InvalidInput("signers", "one key is named twice; name each once")

    def signers(self) -> tuple[PeerId, ...]:
        """The keys as people write them: as the ids of peers."""
        return tuple(map(peer_id_of, self.keys))

    def count(self, signatures: Iterable[Signature]) -> int:
        """How many of the keys are among those that signed. Whether the signatures are good is
        checked before."""
        return len({key for key, _ in signatures} & set(self.keys))

    def pack(self) -> list[object]:
        return [self.threshold, list(self.keys)]

    def root_id(self) -> bytes:
        """What names a network of this root."""
        if len(self.keys) == 1:
            return self.keys[0]
        return hashlib.sha256(b"formation root\x00" + codec.encode(self.pack())).digest()


def read_key_set(value: object, field: str) -> KeySet:
    """Of what `KeySet.pack` gave. Raises Malformed, or InvalidInput."""
    row = codec.take_list(value, field, 2)
    if len(row) != 2:
        raise codec.Malformed(field, "is not a threshold and its keys")
    keys = codec.take_list(row[1], field, MAX_SIGNERS)
    return KeySet(
        codec.take_int(row[0], field, 1, MAX_SIGNERS),
        tuple(codec.take_bytes(key, field, KEY_BYTES) for key in keys),
    )


def read_signatures(value: object, most: int) -> tuple[Signature, ...]:
    """In ascending order of the keys, each once. Raises Malformed."""
    pairs = codec.take_list(value, "signatures", most)
    flat = [part for pair in pairs for part in codec.take_list(pair, "signatures", 2)]
    if len(flat) != 2 * len(pairs):
        raise codec.Malformed("signatures", "holds what is no key and signature")
    keys = [codec.take_bytes(key, "signatures", KEY_BYTES) for key in flat[::2]]
    signed = [codec.take_bytes(each, "signatures", SIGNATURE_BYTES) for each in flat[1::2]]
    if any(len(key) != KEY_BYTES for key in keys):
        raise codec.Malformed("signatures", f"one is by no key of {KEY_BYTES} bytes")
    if any(one >= other for one, other in pairwise(keys)):
        raise codec.Malformed("signatures", "one key signed twice, or they are out of order")
    return tuple(zip(keys, signed, strict=True))


def first_bad(
    signatures: Iterable[Signature], message: bytes, known: frozenset[bytes]
) -> PeerId | None:
    """Who of them is not among the known keys, or has not signed this. It stops there: what a
    stranger sends costs one check."""
    for key, signature in signatures:
        if key not in known or not verify(key, signature, message):
            return peer_id_of(key)
    return None
