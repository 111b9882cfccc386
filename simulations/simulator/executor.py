"""What a simulated worker's shell does for its leases: attempts run, end, and are killed.

It keeps what `drivers/core/effects.py` promises: those of one lease run in order, those of
different leases side by side, and each has one `Ended` unless its lease is fenced first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from formation_p2p.drivers.core.effects import Execute, ExecutionsEnded, ExecutionStarted, Work
from formation_p2p.leases.core.session import Fenced
from formation_p2p.workload.core.outcome import Ended, Failed, FailureKind, Outcome
from formation_p2p.workload.core.parcel import (
    size_at_worker,
)

if TYPE_CHECKING:
    from formation_p2p.assembly import PeerEvent
    from simulations.simulator.world import World

# An attempt that ends sooner is never said to have begun.
MOMENT_S: Final = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """An attempt that runs, and what its lease has of the machine."""

    under: Execute
    work: Work  # one of those that came with it

    @property
    def key(self) -> tuple[str, str]:
        return (self.under.lease_id, self.work.attempt_id)


Run = Callable[[Running], tuple[float, Outcome]]
"""What an attempt does in this world: how long it takes in seconds, and how it ends."""


@dataclass(slots=True)
class _Lane:
    """The attempts of one lease. `ended` have not been told yet."""

    queue: deque[Running] = field(default_factory=deque)
    current: Running | None = None
    began_s: float = 0.0
    paused: bool = False
    ended: list[Ended] = field(default_factory=list)


class Executor:
    """Of one incarnation of a node: `emit` hands its events to the peer of that incarnation."""

    def __init__(self, world: World, emit: Callable[[PeerEvent], None]) -> None:
        self.running: dict[tuple[str, str], Running] = {}
        # The large results whose content is here, by lease and attempt.
        self.kept: set[tuple[str, str]] = set()
        self._world = world
        self._emit = emit
        self._lanes: dict[str, _Lane] = {}
        # While the machine sleeps, what was to happen waits; `_slept_s` is how long it has slept.
        self._asleep_s: float | None = None
        self._slept_s = 0.0
        self._overslept: list[tuple[float, float, Callable[..., None], tuple[Any, ...]]] = []

    def execute(self, execute: Execute) -> None:
        lane = self._lanes.setdefault(execute.lease_id, _Lane())
        lane.queue += [Running(execute, work) for work in execute.work]
        self._go_on(execute.lease_id, lane)

    def kill(self, lease_id: str, attempt_id: str, begun: bool, grace_s: float = 0.0) -> None:
        lane = self._lanes.get(lease_id)
        if lane is None:
            return
        current = lane.current
        if grace_s and current is not None and current.work.attempt_id == attempt_id:
            ends_s = min(grace_s, self._world.noticed_s(current))
            self._later(ends_s, self._move, lane, current)
            return
        if begun and current is not None and current.work.attempt_id == attempt_id:
            killed = Failed(FailureKind.CANCELLED, "it was killed")
            self._end(lease_id, lane, killed, self._world.now_s - lane.began_s)
            self._go_on(lease_id, lane)
            return
        for waiting in lane.queue:
            if waiting.work.attempt_id == attempt_id:
                lane.queue.remove(waiting)
                taken_back = Failed(FailureKind.CANCELLED, "it had not begun")
                self._ended(lease_id, lane, Ended(attempt_id, taken_back, 0))
                return

    def pause(self, lease_id: str) -> None:
        self._lanes.setdefault(lease_id, _Lane()).paused = True

    def go_on(self, lease_id: str) -> None:
        lane = self._lanes.get(lease_id)
        if lane is not None:
            lane.paused = False
            self._go_on(lease_id, lane)

    def free(self, lease_id: str, attempt_ids: tuple[str, ...]) -> None:
        self.kept -= {(lease_id, attempt_id) for attempt_id in attempt_ids}

    def fence(self, lease_id: str, takes_s: float = 0.0) -> None:
        """Nothing more of the lease begins, or is told; what runs is ended, which takes a while,
        and then `Fenced` is told."""
        self._lanes.pop(lease_id, None)
        if takes_s == 0:
            self._end_all(lease_id)
        self._later(takes_s, self._fenced, lease_id)

    def suspend(self) -> None:
        self._asleep_s = self._world.now_s

    def resume(self) -> None:
        """All goes on where it stopped."""
        assert self._asleep_s is not None
        self._slept_s += self._world.now_s - self._asleep_s
        self._asleep_s = None
        overslept, self._overslept = self._overslept, []
        for each in overslept:
            self._fire(*each)

    def stop(self) -> None:
        """The node is dead."""
        self._emit = lambda event: None
        self._lanes.clear()
        self.running.clear()
        self.kept.clear()

    def _later(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        due_s = self._world.now_s + delay_s
        self._world.at(due_s, self._fire, due_s, self._slept_s, action, arguments)

    def _fire(
        self, due_s: float, slept_s: float, action: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        if self._asleep_s is not None:
            self._overslept.append((due_s, slept_s, action, arguments))
        elif slept_s < self._slept_s:
            due_s += self._slept_s - slept_s
            self._world.at(due_s, self._fire, due_s, self._slept_s, action, arguments)
        else:
            action(*arguments)

    def _fenced(self, lease_id: str) -> None:
        self._end_all(lease_id)
        self._emit(Fenced(lease_id))

    def _end_all(self, lease_id: str) -> None:
        for key in [key for key in self.running if key[0] == lease_id]:
            del self.running[key]
        self.kept = {key for key in self.kept if key[0] != lease_id}

    def _go_on(self, lease_id: str, lane: _Lane) -> None:
        while lane.current is None and lane.queue and not lane.paused:
            running = lane.queue.popleft()
            lane.current, lane.began_s = running, self._world.now_s
            self.running[running.key] = running
            duration_s, outcome = self._world.run(running)
            if running.work.timeout_s is not None and duration_s > running.work.timeout_s:
                duration_s = running.work.timeout_s
                outcome = Failed(FailureKind.TIMEOUT, f"it ran past its {duration_s:g} s")
            if duration_s == 0:
                self._end(lease_id, lane, outcome, 0)
                continue
            if duration_s > MOMENT_S:
                self._later(MOMENT_S, self._started, running)
            self._later(duration_s, self._run_out, lane, running, outcome, duration_s)

    def _started(self, running: Running) -> None:
        if self.running.get(running.key) is running:
            self._emit(ExecutionStarted(*running.key))

    def _run_out(self, lane: _Lane, running: Running, outcome: Outcome, ran_s: float) -> None:
        """Of one that is being fenced, nothing but its end."""
        if self.running.get(running.key) is running:
            self._end(running.under.lease_id, lane, outcome, ran_s)
            if self._lanes.get(running.under.lease_id) is lane:
                self._go_on(running.under.lease_id, lane)

    def _move(self, lane: _Lane, running: Running) -> None:
        """It was given notice, and has had its time."""
        ran_s = self._world.now_s - lane.began_s
        self._run_out(lane, running, Failed(FailureKind.MOVED, "it was given notice"), ran_s)

    def _end(self, lease_id: str, lane: _Lane, outcome: Outcome, ran_s: float) -> None:
        assert lane.current is not None
        running, lane.current = lane.current, None
        del self.running[running.key]
        if size_at_worker(running.under.needs.driver, outcome):
            self.kept.add(running.key)
        ended = Ended(running.work.attempt_id, outcome, round(ran_s * 1_000_000))
        self._ended(lease_id, lane, ended)

    def _ended(self, lease_id: str, lane: _Lane, ended: Ended) -> None:
        lane.ended.append(ended)
        if len(lane.ended) == 1:
            self._later(0, self._report, lease_id, lane)

    def _report(self, lease_id: str, lane: _Lane) -> None:
        """Of one whose lease was fenced meanwhile, nothing."""
        if self._lanes.get(lease_id) is lane:
            ended, lane.ended = tuple(lane.ended), []
            self._emit(ExecutionsEnded(lease_id, ended))
