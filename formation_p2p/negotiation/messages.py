"""The work protocol, `/formation/work/1.0.0`: its messages, and their one parser.

A frame is a CBOR array: the message's number, then its fields in order. What `parse` returns
has been checked: types, lengths and ranges. Who may say what is for the state tables to judge.

Scheduler to worker: PlacementRequest, Commit, Renew, Release, Dispatch, Cancel, ResultAck.
Worker to scheduler: Offer, Refused, Leased, CommitRefused, Renewed, LeaseEnded, TaskStarted,
TaskOutput, TaskEnded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from formation_p2p.errors import ProtocolViolation
from formation_p2p.records.codec import (
    Malformed,
    decode,
    encode,
    take_bytes,
    take_int,
    take_list,
    take_text,
)
from formation_p2p.records.resources import pack_requirements, unpack_requirements
from formation_p2p.refusals import Busy, Denied, Gone, Infeasible, Leaving, Refusal
from formation_p2p.resources.bounds import MAX_GPUS
from formation_p2p.resources.requirements import Requirements
from formation_p2p.workload.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.payload import MAX_RESULT_BYTES
from formation_p2p.workload.task import MAX_PAYLOAD_BYTES, MAX_PRIORITY

# One frame. A payload and a result are at most 8 MiB each; the rest is small.
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
# One piece of a task's live output; the drivers cut it.
MAX_OUTPUT_BYTES: Final = 64 * 1024
# Task ids are `<job>/<index>`, attempts `<task>#<n>`, leases 16 hex digits, devices NVML UUIDs.
MAX_ID_CHARS: Final = 128
MAX_GRANT_BYTES: Final = 2048
# Of a reason, or of the end of a traceback.
MAX_MESSAGE_CHARS: Final = 16_384
MAX_INT: Final = 2**63 - 1
# A day: no hold, lease or task limit is longer in one step.
MAX_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """Would you take work with these needs, on this grant? `request_id` is the asker's own."""

    request_id: int
    needs: Requirements
    grant: bytes
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """Yes: capacity is held softly under `lease_id` for `hold_ms`, until it is committed."""

    request_id: int
    lease_id: str
    device_ids: tuple[str, ...]
    hold_ms: int


@dataclass(frozen=True, slots=True)
class Refused:
    request_id: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Commit:
    lease_id: str


@dataclass(frozen=True, slots=True)
class Leased:
    """The hold is hard for `ttl_ms` from now. `fence` grows with every lease of this worker,
    and goes with everything done under the lease (Gray and Cheriton's leases, with fencing
    tokens)."""

    lease_id: str
    fence: int
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class CommitRefused:
    lease_id: str
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Renew:
    lease_id: str
    fence: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """`ttl_ms` counts from the renewal, not from the old expiry."""

    lease_id: str
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The lease is no more, and nothing runs under it: expired, unknown, or the worker leaves."""

    lease_id: str
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Release:
    """The owner needs the lease (or the offer) no longer."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run this under the lease, after what was dispatched before. The driver reads `payload`."""

    lease_id: str
    fence: int
    attempt_id: str
    driver: str
    payload: bytes
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class TaskStarted:
    lease_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class TaskOutput:
    lease_id: str
    attempt_id: str
    is_stderr: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """Sent again on each renewal until it is acknowledged. `ran_ms` is the driver's time."""

    lease_id: str
    fence: int
    attempt_id: str
    outcome: Outcome
    ran_ms: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop one attempt; it still ends with a TaskEnded."""

    lease_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class ResultAck:
    """The scheduler has the result; the worker may forget it."""

    lease_id: str
    attempt_id: str


WorkMessage = (
    PlacementRequest
    | Offer
    | Refused
    | Commit
    | Leased
    | CommitRefused
    | Renew
    | Renewed
    | LeaseEnded
    | Release
    | Dispatch
    | TaskStarted
    | TaskOutput
    | TaskEnded
    | Cancel
    | ResultAck
)


def pack(message: WorkMessage) -> bytes:
    """The frame of a message that this side made."""
    match message:
        case PlacementRequest(request_id, needs, grant, priority):
            return encode([1, request_id, pack_requirements(needs), grant, priority])
        case Offer(request_id, lease_id, device_ids, hold_ms):
            return encode([2, request_id, lease_id, list(device_ids), hold_ms])
        case Refused(request_id, refusal):
            return encode([3, request_id, _pack_refusal(refusal)])
        case Commit(lease_id):
            return encode([4, lease_id])
        case Leased(lease_id, fence, ttl_ms):
            return encode([5, lease_id, fence, ttl_ms])
        case CommitRefused(lease_id, refusal):
            return encode([6, lease_id, _pack_refusal(refusal)])
        case Renew(lease_id, fence):
            return encode([7, lease_id, fence])
        case Renewed(lease_id, ttl_ms):
            return encode([8, lease_id, ttl_ms])
        case LeaseEnded(lease_id, refusal):
            return encode([9, lease_id, _pack_refusal(refusal)])
        case Release(lease_id):
            return encode([10, lease_id])
        case Dispatch(lease_id, fence, attempt_id, driver, payload, timeout_ms):
            return encode([11, lease_id, fence, attempt_id, driver, payload, timeout_ms])
        case TaskStarted(lease_id, attempt_id):
            return encode([12, lease_id, attempt_id])
        case TaskOutput(lease_id, attempt_id, is_stderr, data):
            return encode([13, lease_id, attempt_id, int(is_stderr), data])
        case TaskEnded(lease_id, fence, attempt_id, outcome, ran_ms):
            return encode([14, lease_id, fence, attempt_id, _pack_outcome(outcome), ran_ms])
        case Cancel(lease_id, attempt_id):
            return encode([15, lease_id, attempt_id])
        case ResultAck(lease_id, attempt_id):
            return encode([16, lease_id, attempt_id])
        case _:
            assert_never(message)


def parse(raw: bytes) -> WorkMessage:
    """Raises ProtocolViolation for whatever is not a message within the bounds above."""
    try:
        return _parse(decode(raw, MAX_FRAME_BYTES))
    except Malformed as error:
        raise ProtocolViolation(f"no message of the work protocol: {error}") from error


def _parse(fields: object) -> WorkMessage:
    match fields:
        case [1, request_id, needs, grant, priority]:
            return PlacementRequest(
                _count(request_id),
                _needs_of_a_task(needs),
                take_bytes(grant, "grant", MAX_GRANT_BYTES),
                take_int(priority, "priority", 0, MAX_PRIORITY),
            )
        case [2, request_id, lease_id, device_ids, hold_ms]:
            devices = take_list(device_ids, "device_ids", MAX_GPUS)
            return Offer(
                _count(request_id), _id(lease_id), tuple(_id(d) for d in devices), _ms(hold_ms)
            )
        case [3, request_id, refusal]:
            return Refused(_count(request_id), _parse_refusal(refusal))
        case [4, lease_id]:
            return Commit(_id(lease_id))
        case [5, lease_id, fence, ttl_ms]:
            return Leased(_id(lease_id), _count(fence), _ms(ttl_ms))
        case [6, lease_id, refusal]:
            return CommitRefused(_id(lease_id), _parse_refusal(refusal))
        case [7, lease_id, fence]:
            return Renew(_id(lease_id), _count(fence))
        case [8, lease_id, ttl_ms]:
            return Renewed(_id(lease_id), _ms(ttl_ms))
        case [9, lease_id, refusal]:
            return LeaseEnded(_id(lease_id), _parse_refusal(refusal))
        case [10, lease_id]:
            return Release(_id(lease_id))
        case [11, lease_id, fence, attempt_id, driver, payload, timeout_ms]:
            return Dispatch(
                _id(lease_id),
                _count(fence),
                _id(attempt_id),
                take_text(driver, "driver", MAX_ID_CHARS),
                take_bytes(payload, "payload", MAX_PAYLOAD_BYTES),
                _ms(timeout_ms),
            )
        case [12, lease_id, attempt_id]:
            return TaskStarted(_id(lease_id), _id(attempt_id))
        case [13, lease_id, attempt_id, is_stderr, data]:
            return TaskOutput(
                _id(lease_id),
                _id(attempt_id),
                take_int(is_stderr, "is_stderr", 0, 1) == 1,
                take_bytes(data, "data", MAX_OUTPUT_BYTES),
            )
        case [14, lease_id, fence, attempt_id, outcome, ran_ms]:
            return TaskEnded(
                _id(lease_id),
                _count(fence),
                _id(attempt_id),
                _parse_outcome(outcome),
                take_int(ran_ms, "ran_ms", 0, MAX_INT),
            )
        case [15, lease_id, attempt_id]:
            return Cancel(_id(lease_id), _id(attempt_id))
        case [16, lease_id, attempt_id]:
            return ResultAck(_id(lease_id), _id(attempt_id))
        case _:
            raise Malformed("message", "its number or its count of fields is not known")


def _count(value: object) -> int:
    return take_int(value, "count", 0, MAX_INT)


def _ms(value: object) -> int:
    return take_int(value, "milliseconds", 0, MAX_MS)


def _id(value: object) -> str:
    return take_text(value, "id", MAX_ID_CHARS)


def _needs_of_a_task(value: object) -> Requirements:
    """Requirements with a driver: what a grant allows and what is dispatched hang on it."""
    needs = unpack_requirements(value)
    if needs.driver == "":
        raise Malformed("driver", "is not named")
    return needs


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


def _parse_outcome(value: object) -> Outcome:
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


def _pack_refusal(refusal: Refusal) -> list[object]:
    match refusal:
        case Infeasible(resource, needed, free):
            return ["infeasible", resource, needed, free]
        case Denied(right, why):
            return ["denied", right, why]
        case Gone(what, why):
            return ["gone", what, why]
        case Busy(what, limit):
            return ["busy", what, limit]
        case Leaving():
            return ["leaving"]
        case _:
            assert_never(refusal)


def _parse_refusal(value: object) -> Refusal:
    match value:
        case ["infeasible", resource, needed, free]:
            return Infeasible(_reason(resource), _amount(needed), _amount(free))
        case ["denied", right, why]:
            return Denied(_reason(right), _reason(why))
        case ["gone", what, why]:
            return Gone(_reason(what), _reason(why))
        case ["busy", what, limit]:
            return Busy(_reason(what), _count(limit))
        case ["leaving"]:
            return Leaving()
        case _:
            raise Malformed("refusal", "its kind is not known")


def _reason(value: object) -> str:
    return take_text(value, "reason", MAX_MESSAGE_CHARS)


def _amount(value: object) -> int | str:
    return _reason(value) if isinstance(value, str) else take_int(value, "amount", 0, MAX_INT)
