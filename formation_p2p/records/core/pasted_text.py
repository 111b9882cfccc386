"""Bytes as one line that a person can paste: a prefix, then base64url of them and a checksum."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from formation_p2p.core.errors import InvalidInput

_CHECKSUM_BYTES: Final = 4


def pasted_text(prefix: str, body: bytes) -> str:
    return prefix + base64.urlsafe_b64encode(body + _checksum(body)).decode().rstrip("=")


# What mail and word processors put around and into a text: marks of the byte order and of where to
# break, quotation marks, the sign of a quoted line, and dashes in the place of hyphens. None is of
# a text, so that each can only mean one thing.
_QUOTES: Final = (*range(0x2018, 0x2020), 0x2039, 0x203A, *map(ord, "\"'`<>\xab\xbb"))
_ADDED: Final = dict.fromkeys((*map(ord, "\ufeff\u200b\u2060\xad"), *_QUOTES)) | {
    ord("\u2010"): "-",
    ord("\u2011"): "-",
    ord("\u2013"): "--",
    ord("\u2014"): "--",
}


def cleaned(text: str) -> str:
    """As it was before it was pasted: terminals and mail programs break long lines as well."""
    return "".join(text.translate(_ADDED).split())


def body_of(text: str, prefix: str, what: str, most_bytes: int) -> bytes:
    """What a text was made of, if that is `most_bytes` or less. Raises InvalidInput of `what`,
    whose message says nothing of what the text holds."""
    joined = cleaned(text)
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
