"""The messages of a Noise session in one direction, each with its number.

`noiseprotocol` has the same in four calls for each message, and cannot open one in place.

Source: Noise specification (r34), 5.1 "The CipherState object", 12.3 "ChaChaPoly", 12.4 "AESGCM".
"""

from __future__ import annotations

import time
from functools import cache
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from formation_p2p.core.units import KIB

TAG_BYTES: Final = 16
"""After the content of each message."""
KEY_BYTES: Final = 32
# A nonce: four bytes of zero, then the number of the message. Its eight bytes have the order that
# the specification gives for the cipher.
_ZEROS: Final = bytes(4)
_NUMBER_BYTES: Final = 8
# Some 50 us each, and the least of so many: another process may have the core meanwhile.
_SAMPLE_BYTES: Final = 64 * KIB
_SAMPLES: Final = 5


class Cipher:
    """Seals messages, or opens them; one for each direction."""

    def __init__(self, key: bytes, *, aes: bool) -> None:
        """`key` has KEY_BYTES. `aes`: by AES-GCM, and not ChaCha20-Poly1305."""
        self._aead: AESGCM | ChaCha20Poly1305 = AESGCM(key) if aes else ChaCha20Poly1305(key)
        self._aes = aes
        self._number = 0

    def seal(self, content: bytes | memoryview) -> bytes:
        return self._aead.encrypt(self._nonce(), content, None)

    def seal_into(self, content: bytes | memoryview, into: memoryview) -> None:
        """As `seal`; `into` has the length of what that returns."""
        self._aead.encrypt_into(self._nonce(), content, None, into)

    def open(self, message: memoryview) -> bytes:
        """Raises InvalidTag for one that the peer has not sealed, or not as the next."""
        return self._aead.decrypt(self._nonce(), message, None)

    def open_into(self, message: memoryview, into: memoryview) -> None:
        """As `open`, of one whose content has the length of `into`."""
        self._aead.decrypt_into(self._nonce(), message, None, into)

    def _nonce(self) -> bytes:
        number = self._number.to_bytes(_NUMBER_BYTES, "big" if self._aes else "little")
        self._number += 1
        return _ZEROS + number


@cache
def aes_is_faster() -> bool:
    """Whether this machine has instructions for AES, as far as time shows."""
    return _seconds(AESGCM(bytes(KEY_BYTES))) < _seconds(ChaCha20Poly1305(bytes(KEY_BYTES)))


def _seconds(aead: AESGCM | ChaCha20Poly1305) -> float:
    """That a sample takes."""
    sample = bytes(_SAMPLE_BYTES)
    least_s = float("inf")
    for _ in range(_SAMPLES):
        began_s = time.perf_counter()
        aead.encrypt(bytes(len(_ZEROS) + _NUMBER_BYTES), sample, None)
        least_s = min(least_s, time.perf_counter() - began_s)
    return least_s
