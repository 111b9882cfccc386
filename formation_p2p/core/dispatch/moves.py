"""Attempts that are given notice, so that their tasks go on elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.negotiation.messages import MAX_MS, Cancel
from formation_p2p.core.negotiation.session import Send

# What is moved for its own good has so long to save what it has.
GRACE_S: Final = 30.0


def attempts_of(active: ActiveLease, job_id: str, task_id: str) -> list[str]:
    """Those of a task under a lease, as far as its job wants it."""
    return [
        attempt_id
        for attempt_id, run in active.attempts.items()
        if (run.job.job.job_id, run.task.task_id) == (job_id, task_id) and run.is_wanted
    ]


def notice_to(
    active: ActiveLease, attempt_ids: Iterable[str], grace_s: float, cause: str
) -> list[Send]:
    """Has the worker give these notice, and end them so much later; those that have none yet."""
    ids = tuple(each for each in attempt_ids if each not in active.recalled)
    if not ids:
        return []
    active.recalled.update(ids)
    for each in ids:
        active.attempts[each].leaves(active.worker)
    grace_ms = min(max(1, round(grace_s * 1000)), MAX_MS)
    cancel = Cancel(active.lease.lease_id, ids, True, grace_ms)
    return [Send(active.lease.lessor, cancel, cause=cause)]
