"""What the work protocol asks of the shell, and what the shell tells of it.

Delivery is in order and at most once: what could not be delivered is told as `Undelivered`,
and after that the peer may or may not have seen the last messages. Leases, fencing tokens and
acknowledged results are what make that safe.

A worker makes sure by a `Fence` that nothing runs under a lease that has ended. Each ends in
exactly one `Fenced`, within a bounded time, since it kills. Until then the lease's capacity is not
offered to any peer.
"""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.effects import Contact, Effect
from formation_p2p.core.identity import PeerId
from formation_p2p.leases.core.messages import WorkMessage


@dataclass(frozen=True, slots=True)
class Send(Effect):
    """Send over the long-lived stream with a peer, dialling it if there is none."""

    to: Contact
    message: WorkMessage


@dataclass(frozen=True, slots=True)
class Received:
    sender: Contact
    message: WorkMessage


@dataclass(frozen=True, slots=True)
class Undelivered:
    """The stream with a peer broke, or none could be opened. Messages sent may be lost."""

    to: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The last connection with a peer closed, perhaps with nothing under way on it."""

    peer_id: PeerId


@dataclass(frozen=True, slots=True)
class Fence(Effect):
    """End everything that runs under a lease, what is kept warm for it too."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """Nothing runs under the lease any more."""

    lease_id: str
