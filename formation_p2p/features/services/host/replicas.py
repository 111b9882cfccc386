"""The replicas of services on this machine: started and stopped as the peer decides."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

import trio

from formation_p2p.assembly import PeerEvent
from formation_p2p.drivers.driver import Driver, LeaseDriver
from formation_p2p.features.services.core.events import (
    ReplicaEffect,
    ReplicaReported,
    ReplicaState,
    StartReplica,
    StopReplica,
)
from formation_p2p.features.services.core.supervision import Floor
from formation_p2p.features.services.host.replica_run import Files, Means, ReplicaRun
from formation_p2p.features.services.host.router import Router

log = logging.getLogger(__name__)

# Of the latest reports of each service: a screen of them.
MAX_HISTORY: Final = 32


@dataclass(frozen=True, slots=True)
class ReplicaNote:
    """What a replica was at a time, for people."""

    at_unix_s: float
    slot: int
    state: ReplicaState
    why: str


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica of this machine as it is now. `checks` say of each check whether it holds, and why
    not; None where nothing is known yet."""

    service: str
    version: int
    slot: int
    phase: str
    why: str
    since_s: float
    starts: int
    outstanding: int
    is_in_crash_loop: bool
    checks: Mapping[str, tuple[bool | None, str]]


class Replicas:
    """Of one node, on its trio thread. `root` is the folder of its services, `do` runs a task of
    the node's own, `feed` takes the reports, `router` leads to the services that they use, and
    `files` keeps what their programs are made of."""

    def __init__(
        self,
        drivers: Mapping[str, Driver | LeaseDriver],
        scratch_root: Path,
        root: Path,
        do: Callable[..., None],
        feed: Callable[[PeerEvent], None],
        router: Router | None = None,
        files: Files | None = None,
    ) -> None:
        self.root = root
        self._do = do
        self._feed = feed
        self._means = Means(drivers, scratch_root, root, Floor(), self._report, router, files)
        self._runs: dict[str, ReplicaRun] = {}  # of each service the one that serves
        self._fresh: dict[str, ReplicaRun] = {}  # and the one that is to replace it
        self._over: dict[ReplicaRun, trio.Event] = {}
        self._untold: deque[ReplicaReported] = deque()  # a few of each replica at most
        # As many as the network has services.
        self.history: dict[str, deque[ReplicaNote]] = {}

    # -- for the shell ----------------------------------------------------------------------------

    def perform(self, effect: ReplicaEffect) -> None:
        match effect:
            case StartReplica():
                self._start(effect)
            case StopReplica(service, slot, epoch, drain_s):
                run = self._found(service, slot, epoch)
                if run is None:
                    self._report(ReplicaReported(service, slot, epoch, ReplicaState.STOPPED))
                else:
                    if run is self._fresh.get(service):
                        del self._fresh[service]
                    elif run is self._runs.get(service):
                        self._replaced(service)
                    run.stop(drain_s)
            case _:
                assert_never(effect)

    # -- for those who call services --------------------------------------------------------------

    def here(self, service: str) -> ReplicaRun | None:
        return self._runs.get(service)

    # -- for people -------------------------------------------------------------------------------

    def status(self) -> tuple[ReplicaStatus, ...]:
        now_s = trio.current_time()
        return tuple(
            ReplicaStatus(
                name,
                run.spec.version,
                run.start.slot,
                run.supervision.phase.value,
                run.supervision.why,
                now_s - run.supervision.since_s,
                run.supervision.starts,
                run.outstanding,
                run.supervision.is_in_crash_loop,
                {
                    probe.value: (each.is_well, each.why)
                    for probe, each in run.supervision.health.items()
                },
            )
            for name, run in sorted(
                [*self._runs.items(), *self._fresh.items()], key=lambda each: each[0]
            )
        )

    # -- how ------------------------------------------------------------------------------------

    def _start(self, effect: StartReplica) -> None:
        name = effect.signed.spec.name
        before = self._runs.get(name)
        if effect.beside and before is not None:
            run = self._fresh[name] = ReplicaRun(effect, self._means)
            self._over[run] = trio.Event()
            self._do(self._run, run, None)
            return
        if before is not None:
            if (before.start.slot, before.start.epoch) == (effect.slot, effect.epoch):
                return
            before.stop(0)
        run = self._runs[name] = ReplicaRun(effect, self._means)
        self._over[run] = trio.Event()
        self._do(self._run, run, before)

    def _found(self, service: str, slot: int, epoch: int) -> ReplicaRun | None:
        for run in self._over:
            at = run.spec.name, run.start.slot, run.start.epoch
            if at == (service, slot, epoch):
                return run
        return None

    def _replaced(self, name: str) -> None:
        """The one that is to replace it serves from now on, if there is one."""
        if name in self._fresh:
            self._runs[name] = self._fresh.pop(name)

    async def _run(self, run: ReplicaRun, before: ReplicaRun | None) -> None:
        name = run.spec.name
        if before is not None and before in self._over:
            await self._over[before].wait()  # a volume has one program at a time
        try:
            await run.run()
        except Exception:
            log.exception("a replica of %s failed; please report this", name)
            start = run.start
            why = "this node failed on it; its log says where"
            self._report(
                ReplicaReported(name, start.slot, start.epoch, ReplicaState.FAILED, 0, why)
            )
        finally:
            if self._runs.get(name) is run:
                del self._runs[name]
                self._replaced(name)
            elif self._fresh.get(name) is run:
                del self._fresh[name]
            self._over.pop(run).set()

    def _report(self, report: ReplicaReported) -> None:
        notes = self.history.setdefault(report.service, deque(maxlen=MAX_HISTORY))
        last = notes[-1] if notes else None
        if last is None or (last.state, last.why) != (report.state, report.why):
            notes.append(ReplicaNote(time.time(), report.slot, report.state, report.why))
        # Not at once: the peer may be deciding what led to this. And in order, as tasks are not.
        self._untold.append(report)
        if len(self._untold) == 1:
            self._do(self._tell)

    async def _tell(self) -> None:
        while self._untold:
            self._feed(self._untold[0])
            self._untold.popleft()
