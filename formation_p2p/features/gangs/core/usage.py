"""What the tasks of a gang's member use, as its worker reports it to the owner of the lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Generic, TypeVar

from formation_p2p.features.gangs.core.roster import MAX_MEMBERS, OWNER
from formation_p2p.machine.core.bounds import MAX_CPU_MILLI, MAX_MEMORY_BYTES
from formation_p2p.records.core.codec import MAX_INT
from formation_p2p.records.core.schema import integer, items, record, text

# In one message: leases of one owner on one worker.
MAX_REPORTS: Final = 100
_MAX_LEASE_ID_CHARS: Final = 128
_Bytes = Annotated[int, integer(0, MAX_INT)]


@dataclass(frozen=True, slots=True)
class LinkBytes:
    """Since the lease began, on streams with the member of this rank, or with the owner."""

    rank: Annotated[int, integer(OWNER, MAX_MEMBERS - 1)]
    sent_bytes: _Bytes
    received_bytes: _Bytes


@dataclass(frozen=True, slots=True)
class LeaseUsage:
    """`cpu_milli` is the mean since the last report, in thousandths of a core; `memory_bytes` is in
    use now."""

    lease_id: Annotated[str, text(_MAX_LEASE_ID_CHARS)]
    fence: Annotated[int, integer(0, MAX_INT)]
    cpu_milli: Annotated[int, integer(0, MAX_CPU_MILLI)]
    memory_bytes: Annotated[int, integer(0, MAX_MEMORY_BYTES)]
    links: Annotated[tuple[LinkBytes, ...], items(record(LinkBytes), MAX_MEMBERS + 1)] = ()


# Reports that travel together: as many as come within a moment, or as many as a message takes.

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
