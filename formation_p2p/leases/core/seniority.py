"""Since when each gang has sought leases at a worker, as the worker itself has seen it.

Of two gangs that hold softly what the other wants, the elder gets it, so that a request says since
when its gang has sought: its ticket. A forged one is worth little. The worker believes what lies a
moment before the first request with this ticket that it saw, and no more.
"""

from __future__ import annotations

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.leases.core.parameters import LeaseParameters


class Seniority:
    """Of all that ask one worker."""

    def __init__(self, parameters: LeaseParameters) -> None:
        self._parameters = parameters
        # When a ticket of an owner was first seen, in Unix milliseconds, and last; the latest at
        # the end.
        self._seen: dict[tuple[PeerId, int], tuple[int, float]] = {}

    def __len__(self) -> int:
        """How many tickets it remembers."""
        return len(self._seen)

    def since_ms(self, owner: PeerId, ticket: int, now: Moment) -> int:
        """What the ticket of a request counts as; 0 for work that is of no gang."""
        if ticket == 0:
            return 0
        limits = self._parameters
        now_ms = round(now.unix_s * 1000)
        first_ms, last_s = self._seen.pop((owner, ticket), (now_ms, now.mono_s))
        if now.mono_s - last_s > limits.ticket_s:
            first_ms = now_ms
        self._seen[owner, ticket] = (first_ms, now.mono_s)
        own = [key for key in self._seen if key[0] == owner]
        if len(own) > limits.max_tickets_per_owner:
            del self._seen[own[0]]
        elif len(self._seen) > limits.max_standings:
            del self._seen[next(iter(self._seen))]
        believed_ms = round(limits.ticket_slack_s * 1000)
        oldest_ms = now_ms - round(limits.max_seniority_s * 1000)
        return max(min(max(ticket, first_ms - believed_ms), first_ms), oldest_ms)
