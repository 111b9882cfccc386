"""How a grant travels: as a Biscuit token alone, or with what others have signed of it.

The token of a split root is signed by one of its keys, and the others co-sign the token's first
block. What they sign names the network and holds that whole block with its signature: a
co-signature is worth nothing beside another grant, nor in another network.

An inviter of the charter signs, in the same way, that the grant goes on for its peer until a later
end. He signs nothing else of it: what the grant allows stays what the root has signed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity, PeerId, peer_id_of, short_id, verify
from formation_p2p.machine.core import bounds
from formation_p2p.records.core import codec
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.records.core.protobuf import varint_at
from formation_p2p.records.core.resources import take_row
from formation_p2p.trust.core.root_keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    KeySet,
    Signature,
    first_bad,
    read_key_set,
    read_signatures,
)

# The year 5138: eleven digits, and past anyone's plans.
MAX_EXPIRY_UNIX_S: Final = 99_999_999_999


@dataclass(frozen=True, slots=True)
class Life:
    """A grant lasts `life_s`. Holders of the root key renew it, each time for as long, and not past
    `renewed_until_unix_s`. Raises InvalidInput."""

    life_s: int
    renewed_until_unix_s: int

    def __post_init__(self) -> None:
        bounds.check_amount("life", self.life_s, 1, MAX_EXPIRY_UNIX_S)
        bounds.check_amount("renewed until", self.renewed_until_unix_s, 0, MAX_EXPIRY_UNIX_S)

    def end_unix_s(self, now_unix_s: float) -> int:
        """Of a grant that is given now."""
        return min(int(now_unix_s) + self.life_s, self.renewed_until_unix_s, MAX_EXPIRY_UNIX_S)


# The tag of the root's block, with which a token begins.
_ROOT_BLOCK: Final = 0x12
# How a list of three fields begins in CBOR: what a token does not begin with.
_LIST: Final = 0x83
STARTS: Final = (bytes([_ROOT_BLOCK]), bytes([_LIST]))
# A grant of 9 of 9 takes 1.5 KiB, and so can be narrowed a few times.
MAX_ROOT_KEYS: Final = 9
FORM: Final = "it is not in the form that it was issued in, or was altered"
_COSIGN: Final = b"formation grant 1\x00"
_EXTEND: Final = b"formation grant goes on 1\x00"


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
class Extension:
    """What an inviter signed: his key, and the later end."""

    inviter: bytes
    expires_unix_s: int
    signature: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class GrantForm:
    """A grant in its parts; `cosigned` is None where one key is the root, `extension` where the
    root's own end counts."""

    token: bytes = field(repr=False)
    cosigned: Cosigned | None = None
    extension: Extension | None = None

    @property
    def raw(self) -> bytes:
        if self.cosigned is None and self.extension is None:
            return self.token
        return codec.encode([self._root_row(), self._extension_row(), self.token])

    def _root_row(self) -> list[object] | None:
        if self.cosigned is None:
            return None
        keys, issuer = self.cosigned.keys, self.cosigned.issuer
        signatures = [[key, signature] for key, signature in self.cosigned.signatures]
        return [*keys.pack(), keys.keys.index(issuer), signatures]

    def _extension_row(self) -> list[object] | None:
        given = self.extension
        return None if given is None else [given.inviter, given.expires_unix_s, given.signature]

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

    def extended(
        self, inviter: Identity, root_id: bytes, peer_id: PeerId, expires_unix_s: int
    ) -> GrantForm:
        """The same for that peer until then; who takes it is for others to judge."""
        signature = inviter.sign(self._extends(root_id, peer_id, expires_unix_s))
        return replace(self, extension=Extension(inviter.public_key, expires_unix_s, signature))

    def check_extension(
        self, root_id: bytes, peer_id: str | None, given_until_unix_s: int, life: Life | None
    ) -> PeerId | None:
        """Who has put the end off. It is for the peer that the grant is bound to, and within what
        the root lets be renewed: `life` is None where it lets nothing be. Raises InvalidInput."""
        extension = self.extension
        if extension is None:
            return None
        inviter, until_unix_s = peer_id_of(extension.inviter), extension.expires_unix_s
        if peer_id is None or peer_id == inviter:
            raise InvalidInput("grant", "it was renewed for no other peer than who renewed it")
        if life is None or not given_until_unix_s < until_unix_s <= life.renewed_until_unix_s:
            raise InvalidInput("grant", f"{short_id(inviter)} may not renew it until then")
        message = self._extends(root_id, peer_id, until_unix_s)
        if not verify(extension.inviter, extension.signature, message):
            raise InvalidInput("grant", f"{short_id(inviter)} did not renew it")
        return inviter

    def _extends(self, root_id: bytes, peer_id: str, expires_unix_s: int) -> bytes:
        block = hashlib.sha256(_root_block(self.token)).digest()
        return _EXTEND + root_id + block + expires_unix_s.to_bytes(8) + peer_id.encode()


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
        cosigned = None if row[0] is None else _read_cosigned(row[0])
        form = GrantForm(token, cosigned, None if row[1] is None else _read_extension(row[1]))
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


def _read_extension(value: object) -> Extension:
    key, until, signature = take_row(value, 3, "renewal", "is not a list of three fields")
    inviter = codec.take_bytes(key, "inviter", KEY_BYTES)
    if len(inviter) != KEY_BYTES:
        raise codec.Malformed("inviter", f"is not a key of {KEY_BYTES} bytes")
    return Extension(
        inviter,
        codec.take_int(until, "expires", 0, MAX_EXPIRY_UNIX_S),
        codec.take_bytes(signature, "signature", SIGNATURE_BYTES),
    )


def _root_block(token: bytes) -> bytes:
    """The first block of a token, with its signature and the key of the next one. Raises
    InvalidInput."""
    if token[:1] == STARTS[0]:
        try:
            length, at = varint_at(token, 1)
        except ValueError as error:
            raise InvalidInput("grant", FORM) from error
        if 0 < length <= len(token) - at:
            return token[at : at + length]
    raise InvalidInput("grant", FORM)
