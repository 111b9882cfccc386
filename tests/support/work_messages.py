"""Messages of the work protocol as hypothesis draws them, within their bounds: those of the kernel;
and what holds for each."""

import contextlib
from typing import Any, TypeVar

from hypothesis import strategies as st

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.keyspace import KEY_BITS
from formation_p2p.core.refusals import (
    Busy,
    Denied,
    GivingWay,
    Gone,
    GrantEnded,
    Infeasible,
    Leaving,
    PeerRefusal,
    Preempted,
    Unbuildable,
)
from formation_p2p.leases.core.held import HeldResources
from formation_p2p.leases.core.messages import (
    MAX_FRAME_BYTES,
    MAX_MS,
    MAX_REACH,
    MAX_WINDOW,
    AskGrant,
    AskOpinions,
    Assignment,
    Cancel,
    Commit,
    CommitRefused,
    Dispatch,
    GrantIssued,
    GrantRefused,
    HandWant,
    Leased,
    LeaseEnded,
    LeaveWant,
    Notice,
    Offer,
    Opinions,
    OutputRead,
    PlacementRequest,
    Release,
    Renew,
    Renewed,
    RequestRefused,
    ResultAck,
    SpreadWant,
    TaskCheckpoint,
    TaskOutput,
    TasksEnded,
    TaskStarted,
    WorkMessage,
    pack,
    parse,
)
from formation_p2p.leases.core.refusal_kind import MAX_RETRY_MS
from formation_p2p.machine.core.bounds import (
    MAX_CPU_MILLI,
    MAX_MEMORY_BYTES,
    MAX_NETWORK_MBPS,
    MAX_STORAGE_BYTES,
)
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI
from formation_p2p.records.core.codec import MAX_INT, decode, encode
from formation_p2p.workload.core.blob import DAG_CBOR, DIGEST_BYTES, RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.checkpoint import MAX_SEQUENCE, Checkpoint, inline
from formation_p2p.workload.core.hints import MAX_NEAR
from formation_p2p.workload.core.outcome import (
    MAX_CPU_MS,
    Ended,
    Failed,
    FailureKind,
    Outcome,
    Succeeded,
    Usage,
)
from formation_p2p.workload.core.work import MAX_PRIORITY
from tests.support import resources_world
from tests.support.stories import identity

T = TypeVar("T")


def tuples_of(each: st.SearchStrategy[T]) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(each, max_size=3).map(tuple)


counts = st.integers(0, MAX_INT)
times_ms = st.integers(0, MAX_MS)
shown = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), max_size=20)
ids = shown
needs = resources_world.needs.filter(lambda needs: needs.driver != "")
amounts = counts | shown
windows = st.integers(1, MAX_WINDOW)
holdings = st.builds(
    HeldResources,
    st.integers(0, MAX_CPU_MILLI),
    st.integers(0, MAX_MEMORY_BYTES),
    st.integers(0, MAX_STORAGE_BYTES),
    st.integers(0, MAX_NETWORK_MBPS),
    st.lists(ids, max_size=4).map(tuple),
    st.integers(0, WHOLE_GPU_MILLI),
    st.integers(0, MAX_MEMORY_BYTES),
)
refusals: st.SearchStrategy[PeerRefusal] = (
    st.builds(Infeasible, shown, amounts, amounts)
    | st.builds(Denied, shown, shown)
    | st.builds(Gone, shown, shown)
    | st.builds(Busy, shown, counts)
    | st.just(Leaving())
    | st.just(GrantEnded())
    | st.builds(Unbuildable, shown, shown)
    | st.builds(GivingWay, shown, st.integers(0, MAX_RETRY_MS))
    | st.builds(Preempted, st.integers(0, MAX_PRIORITY))
)
blobs = st.binary(max_size=20)
lines = st.lists(shown, max_size=3).map("\n\t".join)
usages = st.builds(
    Usage, st.none() | st.integers(0, MAX_MEMORY_BYTES), st.none() | st.integers(0, MAX_CPU_MS)
)
outcomes: st.SearchStrategy[Outcome] = st.builds(Succeeded, blobs) | st.builds(
    Failed, st.sampled_from(FailureKind), lines, blobs
)
cids = st.builds(
    Cid, st.sampled_from((RAW, DAG_CBOR)), st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES)
)
places = st.integers(0, MAX_NEAR - 1)
parts = st.tuples(st.integers(1, MAX_INT), blobs)
contents = st.builds(lambda text: Blob(Cid(RAW, digest_of(text)), len(text)), blobs)
checkpoints = st.builds(Checkpoint, st.integers(1, MAX_SEQUENCE), contents) | st.builds(
    lambda sequence, content: Checkpoint(sequence, inline(content), content),
    st.integers(1, MAX_SEQUENCE),
    st.binary(max_size=64),
)
assignments = st.builds(Assignment, ids, counts, blobs, times_ms, st.none() | checkpoints)
peers = st.sampled_from(("alice", "bob", "carol")).map(lambda name: identity(name).peer_id)
requested = counts, needs, blobs, st.integers(0, MAX_PRIORITY), tuples_of(cids)
offered = counts, ids, holdings, counts, times_ms, tuples_of(places)
messages: st.SearchStrategy[WorkMessage] = st.one_of(
    st.builds(PlacementRequest, *requested, since_ms=counts),
    st.builds(Offer, *offered, profile=st.none() | blobs),
    st.builds(RequestRefused, counts, refusals),
    st.builds(Commit, ids, st.none() | blobs),
    st.builds(Leased, ids, counts, times_ms, windows),
    st.builds(CommitRefused, ids, refusals),
    st.builds(Renew, ids, counts, blobs, st.none() | blobs),
    st.builds(Renewed, ids, times_ms, windows),
    st.builds(LeaseEnded, ids, refusals),
    st.builds(Release, ids),
    st.builds(Dispatch, ids, counts, tuples_of(parts), tuples_of(assignments)),
    st.builds(TaskStarted, ids, ids),
    st.builds(TaskOutput, ids, ids, st.booleans(), blobs),
    st.builds(TaskCheckpoint, ids, counts, ids, checkpoints),
    st.builds(TasksEnded, ids, counts, tuples_of(st.builds(Ended, ids, outcomes, counts, usages))),
    st.builds(Cancel, ids, tuples_of(ids), st.booleans(), times_ms),
    st.builds(Notice, ids, counts, times_ms, refusals),
    st.builds(ResultAck, ids, tuples_of(ids)),
    st.builds(OutputRead, ids, ids, st.booleans()),
    st.builds(AskOpinions, blobs),
    st.builds(AskGrant, blobs),
    st.builds(GrantIssued, blobs),
    st.builds(GrantRefused, refusals),
    st.builds(Opinions, tuples_of(blobs)),
    st.builds(LeaveWant, blobs),
    st.builds(HandWant, blobs),
    st.builds(SpreadWant, blobs, st.integers(0, KEY_BITS), st.integers(1, MAX_REACH)),
)

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers(-(2**64), 2**64 - 1)
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)
paths = st.lists(st.integers(0, 20), max_size=4)


def put(value: Any, path: list[int], new: object) -> Any:
    """`value` with what stands at a place in its nested lists replaced."""
    if not path or not isinstance(value, list) or not value:
        return new
    place = path[0] % len(value)
    return [*value[:place], put(value[place], path[1:], new), *value[place + 1 :]]


def check_damage(message: WorkMessage, data: st.DataObject) -> None:
    """No damage to its frame breaks the parser."""
    raw = bytearray(pack(message))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    for damaged in (bytes(raw), cut, bytes(raw) + b"\x00"):
        with contextlib.suppress(ProtocolViolation):
            parse(damaged)


def check_another_kind(message: WorkMessage, path: list[int], new: object) -> None:
    """No field of another kind breaks the parser; and what gets through is a message like any
    other: it can be sent on."""
    raw = encode(put(decode(pack(message), MAX_FRAME_BYTES), path, new))
    with contextlib.suppress(ProtocolViolation):
        parsed = parse(raw)
        assert parse(pack(parsed)) == parsed
