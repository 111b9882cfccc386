"""Preemption: who waits for room that others hold, and which leases give way.

A lease of lower priority is never ended in between: it gives way where its owner would commit or
renew it. One of an equal takes nothing new, and ends after what runs under it. A want is kept for
as long as the scheduler keeps asking, and has nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.leases.core.parameters import LeaseParameters
from formation_p2p.leases.core.waiting import Asked
from formation_p2p.machine.core.fits import Ledger
from formation_p2p.machine.core.requirements import Requirements


@dataclass(frozen=True, slots=True)
class Want:
    """`displaced` are the leases that give way to its priority, and `yielding` those of equals, by
    id."""

    asked: Asked
    displaced: frozenset[str]
    yielding: frozenset[str]
    until_s: float


class Wants:
    def __init__(self, parameters: LeaseParameters) -> None:
        self._parameters = parameters
        self._wants: dict[tuple[PeerId, Requirements, int], Want] = {}
        self._lapsed: list[Want] = []  # no more than there may be wants, between two requests

    def note(
        self, asked: Asked, displaced: Iterable[str], now: Moment, yielding: Iterable[str] = ()
    ) -> bool:
        """In the place of what the same owner wanted before. False where the table
        is full of wants that are at least as urgent."""
        self.forget(asked)
        self._expire(now)
        if len(self._wants) >= self._parameters.max_wants:
            least = min(self._wants.values(), key=lambda want: want.asked.priority)
            if least.asked.priority >= asked.priority:
                return False
            self.forget(least.asked)
        until_s = now.mono_s + self._parameters.want_s
        want = Want(asked, frozenset(displaced), frozenset(yielding), until_s)
        self._wants[asked.kind] = want
        return True

    def forget(self, asked: Asked) -> None:
        self._wants.pop(asked.kind, None)

    def forgone(self, owner: PeerId, request: str | None) -> list[Want]:
        """Forget what an owner waits for no more: what it asked for by this request, or all."""
        wants = (want for want in self._wants.values() if want.asked.owner == owner)
        gone = [want for want in wants if request in (None, want.asked.request)]
        for want in gone:
            self.forget(want.asked)
        return gone

    def displacing(self, lease_id: str, now: Moment) -> int | None:
        """The priority of what the lease is to give way to, if there is such."""
        self._expire(now)
        return max(
            (want.asked.priority for want in self._wants.values() if lease_id in want.displaced),
            default=None,
        )

    def yielding_to(self, lease_id: str, now: Moment) -> Asked | None:
        """The equal that the lease is to give way to, if there is such."""
        self._expire(now)
        wants = (want for want in self._wants.values() if lease_id in want.yielding)
        return next((want.asked for want in wants), None)

    def live(self, now: Moment) -> list[Want]:
        self._expire(now)
        return list(self._wants.values())

    def take_lapsed(self, now: Moment) -> list[Asked]:
        """Those whose owners asked no more, since the last time."""
        self._expire(now)
        lapsed, self._lapsed = self._lapsed, []
        return [want.asked for want in lapsed]

    def _expire(self, now: Moment) -> None:
        for key in [key for key, want in self._wants.items() if want.until_s <= now.mono_s]:
            self._lapsed.append(self._wants.pop(key))


def to_displace(
    needs: Requirements, ledger: Ledger, ending: Iterable[str], candidates: Sequence[str]
) -> tuple[str, ...] | None:
    """Which of the candidates, in the order in which they are to go, have to give way for these
    needs, given that all of `ending` comes free in any case. None where even all would not do."""
    free = reduce(ledger.with_back, ending, ledger.free)
    displaced: list[str] = []
    for each in candidates:
        if ledger.lacks(needs, free) is None:
            break
        free = ledger.with_back(free, each)
        displaced.append(each)
    if ledger.lacks(needs, free) is not None:
        return None
    for each in reversed(tuple(displaced)):  # those that held nothing of what is short
        less = ledger.with_taken(free, each)
        if ledger.lacks(needs, less) is None:
            free = less
            displaced.remove(each)
    return tuple(displaced)
