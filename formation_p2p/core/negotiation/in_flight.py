"""How many bytes are under way under a lease, counted alike on either side of it."""

from __future__ import annotations

from typing import Final

from formation_p2p.core.workload.task import MAX_PAYLOAD_BYTES

# Of one lease: two of the largest tasks. A lease takes 64 MiB of the machine's memory at the
# least, so that what a node keeps for its leases stays below what they reserve.
MAX_UNDER_WAY_BYTES: Final = 2 * MAX_PAYLOAD_BYTES


class UnderWay:
    """What tasks share counts once, for as long as one of them is under way."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._sharing: dict[bytes, int] = {}

    def has_room_for(self, payload: bytes, shared: bytes) -> bool:
        more = 0 if shared in self._sharing else len(shared)
        return self.total_bytes + len(payload) + more <= MAX_UNDER_WAY_BYTES

    def add(self, payload_bytes: int, shared: bytes) -> None:
        tasks = self._sharing.get(shared, 0)
        self._sharing[shared] = tasks + 1
        self.total_bytes += payload_bytes + (0 if tasks else len(shared))

    def remove(self, payload_bytes: int, shared: bytes) -> None:
        """Of one that was added."""
        self._sharing[shared] -= 1
        self.total_bytes -= payload_bytes
        if not self._sharing[shared]:
            del self._sharing[shared]
            self.total_bytes -= len(shared)
