"""That this process still runs, for the supervisors of its tasks to see.

A worker that is stopped (SIGSTOP, a debugger, a frozen container) can neither renew its leases nor
kill what runs under them. Its supervisors are processes of their own: they read when it was last
there, and where that is longer ago than any lease lives they kill their tasks themselves.
"""

from __future__ import annotations

import os
import time
from functools import cache
from typing import Final

import trio

from formation_p2p.leases.core.parameters import LEASE_DEFAULTS

BEAT_S: Final = 1.0
# All leases have run out then; a beat may be as late as another one.
SILENCE_S: Final = LEASE_DEFAULTS.lease_s + BEAT_S


class Heartbeat:
    """Eight bytes of memory: nanoseconds on CLOCK_BOOTTIME, or 0 while nothing beats."""

    def __init__(self) -> None:
        self._memory = os.memfd_create("heartbeat")
        self._beating = 0
        self._write(0)

    @classmethod
    @cache
    def of_this_process(cls) -> Heartbeat:
        return cls()

    def open(self) -> int:
        """A descriptor to read it from and nothing else; the caller closes it."""
        return os.open(f"/proc/self/fd/{self._memory}", os.O_RDONLY | os.O_CLOEXEC)

    async def run(self) -> None:
        """Beats until it is cancelled."""
        self._beating += 1
        try:
            while True:
                self._write(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
                await trio.sleep(BEAT_S)
        finally:
            self._beating -= 1
            if self._beating == 0:
                self._write(0)

    def _write(self, ns: int) -> None:
        os.pwrite(self._memory, ns.to_bytes(8, "little"), 0)
