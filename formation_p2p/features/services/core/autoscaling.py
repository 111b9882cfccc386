"""Weighing the load of a service that this worker has a replica of, after each look at its claims.

More replicas are asked for only where the others confirm what their claims say: one that is dead
has its requests at others by now, and would count twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core.operations import Asked
from formation_p2p.features.services.core.claim import Claim, ClaimState
from formation_p2p.features.services.core.holding import Holding
from formation_p2p.features.services.core.means import Means, has_own
from formation_p2p.features.services.core.replica import Own, Replica
from formation_p2p.features.services.core.scaling import Scaler, is_elastic
from formation_p2p.features.services.core.shelf import asking
from formation_p2p.features.services.core.signed_spec import SignedSpec


class Autoscaling:
    """Of the replicas of one worker."""

    def __init__(self, means: Means, holding: Holding) -> None:
        self._means = means
        self._holding = holding
        # Of each replica, with what it was made for: as many as there are replicas here.
        self._scalers: dict[str, tuple[Replica, SignedSpec, Scaler]] = {}
        self.asking: set[str] = set()

    def judge(self, service: str, now: Moment) -> None:
        replica, signed = self._holding.get(service), self._means.spec(service)
        if replica is None or signed is None or replica.state is not Own.READY:
            self._scalers.pop(service, None)
            return
        if service in self.asking or not is_elastic(signed.spec):
            return
        ready = self._ready(service, now)
        size, decided = self._decided(replica, signed, ready, now)
        if decided is None:
            return
        others = [claim for each, claim in ready.items() if each != self._means.peer_id]
        if decided < size or not others:
            self._want(replica, signed, size, decided, now)
        else:
            self._confirm(replica, signed, others, now)

    def _scaler(self, replica: Replica, signed: SignedSpec) -> Scaler:
        kept = self._scalers.get(replica.service)
        if kept is None or kept[0] is not replica or kept[1] is not signed:
            kept = self._scalers[replica.service] = (replica, signed, Scaler(signed.spec))
        return kept[2]

    def _ready(self, service: str, now: Moment) -> Mapping[PeerId, Claim]:
        live = self._means.sight(service).live(now.unix_s).values()
        return {each.peer_id: each for each in live if each.state is ClaimState.READY}

    def _decided(
        self, replica: Replica, signed: SignedSpec, ready: Mapping[PeerId, Claim], now: Moment
    ) -> tuple[int, int | None]:
        """How many are wanted, and what this worker makes of it."""
        size = self._means.wanted(signed, now)
        own = replica.load.busy_percent(signed.spec, now.mono_s)
        others = [c.busy_percent for each, c in ready.items() if each != self._means.peer_id]
        used_percent = (own + sum(others)) / size
        is_whole = len(others) + 1 >= size
        scaler = self._scaler(replica, signed)
        return size, scaler.decide(size, used_percent, now.mono_s, is_whole=is_whole)

    def _confirm(
        self, replica: Replica, signed: SignedSpec, others: list[Claim], now: Moment
    ) -> None:
        means, service = self._means, replica.service
        request = asking(means.name(service), means.parameters.max_claims)
        asked = [(Contact(claim.peer_id, claim.addresses), request) for claim in others]
        self.asking.add(service)
        then = partial(self._confirmed, replica, signed)
        means.inquiries.ask(asked, now, "scale", then, len(asked))

    def _confirmed(self, replica: Replica, signed: SignedSpec, ended: Asked, now: Moment) -> None:
        service = replica.service
        self.asking.discard(service)
        self._means.take(service, ended.answers, now)
        if self._holding.get(service) is not replica or replica.state is not Own.READY:
            return
        there = {answer.to.peer_id for answer in ended.good if has_own(answer)}
        ready = self._ready(service, now)
        sure = {each: claim for each, claim in ready.items() if each in there}
        size, decided = self._decided(replica, signed, sure, now)
        if decided is not None and decided > size:
            self._want(replica, signed, size, decided, now)

    def _want(
        self, replica: Replica, signed: SignedSpec, size: int, decided: int, now: Moment
    ) -> None:
        self._scaler(replica, signed).changed(now.mono_s)
        load = "more requests than" if decided > size else "fewer requests than are enough for"
        why = f"there are {load} {size} replicas: {decided} are to run"
        self._holding.wants(replica, decided, why, now)
