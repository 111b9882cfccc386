"""Bytes as one line that a person can paste: a prefix, then base64url of them and a checksum."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from formation_p2p.core.errors import InvalidInput

_CHECKSUM_BYTES: Final = 4


def pasted_text(prefix: str, body: bytes) -> str:
    return prefix + base64.urlsafe_b64encode(body + _checksum(body)).decode().rstrip("=")


def body_of(text: str, prefix: str, what: str, most_bytes: int) -> bytes:
    """What a text was made of, if that is `most_bytes` or less. Raises InvalidInput of `what`,
    whose message says nothing of what the text holds."""
    joined = "".join(text.split())  # terminals and mail programs break long lines
    if not joined.startswith(prefix):
        raise InvalidInput(what, f"it does not begin with {prefix}; paste all of it")
    if len(joined) > len(prefix) + (most_bytes + _CHECKSUM_BYTES) * 4 // 3 + 4:
        raise InvalidInput(what, f"it is too long to be one; paste one {what} alone")
    encoded = joined.removeprefix(prefix)
    try:
        raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars="-_", validate=True)
    except ValueError:
        raw = b""
    body, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    if not body or checksum != _checksum(body):
        raise InvalidInput(what, "it is incomplete or was altered; paste all of it again")
    return body


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:_CHECKSUM_BYTES]
