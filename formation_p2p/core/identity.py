"""A node's identity: an Ed25519 key pair, and the libp2p peer id that follows from it.

Source: libp2p peer-ids specification. An Ed25519 peer id is the identity multihash of the
protobuf `PublicKey {Type: Ed25519, Data: 32 bytes}`, written in base58btc (`12D3KooW…`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NewType, Self

from formation_p2p.core.keyspace import Key, key_of

if TYPE_CHECKING:  # a command that goes through a running node signs and verifies nothing
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PeerId = NewType("PeerId", str)
"""A libp2p peer id in base58btc. Made by `peer_id_from_bytes`, `parse_peer_id` or an Identity."""

# PublicKey{Type: Ed25519 = 1, Data: 32 bytes}, up to the data.
_PUBLIC_KEY_PREFIX: Final = bytes.fromhex("08011220")
# Multihash: code 0x00 (identity), length 36.
_IDENTITY_MULTIHASH: Final = b"\x00\x24"
# Multihash: code 0x12 (sha2-256), length 32: peer ids of RSA keys, which foreign peers may have.
_SHA256_MULTIHASH: Final = b"\x12\x20"
# CID: version 1, codec 0x72 (libp2p-key); then the multihash.
_PEER_CID: Final = b"\x01\x72"
_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DIGITS: Final = {character: digit for digit, character in enumerate(_BASE58)}
# Enough of a peer id to tell a few thousand apart. All begin alike: the end differs.
SHORT_ID_CHARS: Final = 8


@lru_cache(maxsize=65_536)  # base58 costs 10 us, and a node meets the same few thousand peers
def peer_id_from_bytes(raw: bytes) -> PeerId:
    """Raises ValueError for all but the multihashes that libp2p uses for peer ids."""
    if (raw[:2], len(raw)) in ((_IDENTITY_MULTIHASH, 38), (_SHA256_MULTIHASH, 34)):
        return PeerId(to_base58(raw))
    raise ValueError(f"{len(raw)} bytes that are not a peer id")


@lru_cache(maxsize=65_536)  # as above
def peer_id_to_bytes(peer_id: PeerId) -> bytes:
    return from_base58(peer_id)


@lru_cache(maxsize=65_536)  # as above
def key_of_peer(peer_id: PeerId) -> Key:
    """Where a peer stands in the key space: SHA-256 of its id's bytes, as libp2p has it."""
    return key_of(peer_id_to_bytes(peer_id))


def parse_peer_id(text: str) -> PeerId:
    """From base58btc, or from a CID in base32, base36 or base58btc. Raises ValueError for anything
    else.

    Source: libp2p peer-ids specification, "String representation".
    """
    # 72: the longest CID of a peer id in use has 65 characters; these bases are quadratic.
    if len(text) > 72:
        raise ValueError(f"{text[:16]}… is too long for a peer id")
    if not (text.isascii() and text.isalnum()):
        raise ValueError("a peer id has letters and digits alone")
    if text.startswith(("1", "Qm")):
        return peer_id_from_bytes(from_base58(text))
    read = _MULTIBASES.get(text[:1])
    cid = b"" if read is None else read(text[1:])
    if not cid.startswith(_PEER_CID):
        raise ValueError(f"{text} is no peer id; those begin with 12D3KooW, Qm, bafz or k51")
    return peer_id_from_bytes(cid.removeprefix(_PEER_CID))


def to_base58(raw: bytes) -> str:
    """Base58btc: a number in the digits of Bitcoin, and a `1` for each zero that it begins with."""
    number = int.from_bytes(raw)
    digits = []
    while number:
        number, digit = divmod(number, 58)
        digits.append(_BASE58[digit])
    zeros = len(raw) - len(raw.lstrip(b"\0"))
    return "1" * zeros + "".join(reversed(digits))


def from_base58(text: str) -> bytes:
    """Raises ValueError for text with other characters."""
    number = 0
    for character in text:
        if (digit := _DIGITS.get(character)) is None:
            raise ValueError(f"{character!r} is no digit of base58")
        number = number * 58 + digit
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8)


def _base32(text: str) -> bytes:
    return base64.b32decode(text.upper() + "=" * (-len(text) % 8))


def _base36(text: str) -> bytes:
    number = int(text, 36)  # of a CID, which begins with no zero
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


# The multibases that peer ids are written in, by their first character.
_MULTIBASES: Final[Mapping[str, Callable[[str], bytes]]] = {
    "b": _base32,
    "k": _base36,
    "z": from_base58,
}


def short_id(peer_id: str) -> str:
    """For people: `…Zk3nVq7w`."""
    return f"…{peer_id[-SHORT_ID_CHARS:]}"


def shown_peer(peer_id: str, name: str | None = None) -> str:
    """For people: `anna-desktop …Zk3nVq7w`. Names are not unique, so the end of the id is always
    there; it stands alone where no name is known."""
    return f"{name} {short_id(peer_id)}" if name else short_id(peer_id)


def peer_id_of(public_key: bytes) -> PeerId:
    """The peer id of a raw Ed25519 public key of 32 bytes."""
    return peer_id_from_bytes(_IDENTITY_MULTIHASH + _PUBLIC_KEY_PREFIX + public_key)


def verify(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether `signature` is that of `message` under a raw Ed25519 public key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_key_of(peer_id: PeerId) -> bytes | None:
    """The raw Ed25519 key of a peer; None for one whose id does not hold it."""
    raw = peer_id_to_bytes(peer_id)
    prefix = _IDENTITY_MULTIHASH + _PUBLIC_KEY_PREFIX
    return raw[len(prefix) :] if raw.startswith(prefix) else None


def is_signed_by(peer_id: PeerId, signature: bytes, message: bytes) -> bool:
    """Whether the peer has signed it; False for a peer whose id does not hold its key."""
    key = public_key_of(peer_id)
    return key is not None and verify(key, signature, message)


@dataclass(frozen=True, slots=True)
class Identity:
    """A private key and what follows from it. Its `repr` shows the peer id alone."""

    _private: Ed25519PrivateKey
    peer_id: PeerId
    public_key: bytes

    @classmethod
    def from_seed(cls, seed: bytes) -> Self:
        """From the 32 bytes of an Ed25519 private key (RFC 8032's seed)."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        private = Ed25519PrivateKey.from_private_bytes(seed)
        public = private.public_key().public_bytes_raw()
        return cls(private, peer_id_of(public), public)

    @property
    def seed(self) -> bytes:
        """The secret. For the key file only."""
        return self._private.private_bytes_raw()

    @property
    def libp2p_public_key(self) -> bytes:
        """The public key as libp2p's protobuf."""
        return _PUBLIC_KEY_PREFIX + self.public_key

    @property
    def key(self) -> Key:
        return key_of_peer(self.peer_id)

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"
