"""Tasks that take much longer than others of their kind, and what waits behind them.

A lease has more than one task under way, so that none waits for the network. Where the first of
them turns out to be slow, those behind it are better off elsewhere; where its job allows it, an
idle worker tries to overtake it (Dean and Ghemawat, "MapReduce", 2004, section 3.6).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.effects import Moment

# What waits behind a slow task is taken back at once where a worker is idle. Where none is, once,
# after this many times what others take, and in this range: there may be idle ones by now.
PATIENCE: Final = 4.0
LEAST_PATIENCE_S: Final = 0.2
MOST_PATIENCE_S: Final = 5.0
# A second attempt begins after this many times what others take, and not before this.
STRAGGLER: Final = 2.0
LEAST_STRAGGLER_S: Final = 0.5


def idle_of(slots: Iterable[ActiveLease]) -> list[ActiveLease]:
    return [slot for slot in slots if not slot.attempts and not slot.lease.doubtful]


def is_stuck(slot: ActiveLease, mean_s: float, now: Moment) -> bool:
    """Whether the lease runs a slow task, and nothing is to wait behind that any more."""
    slow = slot.slow
    return slow is not None and (slot.cleared == slow or now.mono_s >= _patient_s(slot, mean_s))


def to_recall(
    slot: ActiveLease, mean_s: float, any_idle: bool, now: Moment
) -> tuple[list[str], float]:
    """The attempts to take back from a lease, and when to ask again. Marks them as recalled.

    `mean_s` is how long others take, infinite where nobody knows.
    """
    slow = slot.slow
    if slow is None or slot.lease.doubtful:
        return [], float("inf")
    behind = [a for a in slot.attempts if a != slow and a not in slot.recalled]
    if not behind:
        return [], float("inf")
    due_s = _patient_s(slot, mean_s)
    if not any_idle and now.mono_s < due_s:
        return [], due_s
    slot.cleared = slow
    slot.recalled.update(behind)
    return behind, float("inf")


def overtake_s(slot: ActiveLease, mean_s: float) -> float:
    """When the slow task of a lease should get a second attempt; infinity for never."""
    slow = slot.slow
    if slow is None or mean_s == float("inf"):
        return float("inf")
    run = slot.attempts[slow]
    if not run.job.job.options.speculate or run.copies > 1 or not run.is_wanted:
        return float("inf")
    return slot.began_s + max(LEAST_STRAGGLER_S, STRAGGLER * mean_s)


def _patient_s(slot: ActiveLease, mean_s: float) -> float:
    patience_s = min(max(LEAST_PATIENCE_S, PATIENCE * mean_s), MOST_PATIENCE_S)
    return slot.began_s + patience_s
