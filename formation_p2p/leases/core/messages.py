"""The work protocol, `/formation/work/2.0.0`: each message, declared once.

A message is a dataclass with its number, its lane and what each field may be; packing, parsing and
the lane follow (records/core/schema.py), and the unions at the end say who takes it. `parse` checks
types, lengths and ranges. Who may say what is for the state tables to judge.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

from formation_p2p.core.identity import peer_id_to_bytes
from formation_p2p.core.keyspace import KEY_BITS
from formation_p2p.core.refusals import PeerRefusal
from formation_p2p.core.units import KIB, MIB
from formation_p2p.leases.core.held import HeldResources
from formation_p2p.leases.core.in_flight import MAX_SHARED_BLOBS
from formation_p2p.leases.core.refusal_kind import MAX_MESSAGE_CHARS as MAX_MESSAGE_CHARS
from formation_p2p.leases.core.refusal_kind import OUTCOME, REFUSAL
from formation_p2p.machine.core.bounds import MAX_MEMORY_BYTES, check_host_name
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.codec import MAX_INT, Malformed
from formation_p2p.records.core.profile import MAX_GRANT_BYTES, MAX_PROFILE_BYTES
from formation_p2p.records.core.resources import (
    pack_requirements,
    take_peer_id,
    unpack_requirements,
)
from formation_p2p.records.core.schema import (
    Schema,
    Slot,
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
from formation_p2p.trust.core.attestation import MAX_ATTESTATION_BYTES
from formation_p2p.workload.core.blob import Cid
from formation_p2p.workload.core.checkpoint import Checkpoint
from formation_p2p.workload.core.hints import MAX_NEAR
from formation_p2p.workload.core.outcome import MAX_CPU_MS, Ended, Outcome, Usage
from formation_p2p.workload.core.work import MAX_PAYLOAD_BYTES, MAX_PRIORITY

# One frame. A payload and a result are at most 8 MiB each; the rest is small.
MAX_FRAME_BYTES: Final = 16 * MIB
# One piece of a task's live output; the drivers cut it.
MAX_OUTPUT_BYTES: Final = 64 * KIB
# Task ids are `<job>/<index>`, attempts `<task>#<n>`, leases 16 hex digits, devices NVML UUIDs.
MAX_ID_CHARS: Final = 128
# Attempts in one message, and in flight under one lease. A scheduler keeps a record of each; many
# more than hide the longest round trip behind the shortest task would be taken from other workers.
MAX_WINDOW: Final = 1024
# In one message: the sender's own, and those of the voices that it heard last. To check the
# signatures of so many takes two milliseconds.
MAX_ATTESTATIONS: Final = 8
# What a feature says along with a lease: a signature, and a handful of numbers.
MAX_EXTENSION_BYTES: Final = 256
# What a feature says beside a request for a lease, or its offer: some hundreds of peer ids.
MAX_BESIDE_BYTES: Final = 16 * KIB
# A want is needs with labels, eight addresses of a relay's length, and a grant, under a signature.
MAX_WANT_BYTES: Final = 6 * KIB
# Peers that are to hear one want that is spread (docs/explanation/placement.md).
MAX_REACH: Final = 300
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


def _read_checkpoint(value: object) -> Checkpoint | None:
    return None if value is None else Checkpoint.unpack(value)


def _pack_checkpoint(checkpoint: Checkpoint | None) -> bytes | None:
    return None if checkpoint is None else checkpoint.pack()


def _make_ended(
    attempt_id: str, outcome: Outcome, ran_us: int, memory_bytes: int | None, cpu_ms: int | None
) -> Ended:
    return Ended(attempt_id, outcome, ran_us, Usage(memory_bytes, cpu_ms))


_ID: Final = text(MAX_ID_CHARS)
PEER_ID: Final = custom(partial(take_peer_id, field="peer id"), peer_id_to_bytes)
_CID: Final = custom(Cid.from_bytes, Cid.to_bytes)
_PLACE: Final = integer(0, MAX_NEAR - 1)
_ENDED: Final = record(
    _make_ended,
    {
        "attempt_id": _ID,
        "outcome": OUTCOME,
        "ran_us": integer(0, MAX_INT),
        "used.memory_bytes": optional(integer(0, MAX_MEMORY_BYTES)),
        "used.cpu_ms": optional(integer(0, MAX_CPU_MS)),
    },
)
_CHECKPOINT: Final = custom(_read_checkpoint, _pack_checkpoint)
Id = Annotated[str, _ID]
Count = Annotated[int, integer(0, MAX_INT)]
Milliseconds = Annotated[int, integer(0, MAX_MS)]
Window = Annotated[int, integer(1, MAX_WINDOW)]
Flag = Annotated[bool, flag()]


@dataclass(frozen=True, slots=True)
class WorkMessage:
    """One message of the protocol: the kernel's are here, those of a feature in its folder."""


WORK: Final[Schema[WorkMessage]] = Schema("work protocol", MAX_FRAME_BYTES)


# What a feature says beside a request and its offer, as it reads it itself.
Beside = tuple[Any, ...]
REQUEST_SLOT: Final = Slot(MAX_BESIDE_BYTES)
OFFER_SLOT: Final = Slot(MAX_BESIDE_BYTES)


@WORK.message(1, urgent=True)
@dataclass(frozen=True, slots=True)
class PlacementRequest(WorkMessage):
    """Would you take work with these needs, on this grant? `request_id` is the asker's own. `near`
    is data that the work would like to find, `name` that of the asker's node. `beside` is for a
    feature. `since_ms` is the Unix time at which its asker began to seek leases that it needs all
    at once; 0 for other work."""

    request_id: Count
    needs: Annotated[Requirements, custom(_read_needs, pack_requirements)]
    grant: Annotated[bytes, octets(MAX_GRANT_BYTES)]
    priority: Annotated[int, integer(0, MAX_PRIORITY)] = 0
    near: Annotated[tuple[Cid, ...], items(_CID, MAX_NEAR)] = ()
    name: Annotated[str, custom(_read_name)] = ""
    beside: Annotated[Beside, REQUEST_SLOT.kind] = ()
    since_ms: Count = 0


@WORK.message(2, urgent=True)
@dataclass(frozen=True, slots=True)
class Offer(WorkMessage):
    """Yes: this much is held softly under `lease_id` for `hold_ms`, until it is committed.

    `price_micro` is what it costs, in the unit of the worker's profile. `there` are the places, in
    the request's `near`, of the data that the worker has. `beside` answers what a feature
    says beside the request. A worker that was not asked, and answers a want, shows its signed
    `profile`.
    """

    request_id: Count
    lease_id: Id
    holds: Annotated[HeldResources, record(HeldResources)]
    price_micro: Count
    hold_ms: Milliseconds
    there: Annotated[tuple[int, ...], items(_PLACE, MAX_NEAR)] = ()
    beside: Annotated[Beside, OFFER_SLOT.kind] = ()
    profile: Annotated[bytes | None, octets(MAX_PROFILE_BYTES, trailing=True)] = None


@WORK.message(3, urgent=True)
@dataclass(frozen=True, slots=True)
class RequestRefused(WorkMessage):
    request_id: Count
    refusal: Annotated[PeerRefusal, REFUSAL]


@WORK.message(4, urgent=True)
@dataclass(frozen=True, slots=True)
class Commit(WorkMessage):
    """`extension` is for what counts the use of all workers (trust/core/network_quota.py), where
    the grant has hours of that kind."""

    lease_id: Id
    extension: Annotated[bytes | None, octets(MAX_EXTENSION_BYTES, trailing=True)] = None


@WORK.message(5, urgent=True)
@dataclass(frozen=True, slots=True)
class Leased(WorkMessage):
    """The hold is hard for `ttl_ms` from now. `fence` grows with every lease of this worker,
    and goes with everything done under the lease (Gray and Cheriton's leases, with fencing
    tokens). `window` is how many attempts may be under way at once: dispatched, and their
    results not yet acknowledged."""

    lease_id: Id
    fence: Count
    ttl_ms: Milliseconds
    window: Window


@WORK.message(6, urgent=True)
@dataclass(frozen=True, slots=True)
class CommitRefused(WorkMessage):
    lease_id: Id
    refusal: Annotated[PeerRefusal, REFUSAL]


@WORK.message(7, urgent=True)
@dataclass(frozen=True, slots=True)
class Renew(WorkMessage):
    """With a `grant` where the owner has another one than the lease was asked for on, and a
    `extension` as in Commit."""

    lease_id: Id
    fence: Count
    grant: Annotated[bytes, octets(MAX_GRANT_BYTES)] = b""
    extension: Annotated[bytes | None, octets(MAX_EXTENSION_BYTES, trailing=True)] = None


@WORK.message(8, urgent=True)
@dataclass(frozen=True, slots=True)
class Renewed(WorkMessage):
    """`ttl_ms` counts from the renewal, not from the old expiry. `window` is as in Leased. With
    `yields_ms` the lease gives way to an equal: what runs may end within this time, and nothing new
    is to come. Where nothing was asked for, that is all it says, and `ttl_ms` is 0."""

    lease_id: Id
    ttl_ms: Milliseconds
    window: Window
    yields_ms: Annotated[int | None, integer(0, MAX_MS, trailing=True)] = None


@WORK.message(9)
@dataclass(frozen=True, slots=True)
class LeaseEnded(WorkMessage):
    """The lease has ended, and nothing runs under it: expired, unknown, preempted, or the
    worker leaves."""

    lease_id: Id
    refusal: Annotated[PeerRefusal, REFUSAL]


@WORK.message(10, urgent=True)
@dataclass(frozen=True, slots=True)
class Release(WorkMessage):
    """The owner needs the lease (or the offer) no longer; or it waits no more for what it was
    refused, by its `waiting_id`. An older node, which has no such lease, takes no notice."""

    lease_id: Id


def waiting_id(request_id: int) -> str:
    """The name of a request that was refused: that of no lease, whose name has no space."""
    return f"request {request_id}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt to run. `shared_blob` numbers what its task shares with others, 0 for nothing;
    `timeout_ms` 0 means none. It goes on from the `checkpoint`, if there is one."""

    attempt_id: Id
    shared_blob: Count
    payload: Annotated[bytes, octets(MAX_PAYLOAD_BYTES)]
    timeout_ms: Milliseconds
    checkpoint: Annotated[Checkpoint | None, _CHECKPOINT] = None


@WORK.message(11)
@dataclass(frozen=True, slots=True)
class Dispatch(WorkMessage):
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


@WORK.message(12)
@dataclass(frozen=True, slots=True)
class TaskStarted(WorkMessage):
    lease_id: Id
    attempt_id: Id


@WORK.message(13)
@dataclass(frozen=True, slots=True)
class TaskOutput(WorkMessage):
    """Without data it asks for an OutputRead."""

    lease_id: Id
    attempt_id: Id
    is_stderr: Flag
    data: Annotated[bytes, octets(MAX_OUTPUT_BYTES)]


@WORK.message(32)
@dataclass(frozen=True, slots=True)
class OutputRead(WorkMessage):
    """Answers a TaskOutput without data, by which a worker asks whether it is to wait for a reader.
    There is one; or, with `more`, it has read all that came before. An older node, whose output is
    cut, never asks, and never answers."""

    lease_id: Id
    attempt_id: Id
    more: Flag


@WORK.message(14)
@dataclass(frozen=True, slots=True)
class TasksEnded(WorkMessage):
    """Kept by the worker until each is acknowledged, and sent again where it may be lost."""

    lease_id: Id
    fence: Count
    ended: Annotated[tuple[Ended, ...], items(_ENDED, MAX_WINDOW)]


@WORK.message(15)
@dataclass(frozen=True, slots=True)
class Cancel(WorkMessage):
    """Stop these, where `begun` also those that have begun: with `grace_ms` these are given notice,
    and so long to save what they have. Each still ends in TasksEnded."""

    lease_id: Id
    attempt_ids: Annotated[tuple[str, ...], items(_ID, MAX_WINDOW)]
    begun: Flag
    grace_ms: Milliseconds = 0


@WORK.message(16)
@dataclass(frozen=True, slots=True)
class ResultAck(WorkMessage):
    """The scheduler has these results; the worker may forget them."""

    lease_id: Id
    attempt_ids: Annotated[tuple[str, ...], items(_ID, MAX_WINDOW)]


@WORK.message(17)
@dataclass(frozen=True, slots=True)
class AskOpinions(WorkMessage):
    """What do you, and those you listen to, think of others? Asked on this grant."""

    grant: Annotated[bytes, octets(MAX_GRANT_BYTES)]


@WORK.message(18)
@dataclass(frozen=True, slots=True)
class Opinions(WorkMessage):
    """Each signed by its author (trust/core/attestation.py)."""

    attestations: Annotated[
        tuple[bytes, ...], items(octets(MAX_ATTESTATION_BYTES), MAX_ATTESTATIONS)
    ]


@WORK.message(19)
@dataclass(frozen=True, slots=True)
class AskGrant(WorkMessage):
    """Renew this grant of mine."""

    grant: Annotated[bytes, octets(MAX_GRANT_BYTES)]


@WORK.message(20)
@dataclass(frozen=True, slots=True)
class GrantIssued(WorkMessage):
    """The grant that was asked for; its asker checks it."""

    grant: Annotated[bytes, octets(MAX_GRANT_BYTES)]


@WORK.message(21)
@dataclass(frozen=True, slots=True)
class GrantRefused(WorkMessage):
    refusal: Annotated[PeerRefusal, REFUSAL]


@WORK.message(30)
@dataclass(frozen=True, slots=True)
class TaskCheckpoint(WorkMessage):
    """An attempt has saved this, and I have it. Told once: the next one replaces it."""

    lease_id: Id
    fence: Count
    attempt_id: Id
    checkpoint: Annotated[Checkpoint, custom(Checkpoint.unpack, Checkpoint.pack)]


@WORK.message(31)
@dataclass(frozen=True, slots=True)
class Notice(WorkMessage):
    """The lease ends in `ends_ms`, or sooner once it is given back, and nothing more begins under
    it. What has not begun comes back; what runs has been told to save what it has, and ends in
    TasksEnded as all do.

    Without a `lease_id`, and with 0 for the fence, the sender itself leaves then: what it holds for
    the receiver, who may have no lease of it, is to be held elsewhere. An older node, which has no
    such lease, takes no notice."""

    lease_id: Id
    fence: Count
    ends_ms: Milliseconds
    refusal: Annotated[PeerRefusal, REFUSAL]


@WORK.message(40, urgent=True)
@dataclass(frozen=True, slots=True)
class LeaveWant(WorkMessage):
    """Keep this want of mine (wants/core/want.py), for workers that announce themselves to
    you."""

    want: Annotated[bytes, octets(MAX_WANT_BYTES)]


@WORK.message(41, urgent=True)
@dataclass(frozen=True, slots=True)
class HandWant(WorkMessage):
    """You have announced room, and this is wanted: offer it to the author, if you like."""

    want: Annotated[bytes, octets(MAX_WANT_BYTES)]


@WORK.message(42, urgent=True)
@dataclass(frozen=True, slots=True)
class SpreadWant(WorkMessage):
    """Answer this want, if you like, and pass it on to the peers that share `depth` bits of their
    keys with yours, so that `reach` hear it, with you."""

    want: Annotated[bytes, octets(MAX_WANT_BYTES)]
    depth: Annotated[int, integer(0, KEY_BITS)]
    reach: Annotated[int, integer(1, MAX_REACH)]


# Who takes a message of the kernel. A worker has a lessor and executions, a scheduler its lessee.
ToWorker = PlacementRequest | Commit | Renew | Release | Dispatch | Cancel | ResultAck | OutputRead
ToLessee = Offer | RequestRefused | Leased | CommitRefused | Renewed | LeaseEnded
ToScheduler = TaskStarted | TaskOutput | TasksEnded | TaskCheckpoint | Notice
ToPeer = AskOpinions | Opinions
ToMember = AskGrant | GrantIssued | GrantRefused
ToListener = LeaveWant | HandWant | SpreadWant
KernelMessage = ToWorker | ToLessee | ToScheduler | ToPeer | ToMember | ToListener

pack = WORK.pack
parse = WORK.parse


def is_urgent(message: WorkMessage) -> bool:
    """Whether it goes ahead of large frames: what keeps a lease, or comes before there is one."""
    return type(message) in WORK.urgent
