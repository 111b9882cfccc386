"""A charter as one line of text, for its signers: they pass it on by mail, until it counts."""

from __future__ import annotations

from typing import Final

from formation_p2p.core.errors import BadRecord, InvalidInput
from formation_p2p.records.core.pasted_text import body_of, pasted_text
from formation_p2p.trust.core.signed_charter import MAX_CHARTER_BYTES, SignedCharter, read_charter

_PREFIX: Final = "formation-charter1:"
_FIELD: Final = "charter"


def charter_text(charter: SignedCharter) -> str:
    return pasted_text(_PREFIX, charter.raw)


def parse_charter_text(text: str) -> SignedCharter:
    """Whether enough have signed it is for others to say. Raises InvalidInput."""
    body = body_of(text, _PREFIX, _FIELD, MAX_CHARTER_BYTES)
    try:
        return read_charter(body)
    except BadRecord as error:
        problem = f"this version cannot read it ({error}); upgrade formation_p2p here"
        raise InvalidInput(_FIELD, problem) from error
