"""Messages of the work protocol as hypothesis draws them: all of them, within their bounds."""

from __future__ import annotations

from hypothesis import strategies as st

from formation_p2p.negotiation.messages import (
    MAX_INT,
    MAX_MS,
    Cancel,
    Commit,
    CommitRefused,
    Dispatch,
    Leased,
    LeaseEnded,
    Offer,
    PlacementRequest,
    Refused,
    Release,
    Renew,
    Renewed,
    ResultAck,
    TaskEnded,
    TaskOutput,
    TaskStarted,
    WorkMessage,
)
from formation_p2p.refusals import Busy, Denied, Gone, Infeasible, Leaving, Refusal
from formation_p2p.workload.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.task import MAX_PRIORITY
from tests.unit import resources_world

counts = st.integers(0, MAX_INT)
times_ms = st.integers(0, MAX_MS)
shown = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), max_size=20)
ids = shown
needs = resources_world.needs.filter(lambda needs: needs.driver != "")
amounts = counts | shown
refusals: st.SearchStrategy[Refusal] = (
    st.builds(Infeasible, shown, amounts, amounts)
    | st.builds(Denied, shown, shown)
    | st.builds(Gone, shown, shown)
    | st.builds(Busy, shown, counts)
    | st.just(Leaving())
)
blobs = st.binary(max_size=20)
lines = st.lists(shown, max_size=3).map("\n\t".join)
outcomes: st.SearchStrategy[Outcome] = st.builds(Succeeded, blobs) | st.builds(
    Failed, st.sampled_from(FailureKind), lines, blobs
)
messages: st.SearchStrategy[WorkMessage] = st.one_of(
    st.builds(PlacementRequest, counts, needs, blobs, st.integers(0, MAX_PRIORITY)),
    st.builds(Offer, counts, ids, st.lists(ids, max_size=4).map(tuple), times_ms),
    st.builds(Refused, counts, refusals),
    st.builds(Commit, ids),
    st.builds(Leased, ids, counts, times_ms),
    st.builds(CommitRefused, ids, refusals),
    st.builds(Renew, ids, counts),
    st.builds(Renewed, ids, times_ms),
    st.builds(LeaseEnded, ids, refusals),
    st.builds(Release, ids),
    st.builds(Dispatch, ids, counts, ids, shown, blobs, times_ms),
    st.builds(TaskStarted, ids, ids),
    st.builds(TaskOutput, ids, ids, st.booleans(), blobs),
    st.builds(TaskEnded, ids, counts, ids, outcomes, counts),
    st.builds(Cancel, ids, ids),
    st.builds(ResultAck, ids, ids),
)
