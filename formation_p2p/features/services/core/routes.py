"""What a caller remembers of where a service is: for as long as claims last, read again sooner.

What was read is used for `fresh_s` as it is. After that it is used on, and read again beside that;
past `ttl_s` without a read that succeeded it counts for nothing, since each claim in it has expired
by then. A failure says that it is old: it is read again before the next stream that is opened more
than `soon_s` after the last read.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class Freshness(Enum):
    FRESH = "fresh"
    """Use it."""
    OLD = "old"
    """Use it, and read it again beside that."""
    SPENT = "spent"
    """Read it first; what there is counts only where that fails."""
    NOTHING = "nothing"
    """There is none, or too old: read it first."""


@dataclass(frozen=True, slots=True)
class RouteParameters:
    """No other peer has to agree with these."""

    fresh_s: float = 5.0
    # The life of a claim.
    ttl_s: float = 60.0
    # A service that fails is not read more often.
    soon_s: float = 0.5


ROUTE_DEFAULTS: Final = RouteParameters()


class Route(Generic[T]):
    """Of one service."""

    def __init__(self, parameters: RouteParameters = ROUTE_DEFAULTS) -> None:
        self._parameters = parameters
        self._found: T | None = None
        self._found_s = self._tried_s = float("-inf")
        self._failed = False

    def read(self, found: T | None, now_s: float) -> None:
        """It was read; None where that has failed, which says nothing of the service."""
        self._tried_s = now_s
        if found is not None:
            self._found, self._found_s, self._failed = found, now_s, False

    def failed(self) -> None:
        """What it says has proved wrong."""
        self._failed = True

    def found(self, now_s: float) -> T | None:
        """What there is to use."""
        return self._found if now_s - self._found_s < self._parameters.ttl_s else None

    def freshness(self, now_s: float) -> Freshness:
        if self.found(now_s) is None:
            return Freshness.NOTHING
        if now_s - self._tried_s <= self._parameters.soon_s:
            return Freshness.FRESH
        if self._failed:
            return Freshness.SPENT
        is_fresh = now_s - self._found_s < self._parameters.fresh_s
        return Freshness.FRESH if is_fresh else Freshness.OLD

    def may_read_at_s(self) -> float:
        """No sooner than this, after a read that found nothing of use."""
        return self._tried_s + self._parameters.soon_s
