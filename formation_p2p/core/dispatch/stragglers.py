"""How long tasks of one kind take, what waits behind one that takes much longer, and who tries it.

A lease has more than one task in flight, so that none waits for the network. Where the first of
them turns out to be slow, those behind it are better off elsewhere; where its job allows it, an
idle worker tries to overtake it (Dean and Ghemawat, "MapReduce", 2004, section 3.6).
"""

from __future__ import annotations

from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.dispatch.parameters import DispatchParameters
from formation_p2p.core.effects import Moment


class Estimates:
    """Of one group. `mean_s` is the duration of a task, as far as is known; infinite where none has
    ended."""

    def __init__(self, parameters: DispatchParameters) -> None:
        self._parameters = parameters
        self.mean_s = float("inf")

    def took(self, mean_s: float | None) -> None:
        """Some tasks took so long each. Longer than thought counts at once, shorter bit by bit."""
        if mean_s is None:
            return
        unknown = self.mean_s == float("inf")
        self.mean_s = mean_s if unknown else max(mean_s, 0.8 * self.mean_s + 0.2 * mean_s)

    def depth(self, window: int) -> int:
        """How many attempts to have in flight on a lease that takes so many."""
        parameters, mean_s = self._parameters, self.mean_s
        if parameters.alone_s < mean_s < float("inf"):
            return 1
        wanted = int(parameters.horizon_s / max(mean_s, 1e-6))
        return min(max(wanted, parameters.pipeline), window)

    def is_stuck(self, active: ActiveLease, now: Moment) -> bool:
        """Whether the lease runs a slow task, and nothing is to wait behind that any more."""
        slow = active.slow
        if slow is None:
            return False
        return active.cleared == slow or now.mono_s >= active.began_s + self._patience_s

    def to_recall(
        self, active: ActiveLease, any_idle: bool, now: Moment
    ) -> tuple[list[str], float]:
        """The attempts to take back from a lease, and when to ask again. Marks them as recalled."""
        slow = active.slow
        if slow is None or active.lease.is_suspect or not (behind := active.behind(slow)):
            return [], float("inf")
        due_s = active.began_s + self._patience_s
        if not any_idle and now.mono_s < due_s:
            return [], due_s
        active.recall(behind, slow)
        return behind, float("inf")

    def overtake_s(self, active: ActiveLease) -> float:
        """When the slow task of a lease should get a second attempt; infinity for never, or while
        it is not known how long others take."""
        slow, parameters = active.slow, self._parameters
        if slow is None:
            return float("inf")
        run = active.attempts[slow]
        if not run.job.job.options.speculate or run.copies > 1 or not run.is_wanted:
            return float("inf")
        return active.began_s + max(parameters.min_straggler_s, parameters.straggler * self.mean_s)

    @property
    def _patience_s(self) -> float:
        """For how long a task may run before others wait behind it no longer."""
        patient_s = max(self._parameters.min_patience_s, self._parameters.patience * self.mean_s)
        return min(patient_s, self._parameters.max_patience_s)
