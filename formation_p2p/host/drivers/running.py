"""Which processes run for which lease, in all nodes of this process; to be measured by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_SUPERVISORS: Final[dict[str, set[int]]] = {}


def supervisors_of(lease_id: str) -> tuple[int, ...]:
    """Process ids of the supervisors of its tasks, by whose children these run."""
    return tuple(_SUPERVISORS.get(lease_id, ()))


def runs_for(lease_id: str, supervisor: int) -> Callable[[], None]:
    """It is among those of its lease until what this returns is called."""
    _SUPERVISORS.setdefault(lease_id, set()).add(supervisor)

    def ended() -> None:
        left = _SUPERVISORS[lease_id]
        left.discard(supervisor)
        if not left:
            del _SUPERVISORS[lease_id]

    return ended
