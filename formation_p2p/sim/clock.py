"""The clock of one simulated machine: no two run alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# A timer never fires before its time on the machine's own clock, whatever rounding does.
_LATE_S: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Clock:
    """`rate` is how many of its seconds pass in one of the world's; `began_s` is what it showed
    when the world began, and `unix_off_s` by how much its calendar is ahead."""

    rate: float = 1.0
    began_s: float = 0.0
    unix_off_s: float = 0.0

    def mono_s(self, world_s: float) -> float:
        return world_s * self.rate + self.began_s

    def world_s(self, mono_s: float) -> float:
        """When, in the world's time, this clock has reached `mono_s`; infinity for never."""
        late_s = 0.0 if self == TRUE else _LATE_S
        return (mono_s - self.began_s) / self.rate + late_s


TRUE: Final = Clock()
