"""How a refusal travels: a CBOR array of its kind and its fields, in order."""

from __future__ import annotations

from typing import Final, assert_never

from formation_p2p.core.records.codec import Malformed, take_int, take_text
from formation_p2p.core.refusals import (
    Busy,
    Denied,
    GivingWay,
    Gone,
    Infeasible,
    Leaving,
    PeerRefusal,
    Preempted,
)
from formation_p2p.core.workload.task import MAX_PRIORITY

# The longest that we make ourselves lists the models of a machine with many kinds of card.
MAX_REASON_CHARS: Final = 1024
# An hour. Whoever has to wait longer had better be refused.
MAX_RETRY_MS: Final = 3600 * 1000
_MAX_INT: Final = 2**63 - 1


def pack_refusal(refusal: PeerRefusal) -> list[object]:
    match refusal:
        case Infeasible(resource, needed, free):
            return ["infeasible", resource, needed, free]
        case Denied(right, why, None):
            return ["denied", right, _cut(why)]
        case Denied(right, why, retry_ms):
            return ["denied", right, _cut(why), retry_ms]
        case Gone(what, why):
            return ["gone", what, why]
        case Busy(what, limit):
            return ["busy", what, limit]
        case Leaving():
            return ["leaving"]
        case GivingWay(resource, retry_ms):
            return ["giving way", resource, retry_ms]
        case Preempted(priority):
            return ["preempted", priority]
        case _:
            assert_never(refusal)


def read_refusal(value: object) -> PeerRefusal:
    """Raises Malformed."""
    match value:
        case ["infeasible", resource, needed, free]:
            return Infeasible(_reason(resource), _amount(needed), _amount(free))
        case ["denied", right, why]:
            return Denied(_reason(right), _reason(why))
        case ["denied", right, why, retry_ms]:
            wait_ms = take_int(retry_ms, "retry", 0, MAX_RETRY_MS)
            return Denied(_reason(right), _reason(why), wait_ms)
        case ["gone", what, why]:
            return Gone(_reason(what), _reason(why))
        case ["busy", what, limit]:
            return Busy(_reason(what), take_int(limit, "limit", 0, _MAX_INT))
        case ["leaving"]:
            return Leaving()
        case ["giving way", resource, retry_ms]:
            return GivingWay(_reason(resource), take_int(retry_ms, "retry", 0, MAX_RETRY_MS))
        case ["preempted", priority]:
            return Preempted(take_int(priority, "priority", 0, MAX_PRIORITY))
        case _:
            raise Malformed("refusal", "its kind is not known")


def _cut(why: str) -> str:
    """A grant may list more labels than a reason has room for."""
    return why if len(why) <= MAX_REASON_CHARS else f"{why[: MAX_REASON_CHARS - 1]}…"


def _reason(value: object) -> str:
    return take_text(value, "reason", MAX_REASON_CHARS)


def _amount(value: object) -> int | str:
    return _reason(value) if isinstance(value, str) else take_int(value, "amount", 0, _MAX_INT)
