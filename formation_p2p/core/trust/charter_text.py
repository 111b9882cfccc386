"""A charter as one line of text, for its signers: they pass it on by mail, until it counts."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from formation_p2p.core.errors import BadRecord, InvalidInput
from formation_p2p.core.trust.signed_charter import MAX_CHARTER_BYTES, SignedCharter, read_charter

_PREFIX: Final = "formation-charter1:"
_CHECKSUM_BYTES: Final = 4
_MAX_CHARS: Final = len(_PREFIX) + (MAX_CHARTER_BYTES + _CHECKSUM_BYTES) * 4 // 3 + 4


def charter_text(charter: SignedCharter) -> str:
    raw = charter.raw
    return _PREFIX + base64.urlsafe_b64encode(raw + _checksum(raw)).decode().rstrip("=")


def parse_charter_text(text: str) -> SignedCharter:
    """Whether enough have signed it is for others to say. Raises InvalidInput."""
    joined = "".join(text.split())  # mail programs break long lines
    if not joined.startswith(_PREFIX):
        raise InvalidInput("charter", f"it does not begin with {_PREFIX}; paste all of it")
    if len(joined) > _MAX_CHARS:
        raise InvalidInput("charter", "it is too long to be one; paste one charter alone")
    encoded = joined.removeprefix(_PREFIX)
    try:
        raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars="-_", validate=True)
    except ValueError:
        raw = b""
    body, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    if not body or checksum != _checksum(body):
        raise InvalidInput("charter", "it is incomplete or was altered; paste all of it again")
    try:
        return read_charter(body)
    except BadRecord as error:
        problem = f"this version cannot read it ({error}); upgrade formation_p2p here"
        raise InvalidInput("charter", problem) from error


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:_CHECKSUM_BYTES]
