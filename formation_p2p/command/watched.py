"""What a worker shows of its work: a line for each task, and one that lives on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from rich.live import Live
from rich.text import Text

from formation_p2p.api.config import NodeConfig
from formation_p2p.api.node import Node
from formation_p2p.assembly import PeerEffect, PeerEvent
from formation_p2p.command.tables import console
from formation_p2p.command.words import one_line, printable, put
from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.drivers.core.effects import Execute, ExecutionsEnded, ExecutionStarted, Work
from formation_p2p.leases.core.session import Fence
from formation_p2p.machine.clock import moment
from formation_p2p.machine.core.environment import packages_of
from formation_p2p.machine.names import named
from formation_p2p.observe.status_json import with_names
from formation_p2p.peer.core.events import Joined
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome
from formation_p2p.workload.core.process import ProcessSpec
from formation_p2p.workload.core.work import PythonCall

# Events that wait for a stopped terminal or an unread pipe; past it the oldest are dropped.
MAX_UNSHOWN: Final = 1000
# Events within this time are shown together: people do not read faster.
BREATH_S: Final = 0.1
# Tasks that end within one breath and have a line each; of more, only how many there were is told.
MAX_LINES: Final = 20

# How what did not end by itself has ended.
TAKEN_BACK: Final = Failed(FailureKind.CANCELLED, "its owner took it back, or its lease ended")


@dataclass(frozen=True, slots=True)
class WorkBegan:
    """`owner` submitted it. `what` is the program that it runs, or what the owner calls the
    function. `environment` names the packages that it has; empty for those of this machine."""

    attempt: str
    owner: PeerId
    what: str
    driver: str
    cpu_milli: int
    memory_bytes: int
    device_ids: tuple[str, ...]
    environment: str = ""


@dataclass(frozen=True, slots=True)
class WorkEnded:
    """`how` is `succeeded`, or a kind of failure (workload/core/outcome.py)."""

    attempt: str
    owner: PeerId
    what: str
    driver: str
    how: str
    message: str
    ran_ms: int
    environment: str = ""


WorkEvent = WorkBegan | WorkEnded


class Watch:
    """Counts, and hands each event over from the node's thread to the loop's."""

    def __init__(self) -> None:
        self.running = self.succeeded = self.failed = 0
        self._loop = asyncio.get_running_loop()
        self._events: deque[WorkEvent] = deque(maxlen=MAX_UNSHOWN)
        self._news = asyncio.Event()
        self._closed = False
        # The encoded context of the last call, and what it calls its function.
        self._context, self._function = b"", ""
        # Attempts that have not ended, by lease; and when those began that run.
        self._leases: dict[str, dict[str, WorkBegan]] = {}
        self._began_s: dict[tuple[str, str], float] = {}

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
        self._take_back(list(self._leases), moment())
        self._closed = True
        self._news.set()

    def observe(self, event: PeerEvent, effects: Sequence[PeerEffect], now: Moment) -> None:
        """On the node's thread."""
        match event:
            case ExecutionStarted(lease_id, attempt_id):
                self._begin(lease_id, attempt_id, now)
            case ExecutionsEnded(lease_id, ended):
                for each in ended:
                    if each.ran_us:  # else it was taken back before it began
                        self._begin(lease_id, each.attempt_id, now)
                    self._end(lease_id, each.attempt_id, each.outcome, each.ran_us / 1e6)
            case Joined():  # perhaps again, after a crash of the network stack
                self._take_back(list(self._leases), now)
            case _:
                pass
        for effect in effects:
            match effect:
                case Execute(lease_id, needs, device_ids, _, owner):
                    has = (needs.driver, needs.cpu_milli, needs.memory_bytes, device_ids)
                    packages = packages_of(needs.environment)
                    attempts = self._leases.setdefault(lease_id, {})
                    for x in effect.work:
                        what = self._what(needs.driver, x)
                        attempts[x.attempt_id] = WorkBegan(
                            x.attempt_id, owner, what, *has, packages
                        )
                case Fence(lease_id):
                    self._take_back([lease_id], now)
                case _:
                    pass

    def _what(self, driver: str, work: Work) -> str:
        if driver != PythonCall.driver:
            return _program(driver, work.payload)
        if work.shared is not self._context:  # calls come many at a time, of one function
            self._context, self._function = work.shared, _function(work.shared)
        return self._function

    def _begin(self, lease_id: str, attempt_id: str, now: Moment) -> None:
        began = self._leases.get(lease_id, {}).get(attempt_id)
        if began is not None and (lease_id, attempt_id) not in self._began_s:
            self._began_s[lease_id, attempt_id] = now.mono_s
            self.running += 1
            self._tell(began)

    def _end(self, lease_id: str, attempt_id: str, outcome: Outcome, ran_s: float) -> None:
        began = self._leases.get(lease_id, {}).pop(attempt_id, None)
        if began is None or self._began_s.pop((lease_id, attempt_id), None) is None:
            return
        how, message = "succeeded", ""
        if isinstance(outcome, Failed):
            taken_back = outcome.kind is FailureKind.CANCELLED
            how, message = outcome.kind.value, (TAKEN_BACK if taken_back else outcome).message
        of = (began.owner, began.what, began.driver)
        self.running -= 1
        self.succeeded += how == "succeeded"
        self.failed += how != "succeeded"
        ran_ms = round(ran_s * 1000)
        self._tell(WorkEnded(attempt_id, *of, how, message, ran_ms, began.environment))

    def _take_back(self, leases: Sequence[str], now: Moment) -> None:
        for lease_id in leases:
            for attempt_id in list(self._leases.get(lease_id, ())):
                ran_s = now.mono_s - self._began_s.get((lease_id, attempt_id), now.mono_s)
                self._end(lease_id, attempt_id, TAKEN_BACK, ran_s)
            self._leases.pop(lease_id, None)

    def _tell(self, event: WorkEvent) -> None:
        self._events.append(event)
        if len(self._events) == 1:  # else the reader has not come to the end yet
            self._loop.call_soon_threadsafe(self._news.set)


class WatchedNode(Node):
    """A node with a `watch` on the tasks that run on it."""

    def __init__(self, config: NodeConfig) -> None:
        self.watch = Watch()
        super().__init__(replace(config, observers=(self.watch.observe,)))


def show_as_json(events: Sequence[WorkEvent]) -> None:
    for event in events:
        what = "began" if isinstance(event, WorkBegan) else "ended"
        put(with_names({"event": what, **asdict(event)}))


class WorkLog:
    """For people."""

    def __init__(self) -> None:
        self._console = console()

    def show(self, events: Sequence[WorkEvent]) -> None:
        ended = [event for event in events if isinstance(event, WorkEnded)]
        now = time.strftime("%H:%M:%S")
        if len(ended) > MAX_LINES:
            failed = [event for event in ended if event.how != "succeeded"]
            self.line(f"{now}  {len(ended)} tasks, {len(failed)} without a result")
            ended = failed[:MAX_LINES]
        for event in ended:
            what = f"{event.driver}  {one_line(event.what)}" if event.what else event.driver
            if event.environment:
                what = f"{what}  in {event.environment}"
            owner = named(event.owner)
            self.line(f"{now}  {event.attempt}  {what}  for {owner}  {_in_words(event)}")

    def line(self, text: str) -> None:
        self._console.print(printable(text), soft_wrap=True)

    @contextlib.contextmanager
    def counting(self, watch: Watch) -> Iterator[None]:
        """Keep the counts in the last line, where there is a terminal to keep them on."""
        if not self._console.is_terminal:
            yield
            return

        def counts() -> Text:
            return Text(
                f"{watch.running} running, {watch.succeeded} done, {watch.failed} failed", "dim"
            )

        with Live(get_renderable=counts, console=self._console, transient=True):
            yield


def _program(driver: str, payload: bytes) -> str:
    """The first word of the command that a payload runs."""
    if driver != ProcessSpec.driver:
        return ""
    try:
        return ProcessSpec.decode(payload).argv[0]
    except InvalidInput:  # the driver refuses it
        return ""


def _function(shared: bytes) -> str:
    """What the caller calls the function. It is unpickled in its sandbox alone."""
    try:
        return CallContext.decode(shared).name
    except InvalidInput:  # the driver refuses it
        return ""


def _in_words(event: WorkEnded) -> str:
    took = f"{event.ran_ms / 1000:.1f} s"
    if event.how == "succeeded":
        return f"done in {took}"
    return one_line(f"{event.how} after {took}: {event.message}")
