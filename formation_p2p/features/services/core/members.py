"""Claims for workers that speak HTTP only: the gateway that they registered with signs them.

They live as long as the gateway says that there are such workers, which it does while their
heartbeats come. Callers elsewhere reach them through the gateway's node.
"""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.effects import Moment
from formation_p2p.features.services.core.claim import (
    CLAIM_TTL_S,
    MEMBERS_SLOT,
    Claim,
    ClaimState,
    seal_claim,
)
from formation_p2p.features.services.core.events import MembersServe
from formation_p2p.features.services.core.holding import Holding
from formation_p2p.features.services.core.means import Means, ignored
from formation_p2p.features.services.core.spec import MAX_REQUESTS, MAX_SERVICES


@dataclass(slots=True)
class _Served:
    """What is said of one service, again at `due_s`."""

    members: int
    outstanding: int
    due_s: float
    sequence: int = 0


class Members:
    """Of one node. A service of which it has a replica of its own is claimed for that alone: one
    author has one claim of a service."""

    def __init__(self, means: Means, holding: Holding) -> None:
        self._means = means
        self._holding = holding
        self._served: dict[str, _Served] = {}

    def changed(self, event: MembersServe, now: Moment) -> None:
        served = self._served.get(event.service)
        if served is None:
            if not event.members or len(self._served) >= MAX_SERVICES:
                return
            served = self._served[event.service] = _Served(0, 0, now.mono_s)
        served.outstanding = event.outstanding
        if served.members != event.members:
            served.members, served.due_s = event.members, now.mono_s

    def tick(self, now: Moment) -> None:
        for service, served in list(self._served.items()):
            if now.mono_s < served.due_s:
                continue
            served.due_s = now.mono_s + self._means.parameters.republish_s
            self._publish(service, served, now)
            if not served.members:
                del self._served[service]

    def next_timeout(self) -> float:
        return min((each.due_s for each in self._served.values()), default=float("inf"))

    def _publish(self, service: str, served: _Served, now: Moment) -> None:
        means = self._means
        signed = means.spec(service)
        if service in self._holding or signed is None or signed.spec.withdrawn:
            return
        state = ClaimState.READY if served.members else ClaimState.GONE
        served.sequence = max(served.sequence + 1, int(now.unix_s * 1000))
        issued_unix_s = int(now.unix_s)
        claim = Claim(
            service=service,
            digest=signed.digest,
            version=signed.spec.version,
            slot=MEMBERS_SLOT,
            peer_id=means.peer_id,
            epoch=0,
            state=state,
            sequence=served.sequence,
            issued_unix_s=issued_unix_s,
            expires_unix_s=issued_unix_s + CLAIM_TTL_S,
            worker_type=signed.spec.worker_type,
            addresses=means.own().addresses,
            outstanding=served.outstanding,
            capacity=min(served.members * signed.spec.max_requests, MAX_REQUESTS),
            members=served.members,
            grant=means.grant(),
        )
        sealed, name = seal_claim(means.identity, claim), means.name(service)
        means.sight(service).take(sealed)
        means.shelf.keep_claim(name, sealed, now)
        holders = (*means.holders.nearest(name, now), *means.holders.lost(name, now))
        means.write(service, sealed, holders, now, "members", ignored, len(holders))
