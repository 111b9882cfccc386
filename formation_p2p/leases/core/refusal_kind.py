"""Why a peer said no, as it travels in the messages of the work protocol."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, assert_never

from formation_p2p.core.refusals import (
    Busy,
    Denied,
    GivingWay,
    Gone,
    GrantEnded,
    Infeasible,
    Leaving,
    Preempted,
    Unbuildable,
)
from formation_p2p.records.core.codec import MAX_INT, Malformed, take_bytes, take_text
from formation_p2p.records.core.schema import custom, integer, pair, tagged, text
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.work import MAX_PRIORITY, MAX_RESULT_BYTES

# How an attempt ended, on the wire.

# Of a reason, or of the end of a traceback.
MAX_MESSAGE_CHARS: Final = 16_384


def _pack_outcome(outcome: Outcome) -> list[object]:
    match outcome:
        case Succeeded(result):
            return ["ok", result]
        case Failed(kind, message, result):
            return [kind.value, _printable(message[-MAX_MESSAGE_CHARS:]), result]
        case _:
            assert_never(outcome)


def _printable(text: str) -> str:
    """What a task printed may hold anything; what travels must be safe in a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def _read_outcome(value: Any) -> Outcome:
    match value:
        case ["ok", result]:
            return Succeeded(take_bytes(result, "result", MAX_RESULT_BYTES))
        case [str() as kind, message, result]:
            try:
                failure = FailureKind(kind)
            except ValueError:
                raise Malformed("outcome", "a kind of failure that is not known") from None
            return Failed(
                failure,
                take_text(message, "message", MAX_MESSAGE_CHARS, multiline=True),
                take_bytes(result, "result", MAX_RESULT_BYTES),
            )
        case _:
            raise Malformed("outcome", "neither a success nor a failure")


OUTCOME: Final = custom(_read_outcome, _pack_outcome)


# The longest that we make ourselves lists the models of a machine with many kinds of card.
MAX_REASON_CHARS: Final = 1024
# Of a node, or a peer.
MAX_NAME_CHARS: Final = 128
# An hour. Where the wait is longer, the request is refused.
MAX_RETRY_MS: Final = 3600 * 1000


def _cut(why: str) -> str:
    """A grant may list more labels than a reason has room for."""
    return why if len(why) <= MAX_REASON_CHARS else f"{why[: MAX_REASON_CHARS - 1]}…"


_REASON: Final = text(MAX_REASON_CHARS)
_NAME: Final = text(MAX_NAME_CHARS)
_read_reason: Final = _REASON.reader("reason")
_read_count: Final = integer(0, MAX_INT).reader("amount")


def _read_amount(value: object) -> object:
    return _read_reason(value) if isinstance(value, str) else _read_count(value)


_AMOUNT: Final = custom(_read_amount)
REFUSAL: Final = tagged(
    {
        "infeasible": (Infeasible, {"resource": _REASON, "needed": _AMOUNT, "free": _AMOUNT}),
        "denied": (
            Denied,
            {
                "right": _REASON,
                "why": custom(_read_reason, _cut),
                "retry_ms": integer(0, MAX_RETRY_MS, trailing=True),
            },
        ),
        "gone": (Gone, {"what": _REASON, "why": _REASON}),
        "busy": (Busy, {"what": _REASON, "limit": integer(0, MAX_INT)}),
        "leaving": (Leaving, {}),
        "grant ended": (GrantEnded, {}),
        "unbuildable": (Unbuildable, {"environment": _REASON, "why": custom(_read_reason, _cut)}),
        "giving way": (
            GivingWay,
            {
                "resource": _REASON,
                "retry_ms": integer(0, MAX_RETRY_MS),
                "turn": replace(pair(_NAME, integer(0, MAX_INT)), trailing=True),
            },
        ),
        "preempted": (
            Preempted,
            {
                "priority": integer(0, MAX_PRIORITY),
                "below": replace(_NAME, trailing=True),
            },
        ),
    }
)
