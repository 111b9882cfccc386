"""Messages of the work protocol as hypothesis draws them: all of them, within their bounds."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import strategies as st

from formation_p2p.core.negotiation.held import HeldResources
from formation_p2p.core.negotiation.messages import (
    MAX_MS,
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
    Leased,
    LeaseEnded,
    Offer,
    Opinions,
    PlacementRequest,
    Release,
    Renew,
    Renewed,
    RequestRefused,
    ResultAck,
    TaskOutput,
    TasksEnded,
    TaskStarted,
    WorkMessage,
)
from formation_p2p.core.negotiation.refusal_kind import MAX_RETRY_MS
from formation_p2p.core.records.codec import MAX_INT
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
from formation_p2p.core.resources.bounds import (
    MAX_CPU_MILLI,
    MAX_MEMORY_BYTES,
    MAX_NETWORK_MBPS,
    MAX_STORAGE_BYTES,
)
from formation_p2p.core.resources.gpu import WHOLE_GPU_MILLI
from formation_p2p.core.workload.blob import DAG_CBOR, DIGEST_BYTES, RAW, Cid
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
from formation_p2p.core.workload.work import MAX_PRIORITY
from tests.support import resources_world

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
    Usage,
    st.none() | st.integers(0, MAX_MEMORY_BYTES),
    st.none() | st.integers(0, MAX_CPU_MS),
)
outcomes: st.SearchStrategy[Outcome] = st.builds(Succeeded, blobs) | st.builds(
    Failed, st.sampled_from(FailureKind), lines, blobs
)
cids = st.builds(
    Cid, st.sampled_from((RAW, DAG_CBOR)), st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES)
)
places = st.integers(0, MAX_NEAR - 1)
parts = st.tuples(st.integers(1, MAX_INT), blobs)
assignments = st.builds(Assignment, ids, counts, blobs, times_ms)
messages: st.SearchStrategy[WorkMessage] = st.one_of(
    st.builds(
        PlacementRequest, counts, needs, blobs, st.integers(0, MAX_PRIORITY), tuples_of(cids)
    ),
    st.builds(Offer, counts, ids, holdings, counts, times_ms, tuples_of(places)),
    st.builds(RequestRefused, counts, refusals),
    st.builds(Commit, ids),
    st.builds(Leased, ids, counts, times_ms, windows),
    st.builds(CommitRefused, ids, refusals),
    st.builds(Renew, ids, counts, blobs),
    st.builds(Renewed, ids, times_ms, windows),
    st.builds(LeaseEnded, ids, refusals),
    st.builds(Release, ids),
    st.builds(Dispatch, ids, counts, tuples_of(parts), tuples_of(assignments)),
    st.builds(TaskStarted, ids, ids),
    st.builds(TaskOutput, ids, ids, st.booleans(), blobs),
    st.builds(TasksEnded, ids, counts, tuples_of(st.builds(Ended, ids, outcomes, counts, usages))),
    st.builds(Cancel, ids, tuples_of(ids), st.booleans()),
    st.builds(ResultAck, ids, tuples_of(ids)),
    st.builds(AskOpinions, blobs),
    st.builds(AskGrant, blobs),
    st.builds(GrantIssued, blobs),
    st.builds(GrantRefused, refusals),
    st.builds(Opinions, tuples_of(blobs)),
)
