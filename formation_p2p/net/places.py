"""Places of handshakes, which peers take before it is known which peers they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from formation_p2p.reach.core.crowding import crowded_out


@dataclass(eq=False)
class Places:
    """`most` at once, and `most_each` of one source. One more takes the place of the oldest of its
    own source, or of the source that has most. So a source that never finishes keeps none away: a
    handshake takes two round trips, and whoever wants its place has to begin so many meanwhile."""

    most: int
    most_each: int
    _taken: dict[trio.CancelScope, str] = field(default_factory=dict)  # the oldest first

    def __len__(self) -> int:
        return len(self._taken)

    @contextmanager
    def taken(self, source: str) -> Iterator[trio.CancelScope]:
        """A block that is cancelled where another takes its place."""
        own = [scope for scope, each in self._taken.items() if each == source]
        if len(own) >= self.most_each:
            self._free(own[0])
        elif len(self._taken) >= self.most:
            oldest = crowded_out(self._taken, source, lead=0)
            assert oldest is not None
            self._free(oldest)
        with trio.CancelScope() as scope:
            self._taken[scope] = source
            try:
                yield scope
            finally:
                self._taken.pop(scope, None)

    def _free(self, scope: trio.CancelScope) -> None:
        del self._taken[scope]
        scope.cancel()
