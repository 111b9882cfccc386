"""How many of something there are to be for what they use, and when that may change again.

As the Horizontal Pod Autoscaler has it: so many that each would use as much as it should; fewer
only where they use clearly less, so that a size does not swing; and a pause after each change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import check_amount

# As many as a gang has members at most.
MAX_SIZE: Final = 64
# So many percentage points below the target before members are let go.
SLACK_PERCENT: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """From `least` to `most` members, each to use `target_percent` of its cores. No two changes
    inwards within `in_cooldown_s`, and none outwards within `out_cooldown_s` of the last change.
    Raises InvalidInput."""

    least: int = 1
    most: int = MAX_SIZE
    target_percent: int = 70
    in_cooldown_s: float = 300.0
    out_cooldown_s: float = 120.0

    def __post_init__(self) -> None:
        check_amount("least", self.least, 1, MAX_SIZE)
        check_amount("most", self.most, 1, MAX_SIZE)
        check_amount("target_percent", self.target_percent, 1, 100)
        if self.least > self.most:
            raise InvalidInput("most", f"{self.most} is less than the least, {self.least}")
        if not (self.in_cooldown_s >= 0 and self.out_cooldown_s >= 0):
            raise InvalidInput("cooldown", "is less than zero; write 0 or more seconds")

    def should_grow(self, size: int, used_percent: float) -> bool:
        return size < self.most and used_percent > self.target_percent

    def should_shrink(self, size: int, used_percent: float) -> bool:
        return size > self.least and used_percent < self.target_percent - SLACK_PERCENT

    def target(self, size: int, used_percent: float) -> int | None:
        """How many there should be; None where that is as many as there are."""
        wanted = size * used_percent / self.target_percent
        if self.should_grow(size, used_percent):
            return min(math.ceil(wanted), self.most)
        if self.should_shrink(size, used_percent):
            return max(int(wanted), self.least)
        if size < self.least:
            return self.least
        return self.most if size > self.most else None


class Autoscaler:
    """Decides at each look when a size changes, and waits between changes."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self.policy = policy
        self._changed_s = float("-inf")

    def decide(self, size: int, used_percent: float, now_s: float) -> int | None:
        """The size to change to now; None to leave it."""
        target = self.policy.target(size, used_percent)
        if target is None:
            return None
        pause_s = self.policy.out_cooldown_s if target > size else self.policy.in_cooldown_s
        return None if now_s - self._changed_s < pause_s else target

    def changed(self, now_s: float) -> None:
        """The size has changed, or an attempt at that has failed: the pause begins."""
        self._changed_s = now_s
