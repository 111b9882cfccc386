"""What makes room where all places are taken, so that a peer that has many keeps no other away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, TypeVar

_T = TypeVar("_T", bound=Hashable)
_K = TypeVar("_K", bound=Hashable)

# A newcomer that took the place of an equal would be the next to lose it, to the same peer.
LEAD: Final = 2


def crowded_out(
    owners: Mapping[_T, _K],
    newcomer: _K,
    *,
    lead: int = LEAD,
    counted: Iterable[_K] | None = None,
) -> _T | None:
    """The first thing, in the order of `owners`, of the owner that has most, where that owner has
    `lead` more at least than the newcomer. `counted` has the owner of each thing where some things
    may not make room."""
    has = Counter(owners.values() if counted is None else counted)
    first = max(owners, key=lambda each: has[owners[each]], default=None)
    return None if first is None or has[owners[first]] < has[newcomer] + lead else first
