"""One gang: who has which rank, what each member is told, and the states that it goes through."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.features.gangs.core.acquisition import Acquisition
from formation_p2p.features.gangs.core.candidates import Means
from formation_p2p.features.gangs.core.events import GangMember
from formation_p2p.features.gangs.core.messages import Enlist
from formation_p2p.features.gangs.core.spec import GangSpec
from formation_p2p.leases.core.gang_usage import LeaseUsage
from formation_p2p.leases.core.held_lease import HeldLease
from formation_p2p.leases.core.roster import Member, Roster
from formation_p2p.leases.core.session import Send


class GangState(StrEnum):
    FORMING = "forming"
    FORMED = "formed"
    MENDING = "mending"  # a rank lacks its member
    ENDED = "ended"


TRANSITIONS: Final = {
    GangState.FORMING: {"complete": GangState.FORMED, "end": GangState.ENDED},
    GangState.FORMED: {"lack": GangState.MENDING, "end": GangState.ENDED},
    GangState.MENDING: {"complete": GangState.FORMED, "end": GangState.ENDED},
}


class Gang:
    """`leases` are those of its members, by rank, and `used` what was last reported of them; `lost`
    are ranks that had one."""

    def __init__(self, gang_id: str, spec: GangSpec, means: Means, since_unix_s: float) -> None:
        self.gang_id = gang_id
        self.spec = spec
        self.since_unix_s = since_unix_s
        self.state = GangState.FORMING
        self.acquisition = Acquisition(gang_id, spec, means)
        self.leases: dict[int, HeldLease] = {}
        self.joined_unix_s: dict[int, float] = {}
        self.used: dict[int, LeaseUsage] = {}
        self.lost: set[int] = set()
        self._sequence = 0

    def move(self, event: str) -> None:
        """Follow the table; the state stays where it has no such way out."""
        self.state = TRANSITIONS.get(self.state, {}).get(event, self.state)

    @property
    def lacking(self) -> list[int]:
        return [rank for rank in range(self.spec.size) if rank not in self.leases]

    @property
    def workers(self) -> set[PeerId]:
        return {lease.lessor.peer_id for lease in self.leases.values()}

    def resized(self, size: int) -> None:
        self.spec = self.spec.of_size(size)

    def enter(self, leases: dict[int, HeldLease], now: Moment) -> list[GangMember]:
        """These leases are of the gang now: its new members."""
        self.leases |= leases
        self.joined_unix_s |= dict.fromkeys(leases, now.unix_s)
        self.lost -= leases.keys()
        return [self.member(rank) for rank in sorted(leases)]

    def rank_of(self, lease: HeldLease) -> int | None:
        return next((rank for rank, each in self.leases.items() if each is lease), None)

    def lose(self, rank: int) -> HeldLease:
        self.lost.add(rank)
        self.used.pop(rank, None)
        return self.leases.pop(rank)

    def drop(self, rank: int) -> HeldLease | None:
        self.lost.discard(rank)
        self.used.pop(rank, None)
        return self.leases.pop(rank, None)

    def member(self, rank: int) -> GangMember:
        lease = self.leases[rank]
        worker, needs = lease.lessor.peer_id, self.spec.needs[rank]
        profile = self.acquisition.candidates.pool.get(worker)
        others = sorted(self.workers - {worker})
        known = ((other, self.acquisition.trips.known_us(worker, other)) for other in others)
        trips_us = tuple((other, trip_us) for other, trip_us in known if trip_us is not None)
        return GangMember(
            rank,
            lease.lessor,
            needs,
            lease.lease_id,
            lease.fence,
            lease.device_ids,
            profile,
            trips_us,
        )

    @property
    def members(self) -> tuple[GangMember, ...]:
        return tuple(self.member(rank) for rank in sorted(self.leases))

    def enlist(self, owner: Contact, cause: str) -> list[Send]:
        """Tell each member who all are, as of now."""
        self._sequence += 1
        return [send for rank in sorted(self.leases) for send in self.told(rank, owner, cause)]

    def told(self, rank: int, owner: Contact, cause: str) -> list[Send]:
        """Tell one member again."""
        lease = self.leases[rank]
        message = Enlist(lease.lease_id, lease.fence, rank, self.roster(owner))
        return [Send(lease.lessor, message, cause=cause)]

    def roster(self, owner: Contact) -> Roster:
        """The one that was told last."""
        members = tuple(
            Member(each, held.lessor, held.fence) for each, held in sorted(self.leases.items())
        )
        size, has_network = self.spec.size, self.spec.has_network
        return Roster(self.gang_id, self._sequence, size, owner, members, has_network)
