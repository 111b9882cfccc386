"""What a task prints: passed on live up to a bound, and the end of it kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from formation_p2p.core.units import KIB, MIB, format_bytes
from formation_p2p.core.workload.process import MAX_TAIL_BYTES
from formation_p2p.host.drivers.driver import Stream

# What a pipe holds by default: one read empties it.
CHUNK_BYTES: Final = 64 * KIB
# Of one execution, both streams together. A long readable log fits; a flood, which has to travel
# and be kept, does not.
MAX_OUTPUT_BYTES: Final = 16 * MIB


class Output:
    """One execution's output, passed on to `report`. `full` once the bound is passed; the stream
    has one notice of it."""

    def __init__(self, report: Callable[[Stream, bytes], None]) -> None:
        self._report = report
        self._left_bytes = MAX_OUTPUT_BYTES
        self._tails: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self.full = False

    def take(self, stream: Stream, data: bytes) -> None:
        """`data` of at most CHUNK_BYTES."""
        tail = self._tails[stream]
        tail += data
        # Cut at twice the bound, so that each byte is moved once at most.
        if len(tail) > 2 * MAX_TAIL_BYTES:
            del tail[:-MAX_TAIL_BYTES]
        if self.full:
            return
        if passed := data[: self._left_bytes]:
            self._report(stream, passed)
        self._left_bytes -= len(passed)
        if len(passed) < len(data):
            self.full = True
            bound = format_bytes(MAX_OUTPUT_BYTES)
            notice = f"\n[output past {bound} is not passed on; write to a file instead]\n"
            self._report(stream, notice.encode())

    def tail(self, stream: Stream) -> bytes:
        """The last MAX_TAIL_BYTES at most, whether passed on or not."""
        return bytes(self._tails[stream][-MAX_TAIL_BYTES:])
