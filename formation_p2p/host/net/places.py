"""Places of handshakes, which peers take before it is known which peers they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import trio

_Taken: TypeAlias = tuple[str, trio.CancelScope]


@dataclass(eq=False)
class Places:
    """`most` at once, and `most_each` of one source. One more takes the place of the oldest of its
    own source, or of the source that has most. So a source that never finishes keeps none away: a
    handshake takes two round trips, and whoever wants its place has to begin so many meanwhile."""

    most: int
    most_each: int
    _taken: list[_Taken] = field(default_factory=list)  # the oldest first

    def __len__(self) -> int:
        return len(self._taken)

    @contextmanager
    def taken(self, source: str) -> Iterator[trio.CancelScope]:
        """A block that is cancelled where another takes its place."""
        of = Counter(each for each, _ in self._taken)
        if of[source] >= self.most_each:
            self._free(source)
        elif len(self._taken) >= self.most:
            self._free(max((each for each, _ in self._taken), key=of.__getitem__))
        with trio.CancelScope() as scope:
            place = (source, scope)
            self._taken.append(place)
            try:
                yield scope
            finally:
                if place in self._taken:
                    self._taken.remove(place)

    def _free(self, source: str) -> None:
        oldest = next(each for each in self._taken if each[0] == source)
        self._taken.remove(oldest)
        oldest[1].cancel()
