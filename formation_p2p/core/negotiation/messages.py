"""The work protocol, `/formation/work/1.0.0`: its messages, and their one parser.

A frame is a CBOR array: the message's number, then its fields in order. What `parse` returns
has been checked: types, lengths and ranges. Who may say what is for the state tables to judge.

Scheduler to worker: PlacementRequest, Commit, Renew, Release, Dispatch, Cancel, ResultAck.
Worker to scheduler: Offer, Refused, Leased, CommitRefused, Renewed, LeaseEnded, TaskStarted,
TaskOutput, TasksEnded. Either to the other: AskOpinions, Opinions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.negotiation.held import Held, pack_held, read_held
from formation_p2p.core.negotiation.refusal_codec import pack_refusal, read_refusal
from formation_p2p.core.negotiation.shared_blobs import MAX_PARTS
from formation_p2p.core.records.codec import (
    Malformed,
    decode,
    encode,
    take_bytes,
    take_int,
    take_list,
    take_text,
)
from formation_p2p.core.records.resources import checked, pack_requirements, unpack_requirements
from formation_p2p.core.refusals import PeerRefusal
from formation_p2p.core.resources.bounds import MAX_MEMORY_BYTES
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.trust.attestation import MAX_ATTESTATION_BYTES
from formation_p2p.core.workload.blob import Cid
from formation_p2p.core.workload.hints import MAX_NEAR
from formation_p2p.core.workload.outcome import (
    MAX_CPU_MS,
    Ended,
    Failed,
    FailureKind,
    Outcome,
    Succeeded,
    Usage,
)
from formation_p2p.core.workload.payload import MAX_RESULT_BYTES
from formation_p2p.core.workload.task import MAX_PAYLOAD_BYTES, MAX_PRIORITY

# One frame. A payload and a result are at most 8 MiB each; the rest is small.
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
# One piece of a task's live output; the drivers cut it.
MAX_OUTPUT_BYTES: Final = 64 * 1024
# Task ids are `<job>/<index>`, attempts `<task>#<n>`, leases 16 hex digits, devices NVML UUIDs.
MAX_ID_CHARS: Final = 128
MAX_GRANT_BYTES: Final = 2048
# Attempts in one message: as many as may be under way under one lease.
MAX_BATCH: Final = 1024
# Of a reason, or of the end of a traceback.
MAX_MESSAGE_CHARS: Final = 16_384
MAX_INT: Final = 2**63 - 1
# Attempts under way under one lease. A scheduler keeps a record of each; many more than hide
# the longest round trip behind the shortest task would only be taken from other workers.
MAX_WINDOW: Final = MAX_BATCH
# In one message: the sender's own, and those of the voices that it heard last. To check the
# signatures of so many takes two milliseconds.
MAX_ATTESTATIONS: Final = 8
# A day: no hold, lease or task limit is longer in one step.
MAX_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """Would you take work with these needs, on this grant? `request_id` is the asker's own. `near`
    is data that the work would like to find."""

    request_id: int
    needs: Requirements
    grant: bytes
    priority: int = 0
    near: tuple[Cid, ...] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """Yes: this much is held softly under `lease_id` for `hold_ms`, until it is committed.

    `price_micro` is what it costs, in the unit of the worker's profile. `there` are the places, in
    the request's `near`, of the data that the worker has.
    """

    request_id: int
    lease_id: str
    holds: Held
    price_micro: int
    hold_ms: int
    there: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestRefused:
    request_id: int
    refusal: PeerRefusal


@dataclass(frozen=True, slots=True)
class Commit:
    lease_id: str


@dataclass(frozen=True, slots=True)
class Leased:
    """The hold is hard for `ttl_ms` from now. `fence` grows with every lease of this worker,
    and goes with everything done under the lease (Gray and Cheriton's leases, with fencing
    tokens). `window` is how many attempts may be under way at once: dispatched, and their
    results not yet acknowledged."""

    lease_id: str
    fence: int
    ttl_ms: int
    window: int


@dataclass(frozen=True, slots=True)
class CommitRefused:
    lease_id: str
    refusal: PeerRefusal


@dataclass(frozen=True, slots=True)
class Renew:
    lease_id: str
    fence: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """`ttl_ms` counts from the renewal, not from the old expiry. `window` is as in Leased."""

    lease_id: str
    ttl_ms: int
    window: int


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The lease is no more, and nothing runs under it: expired, unknown, preempted, or the
    worker leaves."""

    lease_id: str
    refusal: PeerRefusal


@dataclass(frozen=True, slots=True)
class Release:
    """The owner needs the lease (or the offer) no longer."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt to run. `shared_blob` numbers what its task shares with others, 0 for nothing;
    `timeout_ms` 0 is no limit."""

    attempt_id: str
    shared_blob: int
    payload: bytes
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run these under the lease, in order, after what was dispatched before.

    `shared_blobs` are those that no Dispatch has brought under this lease yet, by number, and that the
    worker is to keep (see `shared_blobs.py` for how long). A driver reads a part and a payload
    together.
    """

    lease_id: str
    fence: int
    shared_blobs: tuple[tuple[int, bytes], ...]
    assignments: tuple[Assignment, ...]


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
class TasksEnded:
    """Kept by the worker until each is acknowledged, and sent again where it may be lost."""

    lease_id: str
    fence: int
    ended: tuple[Ended, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop these, where `begun` also those that have begun; each still ends in TasksEnded."""

    lease_id: str
    attempt_ids: tuple[str, ...]
    begun: bool


@dataclass(frozen=True, slots=True)
class ResultAck:
    """The scheduler has these results; the worker may forget them."""

    lease_id: str
    attempt_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AskOpinions:
    """What do you, and those you listen to, think of others? Asked on this grant."""

    grant: bytes


@dataclass(frozen=True, slots=True)
class Opinions:
    """Signed by whoever is of that opinion (core/trust/attestation.py)."""

    attestations: tuple[bytes, ...]


WorkMessage = (
    PlacementRequest
    | Offer
    | RequestRefused
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
    | TasksEnded
    | Cancel
    | ResultAck
    | AskOpinions
    | Opinions
)


def pack(message: WorkMessage) -> bytes:
    """The frame of a message that this side made."""
    match message:
        case PlacementRequest(request_id, needs, grant, priority, near):
            wanted = [cid.to_bytes() for cid in near]
            return encode([1, request_id, pack_requirements(needs), grant, priority, wanted])
        case Offer(request_id, lease_id, holds, price_micro, hold_ms, there):
            held = pack_held(holds)
            return encode([2, request_id, lease_id, held, price_micro, hold_ms, list(there)])
        case RequestRefused(request_id, refusal):
            return encode([3, request_id, pack_refusal(refusal)])
        case Commit(lease_id):
            return encode([4, lease_id])
        case Leased(lease_id, fence, ttl_ms, window):
            return encode([5, lease_id, fence, ttl_ms, window])
        case CommitRefused(lease_id, refusal):
            return encode([6, lease_id, pack_refusal(refusal)])
        case Renew(lease_id, fence):
            return encode([7, lease_id, fence])
        case Renewed(lease_id, ttl_ms, window):
            return encode([8, lease_id, ttl_ms, window])
        case LeaseEnded(lease_id, refusal):
            return encode([9, lease_id, pack_refusal(refusal)])
        case Release(lease_id):
            return encode([10, lease_id])
        case Dispatch(lease_id, fence, shared_blobs, assignments):
            given = [[x.attempt_id, x.shared_blob, x.payload, x.timeout_ms] for x in assignments]
            return encode([11, lease_id, fence, [list(each) for each in shared_blobs], given])
        case TaskStarted(lease_id, attempt_id):
            return encode([12, lease_id, attempt_id])
        case TaskOutput(lease_id, attempt_id, is_stderr, data):
            return encode([13, lease_id, attempt_id, int(is_stderr), data])
        case TasksEnded(lease_id, fence, ended):
            over = [
                [
                    x.attempt_id,
                    _pack_outcome(x.outcome),
                    x.ran_us,
                    x.used.memory_bytes,
                    x.used.cpu_ms,
                ]
                for x in ended
            ]
            return encode([14, lease_id, fence, over])
        case Cancel(lease_id, attempt_ids, begun):
            return encode([15, lease_id, list(attempt_ids), int(begun)])
        case ResultAck(lease_id, attempt_ids):
            return encode([16, lease_id, list(attempt_ids)])
        case AskOpinions(grant):
            return encode([17, grant])
        case Opinions(attestations):
            return encode([18, list(attestations)])
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
        case [1, request_id, needs, grant, priority, near]:
            return PlacementRequest(
                _count(request_id),
                _needs_of_a_task(needs),
                take_bytes(grant, "grant", MAX_GRANT_BYTES),
                take_int(priority, "priority", 0, MAX_PRIORITY),
                tuple(_cid(each) for each in take_list(near, "near", MAX_NEAR)),
            )
        case [2, request_id, lease_id, holds, price_micro, hold_ms, there]:
            return Offer(
                _count(request_id),
                _id(lease_id),
                read_held(holds),
                take_int(price_micro, "price", 0, MAX_INT),
                _ms(hold_ms),
                tuple(_place(each) for each in take_list(there, "there", MAX_NEAR)),
            )
        case [3, request_id, refusal]:
            return RequestRefused(_count(request_id), read_refusal(refusal))
        case [4, lease_id]:
            return Commit(_id(lease_id))
        case [5, lease_id, fence, ttl_ms, window]:
            return Leased(_id(lease_id), _count(fence), _ms(ttl_ms), _window(window))
        case [6, lease_id, refusal]:
            return CommitRefused(_id(lease_id), read_refusal(refusal))
        case [7, lease_id, fence]:
            return Renew(_id(lease_id), _count(fence))
        case [8, lease_id, ttl_ms, window]:
            return Renewed(_id(lease_id), _ms(ttl_ms), _window(window))
        case [9, lease_id, refusal]:
            return LeaseEnded(_id(lease_id), read_refusal(refusal))
        case [10, lease_id]:
            return Release(_id(lease_id))
        case [11, lease_id, fence, parts, assignments]:
            return Dispatch(
                _id(lease_id),
                _count(fence),
                tuple(_part(each) for each in take_list(parts, "parts", MAX_PARTS)),
                tuple(_assignment(x) for x in take_list(assignments, "assignments", MAX_BATCH)),
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
        case [14, lease_id, fence, ended]:
            return TasksEnded(
                _id(lease_id),
                _count(fence),
                tuple(_ended(each) for each in take_list(ended, "ended", MAX_BATCH)),
            )
        case [15, lease_id, attempt_ids, begun]:
            too = take_int(begun, "begun", 0, 1) == 1
            return Cancel(_id(lease_id), _attempt_ids(attempt_ids), too)
        case [16, lease_id, attempt_ids]:
            return ResultAck(_id(lease_id), _attempt_ids(attempt_ids))
        case [17, grant]:
            return AskOpinions(take_bytes(grant, "grant", MAX_GRANT_BYTES))
        case [18, attestations]:
            return Opinions(
                tuple(
                    take_bytes(each, "attestation", MAX_ATTESTATION_BYTES)
                    for each in take_list(attestations, "attestations", MAX_ATTESTATIONS)
                )
            )
        case _:
            raise Malformed("message", "its number or its count of fields is not known")


def _count(value: object) -> int:
    return take_int(value, "count", 0, MAX_INT)


def _ms(value: object) -> int:
    return take_int(value, "milliseconds", 0, MAX_MS)


def _id(value: object) -> str:
    return take_text(value, "id", MAX_ID_CHARS)


def _window(value: object) -> int:
    return take_int(value, "window", 1, MAX_WINDOW)


def _cid(value: object) -> Cid:
    return checked(Cid.from_bytes, value)


def _place(value: object) -> int:
    return take_int(value, "place", 0, MAX_NEAR - 1)


def _part(value: object) -> tuple[int, bytes]:
    match value:
        case [number, data]:
            return take_int(number, "part", 1, MAX_INT), take_bytes(data, "part", MAX_PAYLOAD_BYTES)
        case _:
            raise Malformed("part", "is no number with its bytes")


def _assignment(value: object) -> Assignment:
    match value:
        case [attempt_id, part, payload, timeout_ms]:
            return Assignment(
                _id(attempt_id),
                _count(part),
                take_bytes(payload, "payload", MAX_PAYLOAD_BYTES),
                _ms(timeout_ms),
            )
        case _:
            raise Malformed("assignment", "is no attempt with its part, payload and time limit")


def _ended(value: object) -> Ended:
    match value:
        case [attempt_id, outcome, ran_us, memory_bytes, cpu_ms]:
            ran = take_int(ran_us, "ran_us", 0, MAX_INT)
            used = Usage(_known(memory_bytes, MAX_MEMORY_BYTES), _known(cpu_ms, MAX_CPU_MS))
            return Ended(_id(attempt_id), _parse_outcome(outcome), ran, used)
        case _:
            raise Malformed("ended", "is no attempt with its outcome, its time and what it used")


def _known(value: object, most: int) -> int | None:
    return None if value is None else take_int(value, "used", 0, most)


def _attempt_ids(value: object) -> tuple[str, ...]:
    return tuple(_id(each) for each in take_list(value, "attempt_ids", MAX_BATCH))


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
