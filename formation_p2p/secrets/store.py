"""The secrets of tasks and services that a node has: on its disk in boxes that it alone opens.

A secret is named by the CID of the box in which its owner keeps it, which says nothing of it. Those
of tasks are for peers that are told that name, as a worker is; those of a service for the workers
that run it, which keep them as well, so that the next one finds them while the owner is away.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.identity import Identity, PeerId, public_key_of
from formation_p2p.core.units import format_bytes
from formation_p2p.machine.folders import changed_ns, write_durably
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.process import MAX_SECRET_BYTES

# Sealed boxes: what one peer alone can open, made by anybody who knows its id.
#
# As libsodium's `crypto_box_seal`: a key pair for this box alone, X25519 with the peer's key, and
# one AEAD over the content. A peer's X25519 key follows from its Ed25519 key, which its id holds
# (RFC 7748, section 4.1: the curves are one, in two forms), so that no other key is to be
# announced.
#
#     box = public key of the box (32 bytes) + ChaCha20-Poly1305(content, context)

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


# Of services: eight for each that a network can have. Of tasks: what a person's scripts use at
# once. The oldest of more give way.
MAX_OF_SERVICES: Final = 2048
MAX_OF_TASKS: Final = 256


class Secrets:
    """Of one node. `service` is that which a secret is for, empty for a task's. Methods raise
    LocalError where the disk fails."""

    def __init__(self, identity: Identity, folder: Path | None) -> None:
        self._identity = identity
        self._folder = folder

    def put(self, content: bytes, service: str = "", known: Blob | None = None) -> Blob:
        """By which name it is to be asked for: the one that is `known`, where that is the same.
        Raises InvalidInput for more than fits."""
        if len(content) > MAX_SECRET_BYTES:
            most = format_bytes(MAX_SECRET_BYTES)
            raise InvalidInput("secret", f"has {len(content)} bytes, of at most {most}")
        if known is not None and self.get(known.cid, service) == content:
            return known
        box = seal(self._identity.peer_id, content, service.encode())
        cid = Cid(RAW, digest_of(box))
        self._write(cid, box, service)
        return Blob(cid, len(box))

    def keep(self, cid: Cid, content: bytes, service: str) -> None:
        """One that came from elsewhere, under the name that it has there."""
        self._write(cid, seal(self._identity.peer_id, content, service.encode()), service)

    def get(self, cid: Cid, service: str = "") -> bytes | None:
        """None where it is not here, or for something else."""
        if self._folder is None:
            return None
        try:
            box = self._path(self._folder, cid, service).read_bytes()
            return opened(self._identity, box, service.encode())
        except (FileNotFoundError, InvalidInput):
            return None
        except OSError as error:
            raise LocalError(f"a secret cannot be read: {error}") from error

    def drop(self, cid: Cid, service: str = "") -> None:
        if self._folder is not None:
            self._path(self._folder, cid, service).unlink(missing_ok=True)

    def _path(self, folder: Path, cid: Cid, service: str) -> Path:
        return folder / f"{'service' if service else 'task'}-{cid}"

    def _write(self, cid: Cid, box: bytes, service: str) -> None:
        if self._folder is None:
            raise LocalError("this node has no folder for secrets")
        path = self._path(self._folder, cid, service)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_durably(path, box, f"{path.name}.{os.getpid()}.unfinished")
            self._make_room("service" if service else "task")
        except OSError as error:
            raise LocalError(f"a secret cannot be kept: {error}; make room on the disk") from error

    def _make_room(self, kind: str) -> None:
        assert self._folder is not None, "one was written there"
        most = MAX_OF_SERVICES if kind == "service" else MAX_OF_TASKS
        found = sorted(self._folder.glob(f"{kind}-*"), key=changed_ns)
        for path in found[:-most]:
            path.unlink(missing_ok=True)
