"""What runs under the leases of this machine: an effect of the peer goes to the run it is for."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, assert_never

import trio

from formation_p2p.assembly import PeerEvent
from formation_p2p.drivers.core.effects import (
    Continue,
    Execute,
    ExecutionOutput,
    ExecutionSaved,
    ExecutionsEnded,
    ExecutionStarted,
    FreeResults,
    GoOnPrinting,
    Kill,
    Pause,
    RunEffect,
    Work,
)
from formation_p2p.drivers.driver import (
    Driver,
    Execution,
    LeaseDriver,
    LooksAhead,
    Notice,
    Reader,
    Stream,
)
from formation_p2p.drivers.place import Place
from formation_p2p.drivers.scratch import ScratchFolders
from formation_p2p.leases.core.session import Fence, Fenced
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.outcome import (
    UNMEASURED,
    Ended,
    Failed,
    FailureKind,
    Outcome,
    Usage,
)

if TYPE_CHECKING:
    from formation_p2p.content.private import PrivateExchange

# The executions of one lease: run in order, one at a time, whatever drives them.

# An execution that takes longer is said to have started.
SHORT_S: Final = 0.1
# After its begin the driver looks ahead: by then it runs, and what gets it to run is not held up.
AHEAD_AFTER_S: Final = 0.01
# What is not ready when its turn comes has so long yet: it may be about to be. Then the run itself
# takes over, with all the patience that it has.
AHEAD_GRACE_S: Final = 1.0

_CANCELLED: Final = Failed(FailureKind.CANCELLED, "it was killed, as its owner asked")
_MOVED: Final = Failed(FailureKind.MOVED, "it was given notice, and is to go on elsewhere")
_NOT_BEGUN: Final = Failed(FailureKind.CANCELLED, "it was taken back before it began")

LeaseEvent = ExecutionStarted | ExecutionOutput | ExecutionSaved | ExecutionsEnded


class LeaseRun:
    """`emit` gets what happens; `place` is of what the lease is part of. It is the `Turns` of
    a driver that takes many at once.

    `add`, `kill`, `pause` and `go_on` return at once; `run` is over when `stop` was called and
    all is dead.
    """

    def __init__(
        self,
        execute: Execute,
        driver: Driver | LeaseDriver | None,
        scratch_root: Path,
        emit: Callable[[LeaseEvent], None],
        place: Callable[[], Place | None] = lambda: None,
    ) -> None:
        self.lease_id = execute.lease_id
        self._under = execute  # whose `work` is only the first of it
        self._driver = driver
        self._scratch_root = scratch_root
        self._scratch = ScratchFolders(scratch_root)
        self._emit = emit
        self._place = place
        self._waiting: deque[Work] = deque()
        self._taken: dict[str, Work] = {}
        self._current = ""
        self._began_s = 0.0
        self._begun = 0
        # To be taken back, and whether to be killed even where they have begun.
        self._recalled: dict[str, bool] = {}
        # Of those that were taken: their notices, and when those that were given one are killed.
        self._notices: dict[str, Notice] = {}
        self._ends_s: dict[str, float] = {}
        self._reader = Reader()  # of what the current one prints
        self._ending = trio.Event()
        self.is_paused = False
        self._ended: list[Ended] = []
        self._news = trio.Event()
        self._busy = trio.Event()
        # The last that the driver made ready for, while another ran.
        self._ahead = ""
        self._looking = trio.CancelScope()
        self._lined_up = trio.Event()
        self._watching: trio.CancelScope | None = None
        self._killing = trio.CancelScope()
        self._scope = trio.CancelScope()
        self._over = trio.Event()

    # -- for the shell ----------------------------------------------------------------------------

    def add(self, execute: Execute) -> None:
        is_first = not self._waiting
        self._waiting += execute.work
        if is_first:  # else its driver takes them as it has room, and the next is the same
            self._changed()

    def kill(self, attempt_id: str, *, begun: bool, grace_s: float = 0.0) -> None:
        """Take it back, or end it where it has begun and `begun` says so: with `grace_s` it is
        given notice, and ended so much later."""
        if grace_s and begun and attempt_id in self._taken:
            if attempt_id not in self._ends_s:
                self._ends_s[attempt_id] = trio.current_time() + grace_s
                self._notices[attempt_id].give(grace_s)
                self._ending.set()
            if attempt_id == self._current:
                return
            begun = False
        for work in self._waiting:
            if work.attempt_id == attempt_id:
                self._waiting.remove(work)
                if attempt_id == self._ahead:
                    self._looking.cancel()
                self._lined_up.set()  # another may be the next
                self._emit(ExecutionsEnded(self.lease_id, (Ended(attempt_id, _NOT_BEGUN, 0),)))
                return
        if attempt_id not in self._taken or (attempt_id == self._current and not begun):
            return
        # One that has been taken but has not begun is the driver's to take back, or is killed
        # when its turn has come.
        self._recalled[attempt_id] = begun or self._recalled.get(attempt_id, False)
        if attempt_id == self._current:
            self._killing.cancel()
        self._changed()

    def reader_answers(self, attempt_id: str, *, more: bool) -> None:
        if attempt_id == self._current:
            self._reader.answered(more=more)

    def pause(self) -> None:
        self.is_paused = True

    def go_on(self) -> None:
        self.is_paused = False
        self._changed()

    async def run(self) -> None:
        driver: object = self._driver  # which may have more to it than its protocol says
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._announce)
                    nursery.start_soon(self._keep_time)
                    if isinstance(driver, LooksAhead):
                        nursery.start_soon(self._look_ahead, driver)
                    while True:
                        await self._work()
        finally:
            await self._scratch.close()
            self._over.set()

    async def stop(self) -> None:
        """Ends what runs, and waits for it to be dead."""
        self._scope.cancel()
        await self._over.wait()

    # -- for a driver that takes many at once -----------------------------------------------------

    @property
    def next_bytes(self) -> int | None:
        return None if self.is_paused or not self._waiting else len(self._waiting[0].payload)

    def take(self) -> Execution:
        return self._execution(self._take(), self._scratch_root)

    def put_back(self, execution: Execution) -> None:
        work = self._taken.pop(execution.execution_id)
        del self._notices[execution.execution_id]
        self._ends_s.pop(execution.execution_id, None)
        if self._recalled.pop(work.attempt_id, None) is not None:
            self._ended.append(Ended(work.attempt_id, _NOT_BEGUN, 0))
        else:
            self._waiting.appendleft(work)

    def is_unwanted(self, execution: Execution) -> bool:
        return execution.execution_id in self._recalled

    def begin(self, execution_id: str) -> None:
        # What prepares it has begun before it does: that is announced once.
        self._begun += execution_id != self._current
        self._current = execution_id
        if not self._recalled.get(execution_id):
            self._recalled.pop(execution_id, None)
        # trio.current_time takes five times as long, and this is done twice for each call.
        self._began_s = time.perf_counter()
        self._busy.set()
        self._lined_up.set()

    @property
    def is_killed(self) -> bool:
        return self._recalled.get(self._current, False)

    def watch(self, scope: trio.CancelScope | None) -> None:
        self._watching = scope

    async def wait(self) -> None:
        while self.next_bytes is None:
            self._news = trio.Event()
            await self._news.wait()

    def output(self, execution_id: str, stream: Stream, data: bytes) -> None:
        self.flush()
        self._emit(ExecutionOutput(self.lease_id, execution_id, stream == "stderr", data))

    def saved(self, execution_id: str, blob: Blob, content: bytes | None = None) -> None:
        self._emit(ExecutionSaved(self.lease_id, execution_id, blob, content))

    def ended(self, execution_id: str, outcome: Outcome, used: Usage = UNMEASURED) -> None:
        ran_us = round((time.perf_counter() - self._began_s) * 1e6)
        del self._taken[execution_id], self._notices[execution_id]
        self._recalled.pop(execution_id, None)
        self._current = ""
        if self._ends_s.pop(execution_id, None) is not None and isinstance(outcome, Failed):
            # Whatever a task that was given notice ends in, it is to go on elsewhere.
            outcome = _MOVED
        self._ended.append(Ended(execution_id, outcome, ran_us, used))

    def flush(self) -> None:
        if self._ended:
            ended, self._ended = tuple(self._ended), []
            self._emit(ExecutionsEnded(self.lease_id, ended))

    def _take(self) -> Work:
        work = self._waiting.popleft()
        if work.attempt_id == self._ahead:
            self._looking.deadline = trio.current_time() + AHEAD_GRACE_S
        self._taken[work.attempt_id] = work
        self._notices[work.attempt_id] = Notice()
        return work

    def _changed(self) -> None:
        self._news.set()
        self._lined_up.set()
        if self._watching is not None:
            self._watching.cancel()

    async def _work(self) -> None:
        """Until the driver fails."""
        driver = self._driver
        try:
            if isinstance(driver, LeaseDriver):
                await driver.serve(self)
            else:
                await self._one_by_one(driver)
            log.error("the driver %s returned unexpectedly; restarting", self._under.needs.driver)
            failed = Failed(FailureKind.DRIVER, f"the driver {self._under.needs.driver} stopped")
        except Exception as error:
            # Drivers may be anybody's. What one of them raises ends its task, not the node.
            log.exception("the driver %s failed", self._under.needs.driver)
            failed = Failed(
                FailureKind.DRIVER, f"the driver {self._under.needs.driver} failed: {error!r}"
            )
        self._watching = None
        for attempt_id in list(self._taken):
            self.ended(attempt_id, failed)
        self.flush()
        await self.wait()  # a driver that fails at once must not spin

    async def _one_by_one(self, driver: Driver | None) -> None:
        while True:
            await self.wait()
            work = self._take()
            self.begin(work.attempt_id)
            outcome: Outcome = _CANCELLED
            report = _Report(self, work.attempt_id)
            with trio.CancelScope() as self._killing:
                if driver is None:
                    problem = f"this worker has no driver {self._under.needs.driver}"
                    outcome = Failed(FailureKind.DRIVER, problem)
                else:
                    async with self._scratch.next() as scratch:
                        execution = self._execution(work, scratch)
                        self._reader = execution.reader
                        outcome = await driver.run(execution, report)
            self.ended(work.attempt_id, outcome, report.usage)
            self.flush()

    def _execution(self, work: Work, scratch: Path) -> Execution:
        under, needs = self._under, self._under.needs
        return Execution(
            work.attempt_id,
            under.lease_id,
            work.payload,
            needs.cpu_milli,
            needs.memory_bytes,
            under.device_ids,
            work.timeout_s,
            scratch,
            work.shared,
            needs.storage_bytes,
            needs.network_mbps > 0,
            needs.python,
            under.owner,
            self._place(),
            work.restored,
            work.content,
            notice=self._notices.get(work.attempt_id) or Notice(),
        )

    async def _keep_time(self) -> None:
        """Kill those that were given notice, once their time is up."""
        while True:
            due_s = min(self._ends_s.values(), default=math.inf)
            self._ending = trio.Event()
            with trio.move_on_at(due_s):
                await self._ending.wait()
            now_s = trio.current_time()
            for attempt_id in [a for a, ends_s in self._ends_s.items() if ends_s <= now_s]:
                self._ends_s[attempt_id] = math.inf
                self.kill(attempt_id, begun=True)

    def _has_unready(self) -> bool:
        """Whether one waits behind another that runs, and nothing was made ready for it yet."""
        is_behind = bool(self._current and self._waiting)
        return is_behind and self._waiting[0].attempt_id != self._ahead

    async def _look_ahead(self, driver: LooksAhead) -> None:
        """While one runs, have the driver make ready for the next; once for each."""
        while True:
            self._lined_up = trio.Event()
            if not self._has_unready():
                await self._lined_up.wait()
                continue
            await trio.sleep(AHEAD_AFTER_S)
            if not self._has_unready():
                continue
            work = self._waiting[0]
            self._ahead = work.attempt_id
            with trio.CancelScope() as self._looking:
                try:
                    await driver.look_ahead(self._execution(work, self._scratch_root))
                except Exception:
                    # As in `_work`. It runs all the same.
                    log.exception("the driver %s fails to look ahead", self._under.needs.driver)

    async def _announce(self) -> None:
        """Tell of executions that take longer than a moment that they have started."""
        announced = 0
        while True:
            if not self._current or announced == self._begun:
                self._busy = trio.Event()
                await self._busy.wait()
            begun = self._begun
            await trio.sleep(SHORT_S)
            if self._current and self._begun == begun:
                announced = begun
                self.flush()
                self._emit(ExecutionStarted(self.lease_id, self._current))


@dataclass(slots=True)
class _Report:
    """Where a driver's output goes: to the peer, which sends it on. `usage` goes with the end."""

    run: LeaseRun
    attempt_id: str
    usage: Usage = UNMEASURED

    def output(self, stream: Stream, data: bytes) -> None:
        self.run.output(self.attempt_id, stream, data)

    def saved(self, blob: Blob, content: bytes | None = None) -> None:
        self.run.saved(self.attempt_id, blob, content)

    def used(self, usage: Usage) -> None:
        self.usage = usage


log = logging.getLogger(__name__)


class Around(Protocol):
    """What leases may be part of, such as a gang."""

    def place(self, lease_id: str) -> Place | None:
        """What is around the executions of the lease; None where it is not part of this."""

    def leave(self, lease_id: str) -> None:
        """The lease is being fenced."""

    async def forget(self, lease_id: str) -> None:
        """After `leave`: its tasks are dead."""


class LeaseRuns:
    """`do` runs a task of the node's own, and `feed` takes the reports. `private` keeps large
    results, until they are fetched or their lease ends, `around` is what leases may be part of."""

    def __init__(
        self,
        scratch_root: Path,
        private: PrivateExchange | None,
        do: Callable[..., None],
        feed: Callable[[PeerEvent], None],
        around: Sequence[Around],
    ) -> None:
        self.drivers: Mapping[str, Driver | LeaseDriver] = {}
        self._scratch_root = scratch_root
        self._private = private
        self._do = do
        self._feed = feed
        self._runs: dict[str, LeaseRun] = {}
        self._around = around

    def _place(self, lease_id: str) -> Place | None:
        places = (each.place(lease_id) for each in self._around)
        return next((place for place in places if place is not None), None)

    def perform(self, effect: RunEffect | Fence) -> None:
        lease_id = effect.lease_id
        run = self._runs.get(lease_id)
        match effect:
            case Execute():
                if run is None:
                    driver = self.drivers.get(effect.needs.driver)
                    place = partial(self._place, lease_id)
                    run = LeaseRun(effect, driver, self._scratch_root, self._feed, place)
                    self._runs[lease_id] = run
                    self._do(run.run)
                run.add(effect)
            case Kill(attempt_id=attempt_id, begun=begun, grace_s=grace_s):
                if run is not None:
                    run.kill(attempt_id, begun=begun, grace_s=grace_s)
            case Pause():
                if run is not None:
                    run.pause()
            case Continue():
                if run is not None:
                    run.go_on()
            case GoOnPrinting(attempt_id=attempt_id, more=more):
                if run is not None:
                    run.reader_answers(attempt_id, more=more)
            case FreeResults(attempt_ids=attempt_ids):
                if self._private is not None:
                    self._private.results.free(lease_id, attempt_ids)
            case Fence():
                self._do(self._fence, lease_id)
            case _:
                assert_never(effect)

    async def _fence(self, lease_id: str) -> None:
        for each in self._around:
            each.leave(lease_id)
        run = self._runs.get(lease_id)
        if run is not None:
            await run.stop()
            del self._runs[lease_id]
        for name, driver in self.drivers.items():
            if isinstance(driver, LeaseDriver):
                continue  # its `serve` has ended
            try:
                await driver.end_lease(lease_id)
            except Exception:
                # A driver that cannot tidy up must not keep the capacity for ever.
                log.exception("the driver %s failed to end lease %s", name, lease_id)
        if self._private is not None:
            self._private.results.lease_ended(lease_id)
        for each in self._around:
            await each.forget(lease_id)
        self._feed(Fenced(lease_id))
