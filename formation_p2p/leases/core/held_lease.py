"""A lease as the scheduler has it, and its states as a table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.leases.core.messages import Leased, Renewed
from formation_p2p.leases.core.parameters import LeaseParameters
from formation_p2p.placement.core.task_options import SchedulingKey

# Lease ids are each worker's own: only with its peer id do they name one lease.
LeaseKey = tuple[PeerId, str]


class HeldState(StrEnum):
    COMMITTED = "committed"  # the worker has not answered the commit
    RECOMMITTED = "recommitted"  # nor that: it may be lost, and was sent again
    HELD = "held"
    RENEWING = "renewing"  # the worker has not answered a renewal
    SUSPECT = "suspect"  # nor that, and what was sent before may be lost: nothing more is sent
    UNREACHED = "unreached"  # the same, and it was asked a second time
    ADOPTED = "adopted"  # the same, of a lease that an earlier incarnation held
    ENDED = "ended"


_ENDS: Final = dict.fromkeys(("ended", "expired", "released"), HeldState.ENDED)
_ANSWERING: Final = {
    "renew": HeldState.RENEWING,
    "renewed": HeldState.HELD,  # of one that is held: the same answer came twice
    "disconnected": HeldState.SUSPECT,
    "undelivered": HeldState.SUSPECT,
    **_ENDS,
}
_IN_DOUBT: Final = {"renewed": HeldState.HELD, "undelivered": HeldState.ENDED, **_ENDS}
_COMMITTING: Final = {
    "leased": HeldState.HELD,
    **dict.fromkeys(("refused", "expired", "released"), HeldState.ENDED),
}
TRANSITIONS: Final = {
    HeldState.COMMITTED: {**_COMMITTING, "undelivered": HeldState.RECOMMITTED},
    HeldState.RECOMMITTED: {**_COMMITTING, "undelivered": HeldState.ENDED},
    HeldState.HELD: _ANSWERING,
    HeldState.RENEWING: _ANSWERING,
    HeldState.SUSPECT: {
        **_IN_DOUBT,
        "renew": HeldState.SUSPECT,
        "undelivered": HeldState.UNREACHED,
    },
    HeldState.UNREACHED: {"renew": HeldState.UNREACHED, **_IN_DOUBT},
    HeldState.ADOPTED: {"renew": HeldState.ADOPTED, **_IN_DOUBT},
}

_SUSPECT: Final = (HeldState.SUSPECT, HeldState.UNREACHED, HeldState.ADOPTED)


@dataclass(slots=True)
class HeldLease:
    """A lease on a worker's capacity. Times are on this machine's monotonic clock.

    `window` is how many attempts may be in flight under it at once. `asked_s` is when the commit,
    or the first unanswered renewal, was sent. `grant` is the one that it was asked for on. One that
    `yields` gives way to an equal of its worker's: nothing new is to run under it.
    """

    lease_id: str
    lessor: Contact
    scheduling_key: SchedulingKey
    state: HeldState
    expires_s: float
    fence: int = 0
    device_ids: tuple[str, ...] = ()
    window: int = 1
    renew_s: float = float("inf")
    asked_s: float = 0.0
    grant: bytes = b""
    yields: bool = False

    @property
    def key(self) -> LeaseKey:
        return (self.lessor.peer_id, self.lease_id)

    @property
    def is_suspect(self) -> bool:
        """Whether the worker may have missed what was sent last."""
        return self.state in _SUSPECT

    @property
    def is_committing(self) -> bool:
        """Whether the worker has not said yet that it is leased."""
        return self.state is HeldState.COMMITTED or self.state is HeldState.RECOMMITTED

    def move(self, event: str) -> bool:
        """Follow the table. False where the state has no such way out."""
        state = TRANSITIONS.get(self.state, {}).get(event)
        if state is None:
            return False
        self.state = state
        return True

    def ask(self, event: str, now_s: float, again_s: float) -> bool:
        """The worker is asked because of this event, unless the state has no such way out, or none
        but its end."""
        was = self.state
        if TRANSITIONS.get(was, {}).get(event) is HeldState.ENDED or not self.move(event):
            return False
        if was is HeldState.HELD:
            self.asked_s = now_s
        if self.state is not HeldState.RECOMMITTED:
            self.renew_s = now_s + again_s
        return True

    def told(self, *, yields: bool) -> bool:
        """Whether that is new of a lease that is in force."""
        is_new = self.fence > 0 and self.yields != yields
        self.yields = self.yields != is_new
        return is_new

    def granted(self, message: Leased | Renewed, parameters: LeaseParameters) -> None:
        """The new life counts from when the first unanswered request for it was sent."""
        if isinstance(message, Leased):
            self.fence = message.fence
        self.window = message.window
        life_s = min(message.ttl_ms / 1000, parameters.max_lease_s)
        self.expires_s = self.asked_s + life_s
        self.renew_s = self.asked_s + life_s * parameters.renew_at
