"""Who gives way to whom where a machine has no room for what is asked.

A lease under which nothing runs is kept for what may come. It gives way to whatever is asked for at
its priority or above, once it has been idle for a moment: then it ends at once. All others keep
their place against equals, and give way to higher priorities where they would be renewed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

from formation_p2p.core import refusals
from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.negotiation.lease import Lease, LeaseState
from formation_p2p.core.negotiation.parameters import LeaseParameters
from formation_p2p.core.negotiation.preemption import Wants, to_displace
from formation_p2p.core.negotiation.standing import Standing
from formation_p2p.core.resources.fits import Ledger
from formation_p2p.core.resources.requirements import Requirements


@dataclass(frozen=True, slots=True)
class Asked:
    owner: PeerId
    invitation: str
    needs: Requirements
    priority: int


class Precedence:
    """`leases` are those of the lessor, by id. `is_idle` says whether nothing runs under one, and
    no result of it waits."""

    def __init__(
        self,
        leases: Mapping[str, Lease],
        ledger: Ledger,
        standing: Standing,
        is_idle: Callable[[str], bool],
        parameters: LeaseParameters,
    ) -> None:
        self._leases = leases
        self._ledger = ledger
        self._standing = standing
        self._is_idle = is_idle
        self._parameters = parameters
        self.wants = Wants(parameters)

    def later(
        self, asked: Asked, lacking: refusals.Infeasible, now: Moment
    ) -> tuple[refusals.GivingWay | refusals.Infeasible, tuple[Lease, ...]]:
        """What is lacking may come free for these needs: then it is kept for them, for a while; or
        what is offered to others may. And the idle leases that end for them now."""
        if self._standing.is_doubtful(asked.owner, asked.invitation, now):
            self._forget(asked)
            return self._unless_offers_lapse(asked, lacking, now), ()
        idle = self._idle(asked)
        if idle:
            wait_s = max(x.used_s for x in idle) + self._parameters.keep_idle_s - now.mono_s
            if wait_s > 0:
                return _giving_way(lacking, wait_s), ()
            if self._note(asked, idle, now):
                return _giving_way(lacking, self._parameters.fencing_s), idle
        lower = [x for x in self._leases.values() if x.request.priority < asked.priority]
        lower = [x for x in lower if x.state is not LeaseState.ENDING]
        # An offer goes before a lease, then the one that is up for renewal first.
        lower.sort(key=lambda x: (x.request.priority, x.state is LeaseState.LEASED, x.expires_s))
        displaced = self._to_displace(asked.needs, lower)
        if displaced is None or not self._note(asked, displaced, now):
            self._forget(asked)
            return self._unless_offers_lapse(asked, lacking, now), ()
        wait_s = max((self._gives_way_s(x) - now.mono_s for x in displaced), default=0.0)
        return _giving_way(lacking, max(wait_s, 0.0) + self._parameters.fencing_s), ()

    def hindered(self, priority: int, now: Moment) -> int | None:
        """The priority of something more urgent that would not find room any more."""
        for want in self.wants.above(priority, now):
            back = {*self._ending(), *want.displaced}
            free = reduce(self._ledger.with_back, back, self._ledger.free)
            if self._ledger.lacks(want.needs, free) is not None:
                return want.priority
        return None

    def _idle(self, asked: Asked) -> tuple[Lease, ...]:
        """Those that make room together, the longest idle first; none where they do not."""
        equal = (x for x in self._leases.values() if x.request.priority <= asked.priority)
        # A gang's member waits for the others while nothing runs there.
        leased = (x for x in equal if x.state is LeaseState.LEASED and not x.request.ticket)
        idle = sorted((x for x in leased if self._is_idle(x.lease_id)), key=lambda x: x.used_s)
        return self._to_displace(asked.needs, idle) or ()

    def _unless_offers_lapse(
        self, asked: Asked, lacking: refusals.Infeasible, now: Moment
    ) -> refusals.GivingWay | refusals.Infeasible:
        """An open offer may lapse without a commit: then there is room soon."""
        offers = [x for x in self._leases.values() if x.state is LeaseState.OFFERED]
        lapsing = self._to_displace(asked.needs, sorted(offers, key=lambda x: x.expires_s))
        if lapsing is None:
            return lacking
        ends = (x.expires_s - now.mono_s for x in lapsing)
        return _giving_way(
            lacking, max(*ends, self._parameters.fencing_s if self._ending() else 0.0, 0.0)
        )

    def _to_displace(
        self, needs: Requirements, candidates: Iterable[Lease]
    ) -> tuple[Lease, ...] | None:
        ids = [x.lease_id for x in candidates]
        displaced = to_displace(needs, self._ledger, self._ending(), ids)
        return None if displaced is None else tuple(self._leases[x] for x in displaced)

    def _note(self, asked: Asked, displaced: Iterable[Lease], now: Moment) -> bool:
        ids = (x.lease_id for x in displaced)
        return self.wants.note(asked.owner, asked.invitation, asked.needs, asked.priority, ids, now)

    def _forget(self, asked: Asked) -> None:
        self.wants.forget(asked.owner, asked.needs, asked.priority)

    def _ending(self) -> list[str]:
        return [x.lease_id for x in self._leases.values() if x.state is LeaseState.ENDING]

    def _gives_way_s(self, lease: Lease) -> float:
        """When it is committed or renewed, or runs out."""
        parameters = self._parameters
        left_s = (1 - parameters.renew_at) * parameters.lease_s
        return lease.expires_s - (left_s if lease.state is LeaseState.LEASED else 0.0)


def _giving_way(lacking: refusals.Infeasible, wait_s: float) -> refusals.GivingWay:
    return refusals.GivingWay(lacking.resource, round(wait_s * 1000))
