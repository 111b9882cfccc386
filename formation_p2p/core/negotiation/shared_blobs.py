"""What many tasks share travels once: the function of ten thousand calls, say.

The scheduler numbers such a blob, sends it with the first task that needs it under a lease, and
names it by its number from then on. Both sides keep the newest ones by the same rule, so that the
scheduler knows which the worker still has; it may have sent more than the worker got, never less
(a stream that broke is followed by `forget`).
"""

from __future__ import annotations

from typing import Final

from formation_p2p.core.units import MIB

# A job has one function as a rule; a lease serves the jobs of one scheduler, side by side.
MAX_SHARED_BLOBS: Final = 16
# Two of the largest (core/workload/task.py). A lease takes 64 MiB of the machine at the least.
MAX_SHARED_BYTES: Final = 16 * MIB


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
