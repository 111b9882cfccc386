"""What is in flight under a lease, and what its tasks share, counted alike on either side of it.

What many tasks share travels once: the function of ten thousand calls, say. The scheduler numbers
such a blob, sends it with the first task that needs it under a lease, and names it by its number
from then on. Both sides keep the newest ones by the same rule, so that the scheduler knows which
the worker still has; it may have sent more than the worker got, never less (a stream that broke is
followed by `forget`).
"""

from __future__ import annotations

from typing import Final

from formation_p2p.core.units import KIB, MIB
from formation_p2p.workload.core.work import MAX_PAYLOAD_BYTES

# Of one lease: two of the largest tasks. A lease takes 64 MiB of the machine's memory at the
# least, so that what a node keeps for its leases stays below what they reserve.
MAX_IN_FLIGHT_BYTES: Final = 2 * MAX_PAYLOAD_BYTES
# Payloads or results in one message: another message waits for the stream for no longer than this
# takes.
BATCH_BYTES: Final = 256 * KIB
# A job has one function as a rule; a lease serves the jobs of one scheduler, side by side.
MAX_SHARED_BLOBS: Final = 16
# Two of the largest (workload/core/work.py). A lease takes 64 MiB of the machine at the least.
MAX_SHARED_BYTES: Final = 16 * MIB


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


class SharedBlobs:
    """The blobs that a worker has under one lease, on either side of it."""

    def __init__(self) -> None:
        self._data: dict[int, bytes] = {}
        self._numbers: dict[bytes, int] = {}
        self.total_bytes = 0
        self._last = 0

    def __len__(self) -> int:
        return len(self._data)

    def __contains__(self, data: bytes) -> bool:
        return data in self._numbers

    def number(self, data: bytes) -> tuple[int, bool]:
        """The scheduler's: the number of a blob, and whether it is new and has to be sent."""
        known = self._numbers.get(data)
        if known is not None:
            return known, False
        number = self._last + 1
        self.keep(number, data)
        return number, True

    def keep(self, number: int, data: bytes) -> None:
        """The worker's: a blob has come. The oldest make room."""
        self._drop(number)
        self._last = max(self._last, number)
        self._data[number] = data
        self._numbers[data] = number
        self.total_bytes += len(data)
        while len(self._data) > MAX_SHARED_BLOBS or self.total_bytes > MAX_SHARED_BYTES:
            self._drop(next(iter(self._data)))

    def get(self, number: int) -> bytes | None:
        """None where it was never brought, or made room."""
        return self._data.get(number)

    def forget(self) -> None:
        """Count none of them as known to the worker. Numbers are not used again."""
        self._data.clear()
        self._numbers.clear()
        self.total_bytes = 0

    def _drop(self, number: int) -> None:
        data = self._data.pop(number, None)
        if data is not None:
            self.total_bytes -= len(data)
            if self._numbers.get(data) == number:
                del self._numbers[data]
