"""A call for offers of workers that were not asked: those that hear of it answer by its number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from formation_p2p.core.negotiation.round import RoundId
from formation_p2p.core.placement.task_options import SchedulingKey

# One for each kind of task that waits, and one before it; the oldest is forgotten.
MAX_CALLS: Final = 128


@dataclass(slots=True)
class Call:
    """For up to `wanted` leases at once, of offers that come until `until_s`; `enough` of them, or
    the deliberation after the first, end its `round`. Then another may begin."""

    number: int
    key: SchedulingKey
    wanted: int
    enough: int
    until_s: float
    round: RoundId | None = None

    def opened(self, number: RoundId) -> None:
        self.round = number
