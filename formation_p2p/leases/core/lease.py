"""A lease as the worker has it, and its states as a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from formation_p2p.core.effects import Contact
from formation_p2p.core.refusals import PeerRefusal
from formation_p2p.leases.core.messages import PlacementRequest
from formation_p2p.machine.core.fits import Reservation
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.trust.core.shares import Account


class LeaseState(StrEnum):
    OFFERED = "offered"
    LEASED = "leased"
    ENDING = "ending"  # the shell is ending what ran under it; capacity is still held
    ENDED = "ended"


_ENDS: Final = ("release", "preempt", "expire", "leave")
TRANSITIONS: Final = {
    LeaseState.OFFERED: {"commit": LeaseState.LEASED, **dict.fromkeys(_ENDS, LeaseState.ENDED)},
    LeaseState.LEASED: {
        "commit": LeaseState.LEASED,  # the answer to the first was lost
        "renew": LeaseState.LEASED,
        **dict.fromkeys(_ENDS, LeaseState.ENDING),
    },
    LeaseState.ENDING: {"fenced": LeaseState.ENDED},
}


@dataclass(slots=True)
class Lease:
    """One reservation. `expires_s` is on this machine's monotonic clock. `invitation` is what the
    owner's grant was made of. Of an offer that is not `kept`, the capacity is taken when it is
    committed to, if it is still free then. `used_s` is when it was last of use, `since_s` when it
    was committed. It is charged to the `account`. What waited long has a higher priority in its
    request than the `base_priority` that it was asked with, until `aged_until_s`. `yields_s` is
    since when it gives way to an equal, and takes nothing new. `ends_s` is when it ends though it
    is renewed, where its owner was given notice, and `ending` why."""

    lease_id: str
    owner: Contact
    request: PlacementRequest
    reservation: Reservation
    state: LeaseState
    expires_s: float
    fence: int = 0
    invitation: str = ""
    kept: bool = True
    since_s: float = 0.0
    account: Account = ()
    base_priority: int = 0
    used_s: float = 0.0
    aged_until_s: float = float("inf")
    yields_s: float | None = None
    ends_s: float = float("inf")
    ending: PeerRefusal | None = None

    @property
    def due_s(self) -> float:
        """When it ends if nothing happens before."""
        return min(self.expires_s, self.ends_s)

    @property
    def needs(self) -> Requirements:
        return self.request.needs

    @property
    def device_ids(self) -> tuple[str, ...]:
        return tuple(claim.device_id for claim in self.reservation.gpus)

    def moved(self, event: str) -> bool:
        """Follow the table. False where the state has no such way out."""
        state = TRANSITIONS.get(self.state, {}).get(event)
        if state is None:
            return False
        self.state = state
        return True

    def granted(self, fence: int, now_s: float, lease_s: float, slice_s: float) -> None:
        self.fence, self.expires_s, self.kept = fence, now_s + lease_s, True
        self.used_s = self.since_s = now_s
        self.aged_until_s = now_s + slice_s

    def gives_way(self, now_s: float) -> None:
        """To an equal, from now on if it did not before."""
        self.yields_s = now_s if self.yields_s is None else self.yields_s

    def stays(self) -> None:
        """It gives way to no equal any more."""
        self.yields_s = None

    def priority_at(self, now_s: float) -> int:
        """What it counts as against others."""
        return self.request.priority if now_s < self.aged_until_s else self.base_priority

    def renewed(self, owner: Contact, expires_s: float) -> None:
        """`owner` may be at other addresses, in a later incarnation."""
        self.owner, self.expires_s = owner, expires_s

    def noticed(self, ends_s: float, why: PeerRefusal) -> None:
        """Its owner is told that it ends then."""
        self.ends_s, self.ending = ends_s, why

    def used(self, now_s: float) -> None:
        """Something ran under it until now."""
        self.used_s = now_s

    def moved_to(self, grant: bytes) -> None:
        """Its owner has another grant."""
        self.request = replace(self.request, grant=grant)

    @property
    def gpu_milli(self) -> int:
        """Of all its devices together."""
        return sum(claim.share_milli for claim in self.reservation.gpus)
