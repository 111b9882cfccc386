"""How soon a worker may publish itself again."""

from __future__ import annotations

from collections import deque

from formation_p2p.core.effects import Moment
from formation_p2p.discovery.core.parameters import DiscoveryParameters


class Pace:
    """Call `published` with each profile. Times are on the monotonic clock."""

    def __init__(self, parameters: DiscoveryParameters) -> None:
        self._parameters = parameters
        self._last_s = float("-inf")
        self._moves: deque[float] = deque(maxlen=parameters.max_quick_moves)

    def published(self, now: Moment) -> None:
        self._last_s = now.mono_s

    def after(self, wait_s: float, now: Moment) -> float:
        """When `wait_s` is over, and the least interval since the last profile."""
        return max(now.mono_s + wait_s, self._last_s + self._parameters.min_interval_s)

    def moved(self, now: Moment, due_s: float) -> float:
        """When to tell of new addresses, where something is to be told at `due_s`: at once, unless
        they change all the time."""
        ours = self._parameters
        quick_s = max(now.mono_s + ours.move_settle_s, self._last_s + ours.move_interval_s)
        if due_s <= quick_s:
            return due_s
        oldest_s = self._moves[0] if len(self._moves) == ours.max_quick_moves else float("-inf")
        if oldest_s > now.mono_s - ours.ttl_s:
            return min(due_s, self.after(ours.settle_s, now))
        self._moves.append(now.mono_s)
        return quick_s
