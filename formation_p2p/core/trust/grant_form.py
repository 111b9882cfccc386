"""How a grant travels: as a Biscuit token alone, or with what others have signed of it.

The token of a split root is signed by one of its keys, and the others co-sign the token's first
block. What they sign names the network and holds that whole block with its signature: a
co-signature is worth nothing beside another grant, nor in another network.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import short_id
from formation_p2p.core.records import codec
from formation_p2p.core.records.profile import MAX_GRANT_BYTES
from formation_p2p.core.records.resources import take_row
from formation_p2p.core.trust.root_keys import (
    KeySet,
    Signature,
    first_bad,
    read_key_set,
    read_signatures,
)

# The tag of the root's block, with which a token begins.
_ROOT_BLOCK: Final = 0x12
# Protobuf: the length of that block in seven bits each; a grant has 2 KiB.
_LENGTH_BITS: Final = (0, 7)
# How a list of three fields begins in CBOR: what a token does not begin with.
_LIST: Final = 0x83
STARTS: Final = (bytes([_ROOT_BLOCK]), bytes([_LIST]))
# A grant of 9 of 9 takes 1.5 KiB, and so can be narrowed a few times.
MAX_ROOT_KEYS: Final = 9
FORM: Final = "it is not in the form that it was issued in, or was altered"
_COSIGN: Final = b"formation grant 1\x00"


@dataclass(frozen=True, slots=True)
class Cosigned:
    """What a grant of a split root carries: which keys the root has, which of them signed the
    token, and what others of them signed beside it."""

    keys: KeySet
    issuer: bytes
    signatures: tuple[Signature, ...] = field(repr=False)

    @property
    def lacks(self) -> int:
        """How many more have to sign."""
        return self.keys.threshold - 1 - len(self.signatures)


@dataclass(frozen=True, slots=True)
class GrantForm:
    """A grant in its parts; `cosigned` is None where one key is the root."""

    token: bytes = field(repr=False)
    cosigned: Cosigned | None = None

    @property
    def raw(self) -> bytes:
        if self.cosigned is None:
            return self.token
        keys, issuer = self.cosigned.keys, self.cosigned.issuer
        signatures = [[key, signature] for key, signature in self.cosigned.signatures]
        root = [*keys.pack(), keys.keys.index(issuer), signatures]
        return codec.encode([root, None, self.token])

    def root_key(self, root_id: bytes) -> bytes:
        """The key that signed the token. Raises InvalidInput unless it is of this root."""
        if self.cosigned is None:
            return root_id
        if self.cosigned.keys.root_id() != root_id:
            raise InvalidInput("grant", "it is of another network, or was altered")
        return self.cosigned.issuer

    def message(self, root_id: bytes) -> bytes:
        """What the other keys of the root sign."""
        return _COSIGN + root_id + hashlib.sha256(_root_block(self.token)).digest()

    def check_cosigned(self, root_id: bytes) -> None:
        """That what was signed beside the token is good. Raises InvalidInput."""
        if self.cosigned is None:
            return
        others = frozenset(self.cosigned.keys.keys) - {self.cosigned.issuer}
        bad = first_bad(self.cosigned.signatures, self.message(root_id), others)
        if bad is not None:
            raise InvalidInput("grant", f"{short_id(bad)} did not co-sign it")


def read_form(grant: bytes) -> GrantForm:
    """The one parser. Whether the signatures are good is for others to check. Raises
    InvalidInput."""
    if len(grant) > MAX_GRANT_BYTES:
        raise InvalidInput("grant", f"{len(grant)} bytes; at most {MAX_GRANT_BYTES} are allowed")
    if grant[:1] != STARTS[1]:
        return GrantForm(grant)
    try:
        row = take_row(codec.decode(grant, MAX_GRANT_BYTES), 3, "grant", "is not a list of three")
        token = codec.take_bytes(row[2], "token", MAX_GRANT_BYTES)
        form = GrantForm(token, _read_cosigned(row[0]))
    except (codec.Malformed, InvalidInput) as error:
        raise InvalidInput("grant", f"it could not be read: {error}") from error
    if form.raw != grant:
        raise InvalidInput("grant", FORM)
    return form


def _read_cosigned(value: object) -> Cosigned:
    row = take_row(value, 4, "root", "is not a list of four fields")
    keys = read_key_set(row[:2], "root")
    if not 1 < len(keys.keys) <= MAX_ROOT_KEYS:
        raise codec.Malformed("root", f"has {len(keys.keys)} keys, not 2 to {MAX_ROOT_KEYS}")
    issuer = keys.keys[codec.take_int(row[2], "issuer", 0, len(keys.keys) - 1)]
    # One that was signed more often than it has to be is the same grant in another form.
    return Cosigned(keys, issuer, read_signatures(row[3], keys.threshold - 1))


def _root_block(token: bytes) -> bytes:
    """The first block of a token, with its signature and the key of the next one. Raises
    InvalidInput."""
    if token[:1] == STARTS[0]:
        at, length = 1, 0
        for bits in _LENGTH_BITS:
            byte = token[at] if at < len(token) else 0
            at, length = at + 1, length | (byte & 0x7F) << bits
            if not byte & 0x80:
                break
        if 0 < length <= len(token) - at:
            return token[at : at + length]
    raise InvalidInput("grant", FORM)
