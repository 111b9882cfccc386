"""The Noise handshake: each side proves its identity, and both get the keys of the session.

Pattern XX, in three messages. The second and the third carry libp2p's payload: a peer's public key,
and its signature of the Noise key that it uses here. Where both say there that AES is faster on
their machines, the messages after the handshake are sealed by AES-GCM, and by ChaCha20-Poly1305
otherwise: no one else can read or change the payloads.

Source: Noise specification (r34); libp2p noise specification (r5), "Noise Extensions"; libp2p
peer-ids specification, "Keys".
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from formation_p2p.core.identity import (
    Identity,
    PeerId,
    peer_id_from_bytes,
    peer_id_of,
    verify,
)
from formation_p2p.core.units import KIB
from formation_p2p.net.transport.errors import SwarmException
from formation_p2p.net.transport.libp2p_pb2 import NoiseExtensions, NoiseHandshakePayload
from formation_p2p.net.transport.raw import ByteStream
from formation_p2p.records.core.envelope_pb2 import ECDSA, RSA, Ed25519, PublicKey

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
    """Seals messages, or opens them, each with its number; one for each direction.

    Source: Noise specification, 5.1 "The CipherState object", 12.3 "ChaChaPoly", 12.4 "AESGCM".
    """

    def __init__(self, key: bytes, *, aes: bool) -> None:
        """`key` has KEY_BYTES. `aes`: by AES-GCM, and not ChaCha20-Poly1305."""
        self._aead: AESGCM | ChaCha20Poly1305 = AESGCM(key) if aes else ChaCha20Poly1305(key)
        self._aes = aes
        self._number = 0

    def seal(self, content: bytes | memoryview, bound_to: bytes | None = None) -> bytes:
        """`bound_to`: with the same alone the message can be opened."""
        return self._aead.encrypt(self._nonce(), content, bound_to)

    def seal_into(self, content: bytes | memoryview, into: memoryview) -> None:
        """As `seal`; `into` has the length of what that returns."""
        self._aead.encrypt_into(self._nonce(), content, None, into)

    def open(self, message: bytes | memoryview, bound_to: bytes | None = None) -> bytes:
        """Raises InvalidTag for one that the peer has not sealed, or not as the next."""
        return self._aead.decrypt(self._nonce(), message, bound_to)

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


PROTOCOL: Final = "/noise"
LENGTH_BYTES: Final = 2
"""Before each message, in the handshake and after it: big-endian."""
# Of one message, without the tag of its cipher: with it, 65,535.
MAX_MESSAGE_BYTES: Final = 65_535
MAX_PLAINTEXT_BYTES: Final = MAX_MESSAGE_BYTES - TAG_BYTES

_NAME: Final = b"Noise_XX_25519_ChaChaPoly_SHA256"
# What each message of pattern XX has before its payload: keys, and secrets of two keys, of which
# the first is of the one that dials.
_MESSAGES: Final = (("e",), ("e", "ee", "s", "es"), ("s", "se"))
_SIGNED_PREFIX: Final = b"noise-libp2p-static-key:"
# Of RSA keys, as go-libp2p: smaller ones are weak, checking larger ones takes long.
_RSA_BITS: Final = range(2048, 8192 + 1)
# As Go's crypto/rsa: to check a signature takes longer with each bit, 20 ms with 3,070 of them.
_MAX_RSA_EXPONENT: Final = 2**31 - 1
# Multihash: code 0x12 (sha2-256), length 32: ids of keys that are longer than 42 bytes.
_SHA256_MULTIHASH: Final = b"\x12\x20"


@dataclass(frozen=True, slots=True)
class NoiseKeys:
    """What a node proves its identity with: a key for Noise alone, and the payload that says whose
    it is. Made once for all connections of a stack."""

    static: X25519PrivateKey = field(repr=False)
    payload: bytes
    aes: bool = False
    """Whether the payload says that AES is faster here."""

    @classmethod
    def of(cls, identity: Identity) -> Self:
        return cls.signed(identity.libp2p_public_key, identity.sign)

    @classmethod
    def signed(
        cls, public_key: bytes, sign: Callable[[bytes], bytes], *, aes: bool | None = None
    ) -> Self:
        """A new one, for the owner of a key of any kind. `public_key` is libp2p's protobuf. For
        None as `aes` it is measured."""
        aes = aes_is_faster() if aes is None else aes
        static = X25519PrivateKey.generate()
        public = static.public_key().public_bytes_raw()
        said = NoiseHandshakePayload(
            identity_key=public_key,
            identity_sig=sign(_SIGNED_PREFIX + public),
            extensions=NoiseExtensions(aes_gcm=True) if aes else None,
        )
        return cls(static, said.SerializeToString(), aes)


class Secured(NamedTuple):
    """What a handshake comes to."""

    peer: PeerId
    sealing: Cipher
    opening: Cipher


class Handshake:
    """One side of pattern XX, without its connection: `write` and `read` by turns, the one that
    dials first, three times in all; then `ciphers`. A message that is not right raises InvalidTag
    or ValueError, after which there is no going on.

    Source: Noise specification, 5 "Processing rules", 7.5 "Interactive handshake patterns".
    """

    def __init__(
        self,
        static: X25519PrivateKey,
        *,
        dials: bool,
        ephemeral: X25519PrivateKey | None = None,
        prologue: bytes = b"",
    ) -> None:
        """A test gives `ephemeral`, which is new in each handshake, and `prologue`, of which libp2p
        has none."""
        self._dials = dials
        self._own = {"s": static, "e": ephemeral or X25519PrivateKey.generate()}
        self._theirs: dict[str, X25519PublicKey] = {}
        self._left: Iterator[tuple[str, ...]] = iter(_MESSAGES)
        # The name has the length of a hash, so that it stands for its own.
        self._chain = _NAME
        self._cipher: Cipher | None = None
        self.hash = hashlib.sha256(_NAME + prologue).digest()
        """Of all that was said. Once the handshake is over, both sides have the same."""

    @property
    def their_static(self) -> bytes:
        """The key that the peer has proved to have, from its second message on."""
        return self._theirs["s"].public_bytes_raw()

    def write(self, payload: bytes = b"") -> bytes:
        message = b""
        for token in next(self._left):
            if len(token) == 1:
                key = self._own[token].public_key().public_bytes_raw()
                message += self._sealed(key) if token == "s" else self._mixed(key)
            else:
                self._agree(token)
        return message + self._sealed(payload)

    def read(self, message: bytes) -> bytes:
        """Its payload."""
        for token in next(self._left):
            if len(token) == 1:
                size = KEY_BYTES if token == "e" else KEY_BYTES + TAG_BYTES
                key, message = message[:size], message[size:]
                key = self._opened(key) if token == "s" else self._mixed(key)
                self._theirs[token] = X25519PublicKey.from_public_bytes(key)
            else:
                self._agree(token)
        return self._opened(message)

    def ciphers(self, *, aes: bool = False) -> tuple[Cipher, Cipher]:
        """To seal what follows, and to open it."""
        keys = [Cipher(key, aes=aes) for key in _derived(self._chain, b"")]
        sealing, opening = keys if self._dials else reversed(keys)
        return sealing, opening

    def _agree(self, token: str) -> None:
        """On a secret of two keys. Raises ValueError for a key that makes it known to all."""
        mine, theirs = (token[0], token[1]) if self._dials else (token[1], token[0])
        secret = self._own[mine].exchange(self._theirs[theirs])
        self._chain, key = _derived(self._chain, secret)
        self._cipher = Cipher(key, aes=False)

    def _mixed(self, said: bytes) -> bytes:
        self.hash = hashlib.sha256(self.hash + said).digest()
        return said

    def _sealed(self, content: bytes) -> bytes:
        if self._cipher is not None:
            content = self._cipher.seal(content, self.hash)
        return self._mixed(content)

    def _opened(self, message: bytes) -> bytes:
        content = message if self._cipher is None else self._cipher.open(message, self.hash)
        self._mixed(message)
        return content


def _derived(chain: bytes, secret: bytes) -> tuple[bytes, bytes]:
    """Source: Noise specification, 4.3 "Hash functions" (HKDF)."""
    key = hmac.digest(chain, secret, "sha256")
    first = hmac.digest(key, b"\x01", "sha256")
    return first, hmac.digest(key, first + b"\x02", "sha256")


async def handshake(stream: ByteStream, keys: NoiseKeys, dialled: PeerId | None) -> Secured:
    """With the peer `dialled`, which learns who we are only once it has proved who it is, or, for
    None, with the peer that dialled us. A read of `stream` brings all that it asks for.

    Raises SwarmException for a peer that proves nothing or something else; IOException; and what
    the ciphers and protobuf raise on what a stranger sends.
    """
    noise = Handshake(keys.static, dials=dialled is not None)
    if dialled is None:
        noise.read(await _read(stream))
        await _write(stream, noise.write(keys.payload))
        peer, aes = _proved(noise.read(await _read(stream)), noise.their_static)
    else:
        await _write(stream, noise.write())
        peer, aes = _proved(noise.read(await _read(stream)), noise.their_static)
        if peer != dialled:
            raise SwarmException(f"{peer} answers in place of {dialled}")
        await _write(stream, noise.write(keys.payload))
    sealing, opening = noise.ciphers(aes=aes and keys.aes)
    return Secured(peer, sealing, opening)


async def _read(stream: ByteStream) -> bytes:
    return await stream.read(int.from_bytes(await stream.read(LENGTH_BYTES), "big"))


async def _write(stream: ByteStream, message: bytes) -> None:
    await stream.write(len(message).to_bytes(LENGTH_BYTES, "big") + message)


def _proved(payload: bytes, static: bytes) -> tuple[PeerId, bool]:
    """Whose signature of the Noise key `static` it is, and whether AES is faster there. Raises
    SwarmException, DecodeError."""
    said = NoiseHandshakePayload.FromString(payload)
    key = PublicKey.FromString(said.identity_key)
    message = _SIGNED_PREFIX + static
    if key.Type == Ed25519:
        if verify(key.Data, said.identity_sig, message):
            return peer_id_of(key.Data), said.extensions.aes_gcm
    elif _has_signed(key, said.identity_sig, message):
        digest = hashlib.sha256(PublicKey(Type=key.Type, Data=key.Data).SerializeToString())
        peer = peer_id_from_bytes(_SHA256_MULTIHASH + digest.digest())
        return peer, said.extensions.aes_gcm
    raise SwarmException("it does not prove that its key is its own")


def _has_signed(key: PublicKey, signature: bytes, message: bytes) -> bool:
    """For the other kinds that foreign peers have; False for secp256k1, which `peer_id_from_bytes`
    does not take either."""
    if key.Type not in (RSA, ECDSA):
        return False
    public = load_der_public_key(key.Data)
    try:
        if isinstance(public, rsa.RSAPublicKey):
            is_cheap = public.public_numbers().e <= _MAX_RSA_EXPONENT
            if public.key_size not in _RSA_BITS or not is_cheap:
                return False
            public.verify(signature, message, padding.PKCS1v15(), SHA256())
        elif isinstance(public, ec.EllipticCurvePublicKey):
            public.verify(signature, message, ec.ECDSA(SHA256()))
        else:
            return False
    except InvalidSignature:
        return False
    return True
