"""The messages of a Noise session in one direction, each with its number.

`noiseprotocol` has the same in four calls for each message, and cannot open one in place.

Source: Noise specification (r34), 5.1 "The CipherState object", 12.3 "ChaChaPoly".
"""

from __future__ import annotations

from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

TAG_BYTES: Final = 16
"""After the content of each message."""
# A nonce: four bytes of zero, then the number of the message, little-endian.
_NONCE_BYTES: Final = 12
_ZERO_BITS: Final = 32


class Cipher:
    """Seals messages, or opens them; one for each direction."""

    def __init__(self, key: bytes) -> None:
        """`key` has 32 bytes."""
        self._aead = ChaCha20Poly1305(key)
        self._number = 0

    def seal(self, content: bytes | memoryview) -> bytes:
        return self._aead.encrypt(self._nonce(), content, None)

    def open(self, message: memoryview) -> bytes:
        """Raises InvalidTag for one that the peer has not sealed, or not as the next."""
        return self._aead.decrypt(self._nonce(), message, None)

    def open_into(self, message: memoryview, into: memoryview) -> None:
        """As `open`, of one whose content has the length of `into`."""
        self._aead.decrypt_into(self._nonce(), message, None, into)

    def _nonce(self) -> bytes:
        nonce = (self._number << _ZERO_BITS).to_bytes(_NONCE_BYTES, "little")
        self._number += 1
        return nonce
