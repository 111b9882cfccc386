"""Gangs, as a part of a node: its streams, stores and networks, and the leases here that are
members of gangs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from formation_p2p.features.gangs.core.events import (
    EmitGangEvent,
    JoinGang,
    OwnRoster,
    UsageMeasured,
)
from formation_p2p.features.gangs.core.usage import LeaseUsage
from formation_p2p.features.gangs.host.gangs import NodeGangs
from formation_p2p.features.gangs.host.leases import LeaseGangs
from formation_p2p.features.gangs.host.tunnels import Tunnels
from formation_p2p.features.gangs.host.usage import UsageReports
from formation_p2p.net.logged import logged
from formation_p2p.peer.node_part import Means, NodePart, performs


@dataclass(frozen=True, slots=True)
class HostedMember:
    """`used` is what its tasks used at the last look; None before the first."""

    joined: JoinGang
    since_unix_s: float
    used: LeaseUsage | None


class HostedGangs(NodeGangs):
    """Of one node."""

    def __init__(self, means: Means) -> None:
        def spawn(task: Callable[[], Awaitable[None]]) -> None:
            means.do(logged, task)  # which must not raise

        super().__init__(Tunnels(means.stack, means.config.identity.peer_id, spawn), spawn)
        self._means = means
        self._leases = LeaseGangs(self, means.config.scratch_root, means.do)
        self._reports = UsageReports(
            self._leases.joined, self.tunnels.seat, lambda told: means.feed(UsageMeasured(told))
        )

    @property
    def part(self) -> NodePart:
        return NodePart(
            performs(self.own, OwnRoster)
            | performs(self._told, EmitGangEvent)
            | performs(self._join, JoinGang),
            self._leases,
        )

    def hosted(self) -> Iterator[HostedMember]:
        """The members of gangs that this machine is."""
        for joined in self._leases.joined():
            lease_id = joined.lease_id
            since_unix_s = self._leases.since_unix_s(lease_id)
            yield HostedMember(joined, since_unix_s, self._reports.last.get(lease_id))

    def _told(self, effect: EmitGangEvent) -> None:
        self.own(effect)
        self._means.tell(effect)

    def _join(self, effect: JoinGang) -> None:
        self._leases.join(effect)
        self._reports.begin(self._means.do)
