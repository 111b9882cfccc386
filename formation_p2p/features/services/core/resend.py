"""What may be sent a second time: what provably never ran, and what does no harm twice."""

from __future__ import annotations

from typing import Final

# Source: RFC 9110, section 9.2.2.
IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})


def may_send_again(*, never_ran: bool, idempotent: bool, answer_began: bool) -> bool:
    """Of a request that has failed. Once an answer has begun its reader has seen some of it, and
    would see it twice."""
    return not answer_began and (never_ran or idempotent)
