"""How far the peer of a muxed connection is, and whether it has read what was written.

Source: hashicorp/yamux specification, "Ping".
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable

import trio

from formation_p2p.net.transport.errors import MuxedConnUnavailable


class Pings:
    """`send` writes a ping with a number, which cannot be answered before it is asked; `measured`
    is told of each round trip that `measure` begins, in microseconds."""

    def __init__(self, send: Callable[[int], None], measured: Callable[[int], None]) -> None:
        self._send = send
        self._measured = measured
        self.least_rtt_s = math.inf
        """The least that was measured: how far the peer is while nothing else waits."""
        self._broken: str | None = None
        self._measuring: tuple[int, float] | None = None  # the latest, and when
        self._awaited: dict[int, trio.Event] = {}  # one for each caller that waits
        self._marks: dict[int, Callable[[], None]] = {}  # some for each MiB that is written

    def measure(self) -> None:
        number = secrets.randbits(32)
        self._measuring = (number, trio.current_time())
        self._send(number)

    async def round_trip(self) -> float:
        """Until the peer has read all that was written before this; the seconds that it took.
        Raises MuxedConnUnavailable where the connection ends before."""
        number, began_s = secrets.randbits(32), trio.current_time()
        answered = self._awaited[number] = trio.Event()
        try:
            if self._broken is None:
                self._send(number)
                await answered.wait()
        finally:
            del self._awaited[number]
        if self._broken is not None:
            raise MuxedConnUnavailable(self._broken)
        return trio.current_time() - began_s

    def mark(self, passed: Callable[[], None]) -> None:
        """`passed` is called once the peer has read all that was written before this."""
        number = secrets.randbits(32)
        self._marks[number] = passed
        self._send(number)

    def answered(self, number: int) -> None:
        passed = self._marks.pop(number, None)
        if passed is not None:
            passed()
        if number in self._awaited:
            self._awaited[number].set()
        if self._measuring is not None and self._measuring[0] == number:
            took_s = trio.current_time() - self._measuring[1]
            self._measuring = None
            self.least_rtt_s = min(self.least_rtt_s, took_s)
            self._measured(max(round(took_s * 1_000_000), 1))

    def end(self, reason: str) -> None:
        """The connection is over."""
        self._broken = reason
        for each in self._awaited.values():
            each.set()
