"""The environments that this machine could not have lately: their tasks are refused at once."""

from __future__ import annotations

from typing import Final

from formation_p2p.core.effects import Moment
from formation_p2p.core.latest import Remembered
from formation_p2p.core.refusals import Unbuildable
from formation_p2p.machine.core.environment import packages_of
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded

# An index may be back by then.
FAILED_S: Final = 60.0
# At 1 KiB each. Each has cost its asker a lease.
MAX_FAILED: Final = 256
# Of a reason that travels, on one line.
MAX_WHY_CHARS: Final = 1000


class FailedEnvironments:
    def __init__(self) -> None:
        self._failed = Remembered[str, str](MAX_FAILED, FAILED_S)  # why

    def ended(self, prepared: str, outcome: Outcome, now: Moment) -> None:
        """An execution that asks for what is `prepared` has ended."""
        name = packages_of(prepared)
        if not name:
            return
        if isinstance(outcome, Succeeded):
            self._failed.forget(name)
        elif outcome.kind is FailureKind.ENVIRONMENT:
            self._failed.learn(name, on_one_line(outcome), now)

    def refusal(self, prepared: str, now: Moment) -> Unbuildable | None:
        why = self._failed.get(packages_of(prepared), now)
        return None if why is None else Unbuildable(packages_of(prepared), why)


def on_one_line(failed: Failed) -> str:
    """The end of its message, where it says what went wrong."""
    words = "".join(c if c.isprintable() else " " for c in failed.message).split()
    return " ".join(words)[-MAX_WHY_CHARS:]
