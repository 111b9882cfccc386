"""How many bytes are in flight under a lease, counted alike on either side of it."""

from __future__ import annotations

from typing import Final

from formation_p2p.core.units import KIB
from formation_p2p.core.workload.task import MAX_PAYLOAD_BYTES

# Of one lease: two of the largest tasks. A lease takes 64 MiB of the machine's memory at the
# least, so that what a node keeps for its leases stays below what they reserve.
MAX_IN_FLIGHT_BYTES: Final = 2 * MAX_PAYLOAD_BYTES
# Payloads or results in one message: another message waits for the stream for no longer than this
# takes.
BATCH_BYTES: Final = 256 * KIB


class InFlight:
    """What tasks share counts once, for as long as one of them is in flight."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._sharing: dict[bytes, int] = {}

    @property
    def tasks(self) -> int:
        return sum(self._sharing.values())

    def has_room_for(self, payload: bytes, shared: bytes) -> bool:
        more = 0 if shared in self._sharing else len(shared)
        return self.total_bytes + len(payload) + more <= MAX_IN_FLIGHT_BYTES

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
