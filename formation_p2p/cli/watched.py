"""What a worker runs, as its owner sees it: drivers that tell of their work."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from formation_p2p.host.drivers.driver import Driver, Execution, Report
from formation_p2p.workload.outcome import Failed, Outcome

# Events that wait for a terminal that shows nothing, or a pipe that nobody reads; past it the
# oldest are dropped.
MAX_UNSHOWN: Final = 1000


@dataclass(frozen=True, slots=True)
class WorkBegan:
    attempt: str
    driver: str
    cpu_milli: int
    memory_bytes: int
    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkEnded:
    """`how` is `succeeded`, or a kind of failure (workload/outcome.py)."""

    attempt: str
    driver: str
    how: str
    message: str
    ran_ms: int


WorkEvent = WorkBegan | WorkEnded


class Watch:
    """Counts, and hands each event over from the node's thread to the loop's."""

    def __init__(self) -> None:
        self.running = self.succeeded = self.failed = 0
        self._loop = asyncio.get_running_loop()
        self._events: deque[WorkEvent] = deque(maxlen=MAX_UNSHOWN)
        self._news = asyncio.Event()
        self._closed = False

    def watched(self, make: Callable[[], Driver]) -> Driver:
        return _Watched(make(), self._tell)

    async def events(self) -> AsyncIterator[WorkEvent]:
        """All that happens until `close`. One reader only."""
        while True:
            while self._events:
                yield self._events.popleft()
            if self._closed:
                return
            self._news.clear()
            await self._news.wait()

    def close(self) -> None:
        """Once the node has been left: nothing will happen any more."""
        self._closed = True
        self._news.set()

    def _tell(self, event: WorkEvent) -> None:
        """On the node's thread."""
        if isinstance(event, WorkBegan):
            self.running += 1
        else:
            self.running -= 1
            self.succeeded += event.how == "succeeded"
            self.failed += event.how != "succeeded"
        self._events.append(event)
        if len(self._events) == 1:  # else the reader has not come to the end yet
            self._loop.call_soon_threadsafe(self._news.set)


class _Watched:
    """A driver, and whoever is told of what it runs."""

    def __init__(self, driver: Driver, tell: Callable[[WorkEvent], None]) -> None:
        self._driver = driver
        self._tell = tell

    @property
    def name(self) -> str:
        return self._driver.name

    async def run(self, execution: Execution, report: Report) -> Outcome:
        attempt, driver = execution.execution_id, self.name
        self._tell(
            WorkBegan(
                attempt,
                driver,
                execution.cpu_milli,
                execution.memory_bytes,
                execution.device_ids,
            )
        )
        how, message = "cancelled", "its owner took it back, or its lease ended"
        began_s = time.monotonic()
        try:
            outcome = await self._driver.run(execution, report)
            if isinstance(outcome, Failed):
                how, message = outcome.kind.value, outcome.message
            else:
                how, message = "succeeded", ""
            return outcome
        finally:
            ran_ms = round((time.monotonic() - began_s) * 1000)
            self._tell(WorkEnded(attempt, driver, how, message, ran_ms))

    async def end_lease(self, lease_id: str) -> None:
        await self._driver.end_lease(lease_id)
