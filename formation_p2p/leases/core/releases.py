"""The leases that a scheduler has given back lately, for as long as their workers may hold them.

A release is not answered. Where the stream broke that it was sent on, it may be lost: the worker
would keep its capacity for a lease that has no owner, until that expires. It is sent again then.
"""

from __future__ import annotations

from typing import Final

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.latest import Latest
from formation_p2p.leases.core.held_lease import LeaseKey

# Those of four of the largest gangs at once. The oldest are forgotten first: they expire.
MAX_RELEASES: Final = 256
# How often each is sent again: a worker that cannot be reached so often may be gone.
REPEATS: Final = 2


class Releases:
    """`again` forgets what needs no repeating any more."""

    def __init__(self) -> None:
        # Until when the worker may hold each, and how often it is still to be repeated.
        self._sent = Latest[LeaseKey, tuple[Contact, float, int]](MAX_RELEASES)

    def __len__(self) -> int:
        return len(self._sent)

    def sent(self, to: Contact, lease_id: str, until_s: float, repeats: int = REPEATS) -> None:
        self._sent[to.peer_id, lease_id] = (to, until_s, repeats)

    def again(self, to: PeerId, now: Moment) -> list[tuple[Contact, str]]:
        """What was sent to this worker may be lost: what to send it once more."""
        lost: list[tuple[Contact, str]] = []
        for (peer_id, lease_id), (contact, until_s, repeats) in [*self._sent.items()]:
            is_over = until_s <= now.mono_s
            if is_over or peer_id == to:
                del self._sent[peer_id, lease_id]
            if not is_over and peer_id == to:
                lost.append((contact, lease_id))
                if repeats > 1:
                    self.sent(contact, lease_id, until_s, repeats - 1)
        return lost
