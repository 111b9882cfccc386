"""How an attempt ended, on the wire."""

from __future__ import annotations

from typing import Any, Final, assert_never

from formation_p2p.records.core.codec import Malformed, take_bytes, take_text
from formation_p2p.records.core.schema import custom
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.work import MAX_RESULT_BYTES

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
