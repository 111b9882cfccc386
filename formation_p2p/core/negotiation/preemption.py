"""Preemption: who waits for room that work of lower priority holds, and which leases give way.

A lease is never ended in between: it gives way where its owner would commit or renew it. A want is
kept for as long as the scheduler keeps asking.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.negotiation.parameters import LeaseParameters
from formation_p2p.core.resources.fits import Ledger
from formation_p2p.core.resources.requirements import Requirements


@dataclass(frozen=True, slots=True)
class Want:
    """`displaced` are the leases that give way, by id."""

    owner: PeerId
    invitation: str
    needs: Requirements
    priority: int
    displaced: frozenset[str]
    until_s: float


class Wants:
    def __init__(self, parameters: LeaseParameters) -> None:
        self._parameters = parameters
        self._wants: dict[tuple[PeerId, Requirements, int], Want] = {}
        self._lapsed: list[Want] = []  # no more than there may be wants, between two requests

    def note(
        self,
        owner: PeerId,
        invitation: str,
        needs: Requirements,
        priority: int,
        displaced: Iterable[str],
        now: Moment,
    ) -> bool:
        """In the place of what the same owner wanted before. False where the table
        is full of wants that are at least as urgent."""
        self.forget(owner, needs, priority)
        self._expire(now)
        if len(self._wants) >= self._parameters.max_wants:
            least = min(self._wants.values(), key=lambda want: want.priority)
            if least.priority >= priority:
                return False
            self.forget(least.owner, least.needs, least.priority)
        until_s = now.mono_s + self._parameters.want_s
        want = Want(owner, invitation, needs, priority, frozenset(displaced), until_s)
        self._wants[owner, needs, priority] = want
        return True

    def forget(self, owner: PeerId, needs: Requirements, priority: int) -> None:
        self._wants.pop((owner, needs, priority), None)

    def displacing(self, lease_id: str, now: Moment) -> int | None:
        """The priority of what the lease is to give way to, if there is such."""
        self._expire(now)
        return max(
            (want.priority for want in self._wants.values() if lease_id in want.displaced),
            default=None,
        )

    def above(self, priority: int, now: Moment) -> list[Want]:
        self._expire(now)
        return [want for want in self._wants.values() if want.priority > priority]

    def take_lapsed(self, now: Moment) -> list[Want]:
        """Those whose owners asked no more, since the last time."""
        self._expire(now)
        lapsed, self._lapsed = self._lapsed, []
        return lapsed

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
