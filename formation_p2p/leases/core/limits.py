"""How often something may happen, for each of many: peers, invitations."""

from __future__ import annotations


class Limits:
    """At most `most` times in each window, for each of `max_keys`; where so many are counted, all
    others have to wait for the next window."""

    def __init__(self, most: int, window_s: float, max_keys: int) -> None:
        self._most = most
        self._window_s = window_s
        self._max_keys = max_keys
        self._since_s = float("-inf")
        self._counts: dict[str, int] = {}

    def is_spent(self, key: str, now_s: float) -> bool:
        """Whether it has happened as often as it may."""
        return now_s < self._since_s + self._window_s and self._counts.get(key, 0) >= self._most

    def admits(self, key: str, now_s: float) -> bool:
        """Whether it may, once more; then it counts."""
        if now_s >= self._since_s + self._window_s:
            self._since_s, self._counts = now_s, {}
        count = self._counts.get(key, 0)
        if count >= self._most or (count == 0 and len(self._counts) >= self._max_keys):
            return False
        self._counts[key] = count + 1
        return True
