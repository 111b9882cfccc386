"""Sealed boxes: what one peer alone can open, made by anybody who knows its id.

As libsodium's `crypto_box_seal`: a key pair for this box alone, X25519 with the peer's key, and one
AEAD over the content. A peer's X25519 key follows from its Ed25519 key, which its id holds
(RFC 7748, section 4.1: the curves are one, in two forms), so that no other key is to be announced.

    box = public key of the box (32 bytes) + ChaCha20-Poly1305(content, context)
"""

from __future__ import annotations

import hashlib
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity, PeerId, public_key_of

KEY_BYTES: Final = 32
# The key and the tag.
OVERHEAD_BYTES: Final = KEY_BYTES + 16
_INFO: Final = b"formation-sealed-box-1"
# Of Curve25519, whose points Ed25519 writes by their y, and X25519 by u = (1 + y) / (1 - y).
_P: Final = 2**255 - 19
# Each box has a key of its own.
_NONCE: Final = bytes(12)


def seal(to: PeerId, content: bytes, context: bytes = b"") -> bytes:
    """Raises InvalidInput for a peer whose id holds no key. Who opens it names the same context."""
    public = public_key_of(to)
    if public is None:
        raise InvalidInput("peer", f"{to} has no Ed25519 key, for which boxes are sealed")
    y = int.from_bytes(public, "little") & (2**255 - 1)
    theirs = ((1 + y) * pow(1 - y, -1, _P) % _P).to_bytes(KEY_BYTES, "little")
    own = X25519PrivateKey.generate()
    key = own.public_key().public_bytes_raw()
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:
        raise InvalidInput("peer", f"{to} has a key that is none") from None
    return key + _cipher(shared, key, theirs).encrypt(_NONCE, content, context)


def opened(identity: Identity, box: bytes, context: bytes = b"") -> bytes:
    """Raises InvalidInput for anything but a box for this peer, in this context."""
    seed = hashlib.sha512(identity.seed).digest()[:KEY_BYTES]
    own = X25519PrivateKey.from_private_bytes(seed)
    key = box[:KEY_BYTES]
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(key))
        cipher = _cipher(shared, key, own.public_key().public_bytes_raw())
        return cipher.decrypt(_NONCE, box[KEY_BYTES:], context)
    except (ValueError, InvalidTag):
        raise InvalidInput("box", "is not sealed for this peer, or was altered") from None


def _cipher(shared: bytes, key: bytes, theirs: bytes) -> ChaCha20Poly1305:
    hkdf = HKDF(SHA256(), KEY_BYTES, salt=None, info=_INFO + key + theirs)
    return ChaCha20Poly1305(hkdf.derive(shared))
