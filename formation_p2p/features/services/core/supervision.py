"""The life of one replica on its machine: started, checked, started again, drained, stopped.

The shell runs the program and asks the checks; this decides when. Readiness and liveness are apart:
a replica that is not ready gets no requests and runs on, one that is not alive is started again.
What ends by itself is started again after a pause that doubles each time. One that ends five times
in ten minutes is in a crash loop: it is given up, for another machine may do better. A pinned
service has no other machine, so its replica is tried on and on.

    supervision = Supervision(spec, floor, now_s)
    supervision.tick(now_s)          # [Launch()]
    supervision.started(now_s)       # its program runs
    supervision.answered(Probe.READINESS, "", now_s)   # [Told(READY)]
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from formation_p2p.features.services.core.spec import Check, ServiceSpec


class Health:
    """Of one check. `is_well` is None until the answers have said so once.

    One question is under way at a time; the next one is due an interval after the last was asked.
    """

    def __init__(self, check: Check, now_s: float) -> None:
        self.check = check
        self.is_well: bool | None = None
        self.why = ""
        self._row = 0  # of equal answers: so many good ones, or minus so many bad ones
        self._due_s = now_s
        self._is_asked = False

    @property
    def due_s(self) -> float:
        return math.inf if self._is_asked else self._due_s

    def asked(self, now_s: float) -> None:
        self._is_asked = True
        self._due_s = now_s + self.check.interval_ms / 1000

    def answered(self, why_not: str) -> None:
        """`why_not` is empty where the check holds."""
        self._is_asked = False
        if why_not:
            self.why = why_not
            self._row = min(self._row, 0) - 1
            if self._row <= -self.check.failures:
                self.is_well = False
        else:
            self.why = ""
            self._row = max(self._row, 0) + 1
            if self._row >= self.check.successes:
                self.is_well = True


FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 300.0
# A replica that ends so often within that time is in a crash loop. One that runs for as long has
# recovered, and pauses are short again.
CRASHES: Final = 5
CRASH_WINDOW_S: Final = 600.0
# Callers hear of a replica that drains within this time (they read claims each 5 s), and may send
# it requests until then.
ANNOUNCE_S: Final = 6.0
# Between two restarts of one machine for failed liveness: where all its replicas stall at once the
# machine is slow, and starting them all again would make it slower.
FLOOR_S: Final = 30.0


class ReplicaPhase(StrEnum):
    STARTING = "starting"  # its program is being started, or is not ready yet
    READY = "ready"
    UNREADY = "unready"  # it runs, and takes no requests
    WAITING = "waiting"  # its program has ended, and is started again after a pause
    DRAINING = "draining"  # it is to end, and serves what is under way
    ENDING = "ending"  # its program is being ended, to be started again
    STOPPING = "stopping"  # its program is being ended for good
    STOPPED = "stopped"
    FAILED = "failed"


class On(StrEnum):
    """What has a replica change its phase."""

    READY = "readiness holds"
    UNREADY = "readiness fails"
    DEAD = "liveness fails"
    LATE = "grace is over"
    ENDED = "program ended"
    GIVEN_UP = "crash loop"
    PAUSED = "pause is over"
    STOP = "is to stop"
    DRAINED = "is drained"


TRANSITIONS: Final[dict[ReplicaPhase, dict[On, ReplicaPhase]]] = {
    ReplicaPhase.STARTING: {
        On.READY: ReplicaPhase.READY,
        On.LATE: ReplicaPhase.ENDING,
        On.DEAD: ReplicaPhase.ENDING,
        On.ENDED: ReplicaPhase.WAITING,
        On.GIVEN_UP: ReplicaPhase.FAILED,
        On.STOP: ReplicaPhase.STOPPING,
    },
    ReplicaPhase.READY: {
        On.UNREADY: ReplicaPhase.UNREADY,
        On.DEAD: ReplicaPhase.ENDING,
        On.ENDED: ReplicaPhase.WAITING,
        On.GIVEN_UP: ReplicaPhase.FAILED,
        On.STOP: ReplicaPhase.DRAINING,
    },
    ReplicaPhase.UNREADY: {
        On.READY: ReplicaPhase.READY,
        On.DEAD: ReplicaPhase.ENDING,
        On.ENDED: ReplicaPhase.WAITING,
        On.GIVEN_UP: ReplicaPhase.FAILED,
        On.STOP: ReplicaPhase.DRAINING,
    },
    ReplicaPhase.WAITING: {
        On.PAUSED: ReplicaPhase.STARTING,
        On.STOP: ReplicaPhase.STOPPED,
    },
    ReplicaPhase.DRAINING: {
        On.DRAINED: ReplicaPhase.STOPPING,
        On.ENDED: ReplicaPhase.STOPPED,
    },
    ReplicaPhase.ENDING: {
        On.ENDED: ReplicaPhase.WAITING,
        On.GIVEN_UP: ReplicaPhase.FAILED,
        On.STOP: ReplicaPhase.STOPPING,
    },
    ReplicaPhase.STOPPING: {On.ENDED: ReplicaPhase.STOPPED},
    ReplicaPhase.STOPPED: {},
    ReplicaPhase.FAILED: {},
}
OVER: Final = frozenset({ReplicaPhase.STOPPED, ReplicaPhase.FAILED})
# In which its program runs, as far as this is told.
RUNNING: Final = frozenset(
    {ReplicaPhase.STARTING, ReplicaPhase.READY, ReplicaPhase.UNREADY, ReplicaPhase.DRAINING}
)


class Probe(StrEnum):
    READINESS = "readiness"
    LIVENESS = "liveness"


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the program; `started` follows, and `ended` once it is dead."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask this check; `answered` follows."""

    probe: Probe


@dataclass(frozen=True, slots=True)
class End:
    """Have the program end; `ended` follows."""


@dataclass(frozen=True, slots=True)
class Told:
    """The replica is in this phase now."""

    phase: ReplicaPhase
    why: str = ""


Order = Launch | Ask | End | Told


class Floor:
    """How often replicas of one machine may be started again for failed liveness."""

    def __init__(self) -> None:
        self._next_s = -math.inf

    def take(self, now_s: float) -> bool:
        if now_s < self._next_s:
            return False
        self._next_s = now_s + FLOOR_S
        return True


class Supervision:
    """`floor` is shared by the replicas of a machine. `starts` counts the starts, `endings` are the
    latest ones, each with its time and reason."""

    def __init__(self, spec: ServiceSpec, floor: Floor, now_s: float) -> None:
        self._spec = spec
        self._floor = floor
        self.phase = ReplicaPhase.WAITING
        self.why = ""
        self.since_s = now_s
        self.starts = 0
        self.endings: deque[tuple[float, str]] = deque(maxlen=CRASHES)
        self.health: dict[Probe, Health] = {}
        self._row = 0  # of runs that were short
        self._due_s = now_s  # of what its phase waits for
        self._drained_s = math.inf  # before which no drain is over
        self._started_s = now_s
        self._outstanding = 0

    @property
    def is_over(self) -> bool:
        return self.phase in OVER

    @property
    def is_in_crash_loop(self) -> bool:
        """Whether its endings are as many, and as close, as make one."""
        last = self.endings
        return len(last) == CRASHES and last[-1][0] - last[0][0] <= CRASH_WINDOW_S

    @property
    def next_timeout_s(self) -> float:
        asks = (each.due_s for each in self.health.values()) if self._asks else ()
        return min(self._due_s, *asks, math.inf)

    # -- what the shell tells -------------------------------------------------------------------

    def started(self, now_s: float) -> list[Order]:
        """Its program runs; its environment, which may take long to build, is there."""
        if self.phase is not ReplicaPhase.STARTING:
            return []
        self._due_s = now_s + self._spec.start_grace_s
        self._started_s = now_s
        for probe, check in (
            (Probe.READINESS, self._spec.readiness),
            (Probe.LIVENESS, self._spec.liveness),
        ):
            if check is not None:
                self.health[probe] = Health(check, now_s)
        if Probe.READINESS not in self.health:
            return self._on(On.READY, "", now_s)
        return self.tick(now_s)

    def answered(self, probe: Probe, why_not: str, now_s: float) -> list[Order]:
        """`why_not` is empty where the check holds. An answer of a program that has ended since
        counts for nothing."""
        health = self.health.get(probe)
        if health is None or not self._asks:
            return []
        health.answered(why_not)
        if probe is Probe.READINESS:
            return self._by_readiness(health, now_s)
        grace_over = now_s >= self._started_s + self._spec.start_grace_s
        failed = health.is_well is False and (grace_over or self.phase is not ReplicaPhase.STARTING)
        if failed and self.phase is not ReplicaPhase.DRAINING and self._floor.take(now_s):
            return self._end(On.DEAD, f"its liveness check fails: {health.why}", now_s)
        return []

    def ended(self, why: str, now_s: float, *, for_good: bool = False) -> list[Order]:
        """Its program is dead. `for_good` where this machine cannot run it."""
        self.health = {}
        if self.phase in (ReplicaPhase.STOPPING, ReplicaPhase.DRAINING):
            return self._on(On.ENDED, self.why, now_s)
        if self.phase is ReplicaPhase.ENDING:
            why = self.why  # which says more than that it was killed
        self._row = 1 if now_s - self._started_s >= CRASH_WINDOW_S else self._row + 1
        self.endings.append((now_s, why))
        if self._spec.pinned is None and (for_good or self.is_in_crash_loop):
            loop = "" if for_good else f"{CRASHES} times in {CRASH_WINDOW_S / 60:.0f} minutes: "
            return self._on(On.GIVEN_UP, f"{loop}{why}", now_s)
        pause_s = min(FIRST_PAUSE_S * 2 ** min(self._row - 1, 30), LONGEST_PAUSE_S)
        told = self._on(On.ENDED, why, now_s)
        self._due_s = now_s + (LONGEST_PAUSE_S if for_good else pause_s)
        return told

    def stop(self, drain_s: float, now_s: float) -> list[Order]:
        """It is to end, after what is under way, for which it has `drain_s`."""
        if self.phase is ReplicaPhase.DRAINING:
            self._due_s = min(self._due_s, now_s + drain_s)
            return self.tick(now_s)
        becomes = TRANSITIONS[self.phase].get(On.STOP)
        if becomes is None:
            return []
        was_ending = self.phase is ReplicaPhase.ENDING
        told = self._on(On.STOP, "", now_s)
        if becomes is ReplicaPhase.DRAINING:
            self._due_s = now_s + drain_s
            self._drained_s = now_s + min(ANNOUNCE_S, drain_s)
            return [*told, *self.tick(now_s)]
        if becomes is ReplicaPhase.STOPPING and not was_ending:
            told.append(End())
        return told

    def has_outstanding(self, count: int, now_s: float) -> list[Order]:
        """So many requests are under way."""
        self._outstanding = count
        return self.tick(now_s)

    def tick(self, now_s: float) -> list[Order]:
        orders: list[Order] = []
        if self._asks:
            for probe, health in self.health.items():
                if now_s >= health.due_s:
                    health.asked(now_s)
                    orders.append(Ask(probe))
        if self.phase is ReplicaPhase.DRAINING and self._outstanding == 0:
            self._due_s = min(self._due_s, max(self._drained_s, now_s))
        if now_s < self._due_s:
            return orders
        if self.phase is ReplicaPhase.WAITING:
            self.starts += 1
            self._started_s = now_s
            return [*orders, *self._on(On.PAUSED, self.why, now_s), Launch()]
        if self.phase is ReplicaPhase.DRAINING:
            return [*orders, *self._on(On.DRAINED, "", now_s), End()]
        health = self.health[Probe.READINESS]
        said = f": {health.why}" if health.why else ""
        why = f"it is not ready after {self._spec.start_grace_s} s{said}"
        return [*orders, *self._end(On.LATE, why, now_s)]

    # -- what it decides --------------------------------------------------------------------------

    @property
    def _asks(self) -> bool:
        return self.phase in RUNNING

    def _by_readiness(self, health: Health, now_s: float) -> list[Order]:
        is_ready = self.phase is ReplicaPhase.READY
        if health.is_well and self.phase in (ReplicaPhase.STARTING, ReplicaPhase.UNREADY):
            return self._on(On.READY, "", now_s)
        if health.is_well is False and is_ready:
            why = f"its readiness check fails: {health.why}"
            return self._on(On.UNREADY, why, now_s)
        return []

    def _end(self, event: On, why: str, now_s: float) -> list[Order]:
        return [*self._on(event, why, now_s), End()]

    def _on(self, event: On, why: str, now_s: float) -> list[Order]:
        self.phase = TRANSITIONS[self.phase][event]
        self.why, self.since_s, self._due_s = why, now_s, math.inf
        return [Told(self.phase, why)]
