"""Attempts that are given notice, so that their tasks go on elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.negotiation.messages import MAX_MS, Cancel
from formation_p2p.core.negotiation.session import Send


def attempts_of(active: ActiveLease, job_id: str, task_id: str) -> list[str]:
    """Those of a task under a lease, as far as its job wants it."""
    return [
        attempt_id
        for attempt_id, run in active.attempts.items()
        if (run.job.job.job_id, run.task.task_id) == (job_id, task_id) and run.is_wanted
    ]


def notice_to(
    active: ActiveLease, attempt_ids: Iterable[str], grace_s: float, cause: str
) -> Send | None:
    """Has the worker give these notice, and end them so much later. None where it does already."""
    ids = tuple(each for each in attempt_ids if each not in active.recalled)
    if not ids:
        return None
    active.recalled.update(ids)
    for each in ids:
        active.attempts[each].leaves(active.worker)
    grace_ms = min(max(1, round(grace_s * 1000)), MAX_MS)
    return Send(
        active.lease.lessor, Cancel(active.lease.lease_id, ids, True, grace_ms), cause=cause
    )
