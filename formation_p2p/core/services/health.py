"""What the answers to a check say of a replica: only several equal ones in a row change it."""

from __future__ import annotations

import math

from formation_p2p.core.services.spec import Check


class Health:
    """Of one check. `is_well` is None until the answers have said so once.

    One question is under way at a time; the next one is due an interval after the last was asked.
    """

    def __init__(self, check: Check, now_s: float) -> None:
        self.check = check
        self.is_well: bool | None = None
        self.why = ""
        self._row = 0  # of equal answers: so many good ones, or minus so many bad ones
        self._due_s = now_s
        self._is_asked = False

    @property
    def due_s(self) -> float:
        return math.inf if self._is_asked else self._due_s

    def asked(self, now_s: float) -> None:
        self._is_asked = True
        self._due_s = now_s + self.check.interval_ms / 1000

    def answered(self, why_not: str) -> None:
        """`why_not` is empty where the check holds."""
        self._is_asked = False
        if why_not:
            self.why = why_not
            self._row = min(self._row, 0) - 1
            if self._row <= -self.check.failures:
                self.is_well = False
        else:
            self.why = ""
            self._row = max(self._row, 0) + 1
            if self._row >= self.check.successes:
                self.is_well = True
