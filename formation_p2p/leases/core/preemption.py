"""Preemption: who waits for room that others hold, and which leases give way.

A lease of lower priority is never ended in between: it gives way where its owner would commit or
renew it. One of an equal takes nothing new, and ends after what runs under it. A want is kept for
as long as the scheduler keeps asking, and has nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.latest import Latest
from formation_p2p.core.refusals import Busy, Denied
from formation_p2p.leases.core.lease import Lease
from formation_p2p.leases.core.parameters import LeaseParameters
from formation_p2p.leases.core.waiting import Asked
from formation_p2p.machine.core.capability import Capability, amounts
from formation_p2p.machine.core.fits import Ledger
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI
from formation_p2p.machine.core.requirements import Requirements

# Who lets offers lapse. An offer keeps capacity from others, and so does a want: what is kept for
# nothing is counted, for its owner and for the invitation that its grant was made of.
#
# The unit is the machine-second: all of the machine, or of one resource, for a second.


class Standing:
    """Tell it what was held for nothing, and who committed."""

    def __init__(self, capability: Capability, parameters: LeaseParameters) -> None:
        self._capability = capability
        self._parameters = parameters
        # By owner and by invitation: what was held for nothing, as of when.
        self._owners = Latest[str, tuple[float, float]](parameters.max_standings)
        self._invitations = Latest[str, tuple[float, float]](parameters.max_standings)
        self._committed_s = Latest[PeerId, float](parameters.max_standings)

    def __len__(self) -> int:
        """How many owners and invitations it remembers."""
        return len(self._owners) + len(self._invitations) + len(self._committed_s)

    def idled(
        self, owner: PeerId, invitation: str, needs: Requirements, for_s: float, now: Moment
    ) -> None:
        """So much was kept for an owner that long, and it did not commit."""
        machine_s = self.part(needs) * for_s
        for table, key in ((self._owners, owner), (self._invitations, invitation)):
            idle_s = min(self._idle_s(table, key, now) + machine_s, self._parameters.max_idle_s)
            table[key] = (idle_s, now.mono_s)

    def committed(self, owner: PeerId, now: Moment) -> None:
        self._committed_s[owner] = now.mono_s

    def is_doubtful(self, owner: PeerId, invitation: str, now: Moment) -> bool:
        """Whether nothing is to be kept for an owner before it commits."""
        idle_s = self._idle_s(self._owners, owner, now)
        if not self._is_proved(owner, now):
            idle_s = max(idle_s, self._idle_s(self._invitations, invitation, now))
        return idle_s > self._parameters.idle_s

    def refusal(
        self, owner: PeerId, invitation: str, offers: Collection[Lease], now: Moment
    ) -> Denied | Busy | None:
        """Why an owner gets no offer now, given those that are open."""
        limits = self._parameters
        past_s = self._idle_s(self._owners, owner, now) - limits.back_off_idle_s
        if past_s > 0:
            why = "it let offers lapse; commit to what is offered, or give it back at once"
            return Denied("submit", why, round(past_s / limits.idle_share * 1000))
        own = sum(offer.owner.peer_id == owner for offer in offers)
        if own >= limits.max_offers_per_owner:
            return Busy("the table of your open offers", limits.max_offers_per_owner)
        most = limits.max_offers_per_invitation
        if len(offers) < most or self._is_proved(owner, now):
            return None
        same = sum(offer.invitation == invitation for offer in offers)
        return None if same < most else Busy("the table of your invitation's open offers", most)

    def _is_proved(self, owner: PeerId, now: Moment) -> bool:
        """Whether an owner committed lately. Then it answers for itself, and for no other."""
        recent_s = now.mono_s - self._parameters.proved_s
        return self._committed_s.get(owner, float("-inf")) > recent_s

    def _idle_s(self, table: dict[str, tuple[float, float]], key: str, now: Moment) -> float:
        idle_s, at_s = table.get(key, (0.0, now.mono_s))
        return max(idle_s - (now.mono_s - at_s) * self._parameters.idle_share, 0.0)

    def part(self, needs: Requirements) -> float:
        """Of the resource of which it is the most; of the table of leases too, which is one."""
        pairs = [
            (1, self._parameters.max_leases),
            (needs.gpu_count * needs.gpu_share_milli, len(self._capability.gpus) * WHOLE_GPU_MILLI),
            *zip(amounts(needs), amounts(self._capability), strict=True),
        ]
        return max(part / whole for part, whole in pairs if whole)


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
