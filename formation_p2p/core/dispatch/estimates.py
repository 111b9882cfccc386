"""How long the tasks of a group take, and what follows from that for its leases."""

from __future__ import annotations

from formation_p2p.core.dispatch.parameters import DispatchParameters


class Estimates:
    """`mean_s` is the duration of a task, as far as is known; infinite where none has ended."""

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

    @property
    def patience_s(self) -> float:
        """For how long a task may run before others wait behind it no longer."""
        patient_s = max(self._parameters.min_patience_s, self._parameters.patience * self.mean_s)
        return min(patient_s, self._parameters.max_patience_s)

    @property
    def straggler_s(self) -> float:
        """After how long a task gets a second attempt; infinity while that is unknown."""
        return max(self._parameters.min_straggler_s, self._parameters.straggler * self.mean_s)
