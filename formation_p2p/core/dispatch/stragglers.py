"""Tasks that take much longer than others of their kind, and what waits behind them.

A lease has more than one task in flight, so that none waits for the network. Where the first of
them turns out to be slow, those behind it are better off elsewhere; where its job allows it, an
idle worker tries to overtake it (Dean and Ghemawat, "MapReduce", 2004, section 3.6).
"""

from __future__ import annotations

from collections.abc import Iterable

from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.dispatch.estimates import Estimates
from formation_p2p.core.effects import Moment


def idle_of(leases: Iterable[ActiveLease]) -> list[ActiveLease]:
    return [active for active in leases if not active.attempts and not active.lease.is_suspect]


def is_stuck(active: ActiveLease, estimates: Estimates, now: Moment) -> bool:
    """Whether the lease runs a slow task, and nothing is to wait behind that any more."""
    slow = active.slow
    if slow is None:
        return False
    return active.cleared == slow or now.mono_s >= active.began_s + estimates.patience_s


def to_recall(
    active: ActiveLease, estimates: Estimates, any_idle: bool, now: Moment
) -> tuple[list[str], float]:
    """The attempts to take back from a lease, and when to ask again. Marks them as recalled."""
    slow = active.slow
    if slow is None or active.lease.is_suspect or not active.behind(slow):
        return [], float("inf")
    due_s = active.began_s + estimates.patience_s
    if not any_idle and now.mono_s < due_s:
        return [], due_s
    return active.recall_behind(slow), float("inf")


def overtake_s(active: ActiveLease, estimates: Estimates) -> float:
    """When the slow task of a lease should get a second attempt; infinity for never."""
    slow = active.slow
    if slow is None:
        return float("inf")
    run = active.attempts[slow]
    if not run.job.job.options.speculate or run.copies > 1 or not run.is_wanted:
        return float("inf")
    return active.began_s + estimates.straggler_s
