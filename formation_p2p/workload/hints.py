"""Where a person would like tasks to run, and where not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Soft unless said to be required."""


NO_HINTS: Final = Hints()
