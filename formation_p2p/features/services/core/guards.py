"""Watching the replicas of others: a guardian asks the holder of a claim whether it is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core.operations import Asked
from formation_p2p.features.services.core.claim import Claim
from formation_p2p.features.services.core.events import ServiceStep
from formation_p2p.features.services.core.means import Means, has_own
from formation_p2p.features.services.core.shelf import asking

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
