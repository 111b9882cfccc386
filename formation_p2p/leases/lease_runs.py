"""What runs under the leases of this machine: an effect of the peer goes to the run it is for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from formation_p2p.assembly import PeerEvent
from formation_p2p.drivers.core.effects import (
    Continue,
    Execute,
    FreeResults,
    GoOnPrinting,
    Kill,
    Pause,
    RunEffect,
)
from formation_p2p.drivers.driver import Driver, LeaseDriver
from formation_p2p.features.gangs.core.events import JoinGang, UsageMeasured
from formation_p2p.features.gangs.host.leases import LeaseGangs
from formation_p2p.features.gangs.host.usage import UsageReports
from formation_p2p.leases.core.gang_usage import LeaseUsage
from formation_p2p.leases.core.session import Fence, Fenced
from formation_p2p.leases.lease_run import LeaseRun

if TYPE_CHECKING:
    from formation_p2p.content.private import PrivateExchange
    from formation_p2p.features.gangs.host.gangs import NodeGangs

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostedMember:
    """`used` is what its tasks used at the last look; None before the first."""

    joined: JoinGang
    since_unix_s: float
    used: LeaseUsage | None


class LeaseRuns:
    """`do` runs a task of the node's own, and `feed` takes the reports. `private` keeps large
    results, until they are fetched or their lease ends, `gangs` is what the node has of
    gangs."""

    def __init__(
        self,
        scratch_root: Path,
        private: PrivateExchange | None,
        do: Callable[..., None],
        feed: Callable[[PeerEvent], None],
        gangs: NodeGangs,
    ) -> None:
        self.drivers: Mapping[str, Driver | LeaseDriver] = {}
        self._scratch_root = scratch_root
        self._private = private
        self._do = do
        self._feed = feed
        self._runs: dict[str, LeaseRun] = {}
        self.gangs = LeaseGangs(gangs, scratch_root, do)
        self._reports = UsageReports(
            self.gangs.joined, gangs.tunnels.seat, lambda told: feed(UsageMeasured(told))
        )

    def hosted(self) -> Iterator[HostedMember]:
        """The members of gangs that this machine is."""
        for joined in self.gangs.joined():
            lease_id = joined.lease_id
            since_unix_s = self.gangs.since_unix_s(lease_id)
            yield HostedMember(joined, since_unix_s, self._reports.last.get(lease_id))

    def perform(self, effect: RunEffect | Fence | JoinGang) -> None:
        lease_id = effect.lease_id
        run = self._runs.get(lease_id)
        match effect:
            case Execute():
                if run is None:
                    driver = self.drivers.get(effect.needs.driver)
                    place = partial(self.gangs.place, lease_id)
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
            case JoinGang():
                self.gangs.join(effect)
                self._reports.begin(self._do)
            case Fence():
                self._do(self._fence, lease_id)
            case _:
                assert_never(effect)

    async def _fence(self, lease_id: str) -> None:
        self.gangs.leave(lease_id)
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
        await self.gangs.forget(lease_id)
        self._feed(Fenced(lease_id))
