"""Whose turn it is among equals: when a lease gives way to one who is further below his share.

A lease is safe for a slice, and until its owner is ahead by as much use. Then it takes nothing new;
what runs may end within a while, or is placed anew. An owner whose tasks were cut off so has a
slice of twice the length the next time, so that two owners of long tasks do not cut off each other
for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.negotiation.lease import Lease
from formation_p2p.core.negotiation.parameters import LeaseParameters
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.trust.shares import Account, Shares


class FairShare:
    """`part` says how much of the machine some needs are."""

    def __init__(
        self, shares: Shares, part: Callable[[Requirements], float], parameters: LeaseParameters
    ) -> None:
        self._shares = shares
        self._part = part
        self._parameters = parameters
        self._doublings: dict[PeerId, int] = {}  # the latest at the end

    def opened(self, lease: Lease, now: Moment) -> None:
        self._shares.opened(lease.account, self._part(lease.needs), now)

    def closed(self, lease: Lease, now: Moment) -> None:
        self._shares.closed(lease.account, self._part(lease.needs), now)

    def slice_s(self, owner: PeerId) -> float:
        return self._parameters.slice_s * 2.0 ** self._doublings.get(owner, 0)

    def due_in_s(self, lease: Lease, account: Account, since_s: float, now: Moment) -> float:
        """When a lease gives way to an account that has waited since then, as things stand; 0 for
        now, infinity for never."""
        slice_s = self.slice_s(lease.owner.peer_id)
        # One that waited for a slice does not wait for another that began meanwhile.
        over_s = min(lease.since_s, since_s) + slice_s
        most_s = self._part(lease.needs) * self._parameters.slice_s
        lead = self._shares.lead(lease.account, account, now)
        return max(over_s - now.mono_s, lead.reaches_in_s(most_s), 0.0)

    def goes_first(self, account: Account, other: Account, now: Moment) -> bool:
        """Whether one is further below its share than another."""
        return self._shares.lead(other, account, now).ahead_s > 0

    def waits(self, account: Account, lease: Lease, now: Moment) -> None:
        """It is ahead of the owner of a lease that it waits for: that counts up to a bound."""
        self._shares.forgive(account, lease.account, self._parameters.max_lead_s, now)

    def cut(self, owner: PeerId) -> None:
        """A task of his was ended."""
        doublings = self._doublings.pop(owner, 0) + 1
        self._doublings[owner] = min(doublings, self._parameters.max_doublings)
        if len(self._doublings) > self._parameters.max_standings:
            del self._doublings[next(iter(self._doublings))]

    def finished(self, owner: PeerId) -> None:
        """A task of his came to its end."""
        doublings = self._doublings.pop(owner, 0) - 1
        if doublings > 0:
            self._doublings[owner] = doublings
