"""Reading the claims of services that this worker may run: what the guardians miss is found so.

A worker far from a slot's key reads rarely, for those that are nearer do. What one holder says is
a hint alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import key_of_peer
from formation_p2p.core.keyspace import distance, key_of
from formation_p2p.dht.core.operations import Asked
from formation_p2p.features.services.core.claim import MAX_GUARDIANS
from formation_p2p.features.services.core.means import Means
from formation_p2p.features.services.core.shelf import asking
from formation_p2p.features.services.core.spec import ServiceSpec

# A reader comes nearer to a name with each peer that it asks; halfway round the world in so many.
MAX_HOPS = 4


class Watcher:
    """`seen` is told of each service that was read."""

    def __init__(self, means: Means, seen: Callable[[str, Moment], None]) -> None:
        self._means = means
        self._seen = seen
        self._due_s: dict[str, float] = {}

    def watch(self, spec: ServiceSpec, now: Moment) -> None:
        if spec.name not in self._due_s:
            ours = self._means.parameters
            wait_s = min(self._rank(spec) * ours.first_read_s, self.every_s(spec))
            self._due_s[spec.name] = now.mono_s + wait_s + self._means.rng.random()

    def forget(self, service: str) -> None:
        self._due_s.pop(service, None)

    def soon(self, service: str, now: Moment, wait_s: float) -> None:
        """Read it again by then."""
        if service in self._due_s:
            self._due_s[service] = min(self._due_s[service], now.mono_s + wait_s)

    def tick(self, now: Moment) -> None:
        for service, due_s in list(self._due_s.items()):
            if now.mono_s >= due_s:
                signed = self._means.spec(service)
                if signed is None:
                    del self._due_s[service]
                    continue
                spread = 0.8 + 0.4 * self._means.rng.random()
                self._due_s[service] = now.mono_s + self.every_s(signed.spec) * spread
                self.look(service, now, "watch")

    def next_timeout(self) -> float:
        return min(self._due_s.values(), default=float("inf"))

    def every_s(self, spec: ServiceSpec) -> float:
        ours, rank, own = self._means.parameters, self._rank(spec), self._means.peer_id
        claims = self._means.sight(spec.name).claims.values()
        if not any(own in each.claim.guardians for each in claims if each.claim.is_live):
            # Guardians ask the holder itself. Where they have died with it, the next ones see that.
            rank = max(rank - MAX_GUARDIANS, 0)
        return min(ours.read_s + ours.read_rank_s * rank, ours.max_read_s)

    def look(self, service: str, now: Moment, cause: str, hops: int = 0) -> None:
        """Ask one of its holders."""
        means, name = self._means, self._means.name(service)
        holders = means.holders.nearest(name, now)
        others = [each for each in holders if each.peer_id != means.peer_id]
        if not others:
            self._seen(service, now)  # alone: what is on the shelf is all there is
            return
        # Until those nearest to the name are known, towards it; then any of them.
        contact = means.rng.choice(others) if means.holders.knows(name) else others[0]
        if hops:
            contact = others[0]
        request = asking(name, means.parameters.max_claims)
        then = partial(self._answered, service, cause, hops)
        means.inquiries.ask([(contact, request)], now, cause, then, 1)

    def _answered(self, service: str, cause: str, hops: int, ended: Asked, now: Moment) -> None:
        means, name = self._means, self._means.name(service)
        means.take(service, ended.answers, now)
        if not ended.good:
            self.soon(service, now, means.parameters.retry_s)
            return
        nearest = means.holders.nearest(name, now)
        key = key_of(name)
        asked = distance(key_of_peer(ended.good[0].to.peer_id), key)
        is_holder = not nearest or asked <= distance(key_of_peer(nearest[-1].peer_id), key)
        if is_holder or hops >= MAX_HOPS:
            self._seen(service, now)
        else:
            self.look(service, now, cause, hops + 1)

    def _rank(self, spec: ServiceSpec) -> int:
        """Of the slot that this worker is nearest to; it comes first for one that it had."""
        if spec.name in self._means.had:
            return 0
        return min(self._means.rank(spec, slot) for slot in range(spec.replicas.target))
