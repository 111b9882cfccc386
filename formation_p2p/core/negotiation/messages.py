"""The work protocol, `/formation/work/2.0.0`: each message, declared once.

A message is a dataclass with its number, its lane and what each field may be; packing, parsing and
the lane follow (core/records/schema.py), and the unions at the end say who takes it. `parse` checks
types, lengths and ranges. Who may say what is for the state tables to judge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, assert_never

from formation_p2p.core.negotiation.held import HeldResources
from formation_p2p.core.negotiation.in_flight import MAX_SHARED_BLOBS
from formation_p2p.core.negotiation.refusal_kind import REFUSAL
from formation_p2p.core.records.codec import MAX_INT, Malformed, take_bytes, take_text
from formation_p2p.core.records.profile import MAX_GRANT_BYTES
from formation_p2p.core.records.resources import pack_requirements, unpack_requirements
from formation_p2p.core.records.schema import (
    Schema,
    custom,
    flag,
    integer,
    items,
    octets,
    optional,
    pair,
    record,
    text,
)
from formation_p2p.core.refusals import PeerRefusal
from formation_p2p.core.resources.bounds import MAX_MEMORY_BYTES, check_host_name
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.trust.attestation import MAX_ATTESTATION_BYTES
from formation_p2p.core.units import KIB, MIB
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
from formation_p2p.core.workload.work import MAX_PAYLOAD_BYTES, MAX_PRIORITY, MAX_RESULT_BYTES

# One frame. A payload and a result are at most 8 MiB each; the rest is small.
MAX_FRAME_BYTES: Final = 16 * MIB
# One piece of a task's live output; the drivers cut it.
MAX_OUTPUT_BYTES: Final = 64 * KIB
# Task ids are `<job>/<index>`, attempts `<task>#<n>`, leases 16 hex digits, devices NVML UUIDs.
MAX_ID_CHARS: Final = 128
# Attempts in one message, and in flight under one lease. A scheduler keeps a record of each; many
# more than hide the longest round trip behind the shortest task would be taken from other workers.
MAX_WINDOW: Final = 1024
# Of a reason, or of the end of a traceback.
MAX_MESSAGE_CHARS: Final = 16_384
# In one message: the sender's own, and those of the voices that it heard last. To check the
# signatures of so many takes two milliseconds.
MAX_ATTESTATIONS: Final = 8
# A day: no hold, lease or task limit is longer in one step.
MAX_MS: Final = 24 * 3600 * 1000


def _read_needs(value: object) -> Requirements:
    """Requirements with a driver: what a grant allows and what is dispatched depend on it."""
    needs = unpack_requirements(value)
    if needs.driver == "":
        raise Malformed("driver", "is not named")
    return needs


def _read_name(value: object) -> object:
    """Empty where the sender says none."""
    if value != "":
        check_host_name("name", value)
    return value


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


def _make_ended(
    attempt_id: str, outcome: Outcome, ran_us: int, memory_bytes: int | None, cpu_ms: int | None
) -> Ended:
    return Ended(attempt_id, outcome, ran_us, Usage(memory_bytes, cpu_ms))


_ID: Final = text(MAX_ID_CHARS)
_CID: Final = custom(Cid.from_bytes, Cid.to_bytes)
_PLACE: Final = integer(0, MAX_NEAR - 1)
_ENDED: Final = record(
    _make_ended,
    {
        "attempt_id": _ID,
        "outcome": custom(_read_outcome, _pack_outcome),
        "ran_us": integer(0, MAX_INT),
        "used.memory_bytes": optional(integer(0, MAX_MEMORY_BYTES)),
        "used.cpu_ms": optional(integer(0, MAX_CPU_MS)),
    },
)
Id = Annotated[str, _ID]
Count = Annotated[int, integer(0, MAX_INT)]
Milliseconds = Annotated[int, integer(0, MAX_MS)]
Window = Annotated[int, integer(1, MAX_WINDOW)]
Flag = Annotated[bool, flag()]

_WORK: Final[Schema[WorkMessage]] = Schema("work protocol", MAX_FRAME_BYTES)


@_WORK.message(1, urgent=True)
@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """Would you take work with these needs, on this grant? `request_id` is the asker's own. `near`
    is data that the work would like to find, `name` that of the asker's node."""

    request_id: Count
    needs: Annotated[Requirements, custom(_read_needs, pack_requirements)]
    grant: Annotated[bytes, octets(MAX_GRANT_BYTES)]
    priority: Annotated[int, integer(0, MAX_PRIORITY)] = 0
    near: Annotated[tuple[Cid, ...], items(_CID, MAX_NEAR)] = ()
    name: Annotated[str, custom(_read_name)] = ""


@_WORK.message(2, urgent=True)
@dataclass(frozen=True, slots=True)
class Offer:
    """Yes: this much is held softly under `lease_id` for `hold_ms`, until it is committed.

    `price_micro` is what it costs, in the unit of the worker's profile. `there` are the places, in
    the request's `near`, of the data that the worker has.
    """

    request_id: Count
    lease_id: Id
    holds: Annotated[HeldResources, record(HeldResources)]
    price_micro: Count
    hold_ms: Milliseconds
    there: Annotated[tuple[int, ...], items(_PLACE, MAX_NEAR)] = ()


@_WORK.message(3, urgent=True)
@dataclass(frozen=True, slots=True)
class RequestRefused:
    request_id: Count
    refusal: Annotated[PeerRefusal, REFUSAL]


@_WORK.message(4, urgent=True)
@dataclass(frozen=True, slots=True)
class Commit:
    lease_id: Id


@_WORK.message(5, urgent=True)
@dataclass(frozen=True, slots=True)
class Leased:
    """The hold is hard for `ttl_ms` from now. `fence` grows with every lease of this worker,
    and goes with everything done under the lease (Gray and Cheriton's leases, with fencing
    tokens). `window` is how many attempts may be under way at once: dispatched, and their
    results not yet acknowledged."""

    lease_id: Id
    fence: Count
    ttl_ms: Milliseconds
    window: Window


@_WORK.message(6, urgent=True)
@dataclass(frozen=True, slots=True)
class CommitRefused:
    lease_id: Id
    refusal: Annotated[PeerRefusal, REFUSAL]


@_WORK.message(7, urgent=True)
@dataclass(frozen=True, slots=True)
class Renew:
    """With a `grant` where the owner has another one than the lease was asked for on."""

    lease_id: Id
    fence: Count
    grant: Annotated[bytes, octets(MAX_GRANT_BYTES)] = b""


@_WORK.message(8, urgent=True)
@dataclass(frozen=True, slots=True)
class Renewed:
    """`ttl_ms` counts from the renewal, not from the old expiry. `window` is as in Leased."""

    lease_id: Id
    ttl_ms: Milliseconds
    window: Window


@_WORK.message(9)
@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The lease has ended, and nothing runs under it: expired, unknown, preempted, or the
    worker leaves."""

    lease_id: Id
    refusal: Annotated[PeerRefusal, REFUSAL]


@_WORK.message(10, urgent=True)
@dataclass(frozen=True, slots=True)
class Release:
    """The owner needs the lease (or the offer) no longer."""

    lease_id: Id


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt to run. `shared_blob` numbers what its task shares with others, 0 for nothing;
    `timeout_ms` 0 means none."""

    attempt_id: Id
    shared_blob: Count
    payload: Annotated[bytes, octets(MAX_PAYLOAD_BYTES)]
    timeout_ms: Milliseconds


@_WORK.message(11)
@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run these under the lease, in order, after what was dispatched before.

    `shared_blobs` are those that no Dispatch has brought under this lease yet, by number; the
    worker keeps them (see `in_flight.py` for how long). A driver reads one with a payload.
    """

    lease_id: Id
    fence: Count
    shared_blobs: Annotated[
        tuple[tuple[int, bytes], ...],
        items(pair(integer(1, MAX_INT), octets(MAX_PAYLOAD_BYTES)), MAX_SHARED_BLOBS),
    ]
    assignments: Annotated[tuple[Assignment, ...], items(record(Assignment), MAX_WINDOW)]


@_WORK.message(12)
@dataclass(frozen=True, slots=True)
class TaskStarted:
    lease_id: Id
    attempt_id: Id


@_WORK.message(13)
@dataclass(frozen=True, slots=True)
class TaskOutput:
    lease_id: Id
    attempt_id: Id
    is_stderr: Flag
    data: Annotated[bytes, octets(MAX_OUTPUT_BYTES)]


@_WORK.message(14)
@dataclass(frozen=True, slots=True)
class TasksEnded:
    """Kept by the worker until each is acknowledged, and sent again where it may be lost."""

    lease_id: Id
    fence: Count
    ended: Annotated[tuple[Ended, ...], items(_ENDED, MAX_WINDOW)]


@_WORK.message(15)
@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop these, where `begun` also those that have begun; each still ends in TasksEnded."""

    lease_id: Id
    attempt_ids: Annotated[tuple[str, ...], items(_ID, MAX_WINDOW)]
    begun: Flag


@_WORK.message(16)
@dataclass(frozen=True, slots=True)
class ResultAck:
    """The scheduler has these results; the worker may forget them."""

    lease_id: Id
    attempt_ids: Annotated[tuple[str, ...], items(_ID, MAX_WINDOW)]


@_WORK.message(17)
@dataclass(frozen=True, slots=True)
class AskOpinions:
    """What do you, and those you listen to, think of others? Asked on this grant."""

    grant: Annotated[bytes, octets(MAX_GRANT_BYTES)]


@_WORK.message(18)
@dataclass(frozen=True, slots=True)
class Opinions:
    """Each signed by its author (core/trust/attestation.py)."""

    attestations: Annotated[
        tuple[bytes, ...], items(octets(MAX_ATTESTATION_BYTES), MAX_ATTESTATIONS)
    ]


@_WORK.message(19)
@dataclass(frozen=True, slots=True)
class AskGrant:
    """Renew this grant of mine."""

    grant: Annotated[bytes, octets(MAX_GRANT_BYTES)]


@_WORK.message(20)
@dataclass(frozen=True, slots=True)
class GrantIssued:
    """The grant that was asked for; its asker checks it."""

    grant: Annotated[bytes, octets(MAX_GRANT_BYTES)]


@_WORK.message(21)
@dataclass(frozen=True, slots=True)
class GrantRefused:
    refusal: Annotated[PeerRefusal, REFUSAL]


# Who takes a message. A worker has a lessor and executions, a scheduler its lessee beside it.
ToWorker = PlacementRequest | Commit | Renew | Release | Dispatch | Cancel | ResultAck
ToLessee = Offer | RequestRefused | Leased | CommitRefused | Renewed | LeaseEnded
ToScheduler = TaskStarted | TaskOutput | TasksEnded
ToPeer = AskOpinions | Opinions
ToMember = AskGrant | GrantIssued | GrantRefused
WorkMessage = ToWorker | ToLessee | ToScheduler | ToPeer | ToMember

pack = _WORK.pack
parse = _WORK.parse


def is_urgent(message: WorkMessage) -> bool:
    """Whether it goes ahead of large frames: what keeps a lease, or comes before there is one."""
    return type(message) in _WORK.urgent
