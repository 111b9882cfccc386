"""Watching the replicas of others: a guardian asks the holder of a claim whether it is there.

What the guardians miss is found by reading the claims of services that this worker may run. A
worker far from a slot's key reads rarely, for those that are nearer do. What one holder says is a
hint alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import distance, key_of
from formation_p2p.dht.core.operations import Asked
from formation_p2p.features.services.core.claim import MAX_GUARDIANS, Claim
from formation_p2p.features.services.core.events import ServiceStep
from formation_p2p.features.services.core.means import Means, has_own
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


# A worker is among the three nearest to a few slots; more are names that were made up.
MAX_GUARDS: Final = 256


@dataclass(slots=True)
class _Guard:
    """`misses` are the answers that did not come, in a row; `pending` may still. An answer to what
    was asked at `heard_s` has come: what was asked before says nothing any more."""

    rank: int
    due_s: float
    misses: int = 0
    pending: int = 0
    heard_s: float = float("-inf")


class Guards:
    """`suspect` is told of a claim whose holder does not answer, and how many guardians are to
    act before this one."""

    def __init__(self, means: Means, suspect: Callable[[Claim, int, Moment], None]) -> None:
        self._means = means
        self._suspect = suspect
        self._guards: dict[tuple[str, PeerId], _Guard] = {}

    def noticed(self, claim: Claim, now: Moment) -> None:
        """A claim has come in: it may name this worker as a guardian, or no longer."""
        key, own = (claim.service, claim.peer_id), self._means.peer_id
        if not claim.is_live or own not in claim.guardians:
            self._guards.pop(key, None)
            return
        rank = claim.guardians.index(own)
        guard = self._guards.get(key)
        if guard is not None:
            guard.rank = rank
        elif len(self._guards) < MAX_GUARDS:
            every_s = self._every_s(rank)
            self._guards[key] = _Guard(rank, now.mono_s + every_s * self._means.rng.random())

    def clear(self) -> None:
        self._guards.clear()

    def disconnected(self, holder: PeerId, now: Moment) -> None:
        """The connection to a peer broke: ask at once whether it is still there."""
        for (_, watched), guard in self._guards.items():
            if watched == holder and not guard.pending:
                guard.due_s = now.mono_s

    def tick(self, now: Moment) -> None:
        for key, guard in list(self._guards.items()):
            if now.mono_s >= guard.due_s:
                self._ask(key, guard, now)

    def next_timeout(self) -> float:
        return min((guard.due_s for guard in self._guards.values()), default=float("inf"))

    def _every_s(self, rank: int) -> float:
        every = self._means.parameters.guard_s
        return every[min(rank, len(every) - 1)]

    def _ask(self, key: tuple[str, PeerId], guard: _Guard, now: Moment) -> None:
        service, holder = key
        known = self._means.sight(service).claims.get(holder)
        if known is None or known.claim.expires_unix_s + _LONG_GONE_S < now.unix_s:
            del self._guards[key]
            return
        ours = self._means.parameters
        guard.pending += 1
        is_last = guard.misses + guard.pending >= ours.misses
        guard.due_s = float("inf") if is_last else now.mono_s + ours.patience_s
        request = asking(self._means.name(service), self._means.parameters.max_claims)
        contact = Contact(holder, known.claim.addresses)
        then = partial(self._answered, key, guard, now.mono_s)
        self._means.inquiries.ask([(contact, request)], now, "guard", then, 1)

    def _answered(
        self, key: tuple[str, PeerId], guard: _Guard, asked_s: float, ended: Asked, now: Moment
    ) -> None:
        guard.pending -= 1
        if self._guards.get(key) is not guard or asked_s < guard.heard_s:
            return
        service, holder = key
        ours, sight = self._means.parameters, self._means.sight(service)
        before = sight.claims[holder].claim
        if ended.good:
            self._means.take(service, ended.answers, now)
        claim = sight.claims[holder].claim
        # One that has begun anew answers, and has no claim any more.
        is_there = any(map(has_own, ended.good)) and claim.is_fresh(now.unix_s)
        if claim is not before:
            self.noticed(claim, now)
        guard.misses = 0 if is_there else guard.misses + 1
        if guard.misses == 0:
            guard.heard_s = asked_s
            spread = 0.9 + 0.2 * self._means.rng.random()
            guard.due_s = now.mono_s + self._every_s(guard.rank) * spread
            return
        guard.due_s = float("inf") if guard.pending else now.mono_s + ours.again_s
        if guard.misses >= ours.misses:
            guard.due_s = now.mono_s + ours.retry_s
            if guard.misses == ours.misses:
                why = "it does not answer"
                self._means.emit(service, claim.slot, ServiceStep.SUSPECTED, why, now, holder)
            if sight.live(now.unix_s, sight.doubts(claim)).get(claim.slot) is not None:
                self._guards.pop(key, None)  # another has the slot by now
                return
            self._suspect(claim, guard.rank, now)


# A holder that was not heard of for so long after its claim ended is watched no more.
_LONG_GONE_S: Final = 300
