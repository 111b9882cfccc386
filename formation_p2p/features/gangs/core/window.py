"""Things that travel together: as many as come within a moment, or as many as a message takes."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

T = TypeVar("T")

# Reports of links between members: what one member has of them all.
LIMIT: Final = 100
WAIT_S: Final = 0.2


class Window(Generic[T]):
    """Full after `limit` items or `wait_s` after the first."""

    def __init__(self, limit: int = LIMIT, wait_s: float = WAIT_S) -> None:
        self._limit = limit
        self._wait_s = wait_s
        self._items: list[T] = []
        self._due_s = float("inf")

    @property
    def due_s(self) -> float:
        """When it is to be taken at the latest; infinite while it is empty."""
        return self._due_s

    def add(self, item: T, now_s: float) -> list[T]:
        """All of them, where it is full by that, else nothing."""
        if not self._items:
            self._due_s = now_s + self._wait_s
        self._items.append(item)
        return self._take() if len(self._items) >= self._limit else self.due(now_s)

    def due(self, now_s: float) -> list[T]:
        """All of them, where the time has come, else nothing."""
        return self._take() if now_s >= self._due_s else []

    def _take(self) -> list[T]:
        items, self._items = self._items, []
        self._due_s = float("inf")
        return items
