"""Drivers that report the tasks they run to the owner of the worker."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from formation_p2p.core.workload.outcome import UNMEASURED, Failed, Outcome, Usage
from formation_p2p.host.drivers.driver import (
    BlobAccess,
    Driver,
    Execution,
    LeaseDriver,
    Report,
    Turns,
    UsesBlobs,
)

# Events that wait for a stopped terminal or an unread pipe; past it the oldest are dropped.
MAX_UNSHOWN: Final = 1000
# Events within this time are shown together: people do not read faster.
BREATH_S: Final = 0.1


# How what never ended by itself has ended.
TAKEN_BACK: Final = ("cancelled", "its owner took it back, or its lease ended")


@dataclass(frozen=True, slots=True)
class WorkBegan:
    attempt: str
    driver: str
    cpu_milli: int
    memory_bytes: int
    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkEnded:
    """`how` is `succeeded`, or a kind of failure (core/workload/outcome.py)."""

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

    def watched(self, make: Callable[[], Driver | LeaseDriver]) -> Driver | LeaseDriver:
        driver = make()
        if isinstance(driver, LeaseDriver):
            return _WatchedForLease(driver, self._tell)
        return _Watched(driver, self._tell)

    async def events(self) -> AsyncIterator[list[WorkEvent]]:
        """All that happens until `close`, as much of it at once as there is. One reader only."""
        while True:
            # A breath between two batches: a thousand small tasks a second are no reason to wake
            # a thousand times.
            self._news.clear()
            if self._events:
                yield [self._events.popleft() for _ in range(len(self._events))]
                await asyncio.sleep(BREATH_S)
            elif self._closed:
                return
            else:
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
    """A driver that reports the tasks it runs."""

    def __init__(self, driver: Driver, tell: Callable[[WorkEvent], None]) -> None:
        self._driver = driver
        self._tell = tell

    @property
    def name(self) -> str:
        return self._driver.name

    @property
    def blobs(self) -> BlobAccess | None:
        return self._driver.blobs if isinstance(self._driver, UsesBlobs) else None

    @blobs.setter
    def blobs(self, blobs: BlobAccess | None) -> None:
        if isinstance(self._driver, UsesBlobs):
            self._driver.blobs = blobs

    async def run(self, execution: Execution, report: Report) -> Outcome:
        self._tell(_began(execution, self.name))
        how, message = TAKEN_BACK
        began_s = time.monotonic()
        try:
            outcome = await self._driver.run(execution, report)
            how, message = _how(outcome)
            return outcome
        finally:
            ran_ms = round((time.monotonic() - began_s) * 1000)
            self._tell(WorkEnded(execution.execution_id, self.name, how, message, ran_ms))

    async def end_lease(self, lease_id: str) -> None:
        await self._driver.end_lease(lease_id)


class _WatchedForLease:
    """The same for a driver that serves a whole lease."""

    def __init__(self, driver: LeaseDriver, tell: Callable[[WorkEvent], None]) -> None:
        self._driver = driver
        self._tell = tell

    @property
    def name(self) -> str:
        return self._driver.name

    async def serve(self, turns: Turns) -> None:
        watched = _WatchedTurns(turns, self._driver.name, self._tell)
        try:
            await self._driver.serve(cast(Turns, watched))
        finally:
            watched.close()


class _WatchedTurns:
    """Turns that report when an execution begins and ends."""

    def __init__(self, turns: Turns, driver: str, tell: Callable[[WorkEvent], None]) -> None:
        self._turns = turns
        self._driver = driver
        self._tell = tell
        self._taken: dict[str, Execution] = {}
        self._began_s: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        """What needs no watching."""
        return getattr(self._turns, name)

    def take(self) -> Execution:
        execution = self._turns.take()
        self._taken[execution.execution_id] = execution
        return execution

    def put_back(self, execution: Execution) -> None:
        self._taken.pop(execution.execution_id, None)
        self._turns.put_back(execution)

    def begin(self, execution_id: str) -> None:
        execution = self._taken.pop(execution_id, None)
        if execution is not None:
            self._began_s[execution_id] = time.monotonic()
            self._tell(_began(execution, self._driver))
        self._turns.begin(execution_id)

    def ended(self, execution_id: str, outcome: Outcome, used: Usage = UNMEASURED) -> None:
        self._taken.pop(execution_id, None)
        self._end(execution_id, *_how(outcome))
        self._turns.ended(execution_id, outcome, used)

    def close(self) -> None:
        """The lease ended, and with it what still ran."""
        for execution_id in list(self._began_s):
            self._end(execution_id, *TAKEN_BACK)

    def _end(self, execution_id: str, how: str, message: str) -> None:
        began_s = self._began_s.pop(execution_id, None)
        if began_s is not None:
            ran_ms = round((time.monotonic() - began_s) * 1000)
            self._tell(WorkEnded(execution_id, self._driver, how, message, ran_ms))


def _began(execution: Execution, driver: str) -> WorkBegan:
    return WorkBegan(
        execution.execution_id,
        driver,
        execution.cpu_milli,
        execution.memory_bytes,
        execution.device_ids,
    )


def _how(outcome: Outcome) -> tuple[str, str]:
    return (
        (outcome.kind.value, outcome.message) if isinstance(outcome, Failed) else ("succeeded", "")
    )
