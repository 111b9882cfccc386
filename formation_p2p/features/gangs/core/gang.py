"""One gang: who has which rank, what each member is told, and the states that it goes through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.features.gangs.core.acquisition import Acquisition
from formation_p2p.features.gangs.core.candidates import Means
from formation_p2p.features.gangs.core.events import GangMember
from formation_p2p.features.gangs.core.messages import Enlist
from formation_p2p.features.gangs.core.roster import OWNER, Member, Roster
from formation_p2p.features.gangs.core.spec import GangSpec
from formation_p2p.features.gangs.core.usage import LeaseUsage
from formation_p2p.leases.core.held_lease import HeldLease
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


# What an owner knows of its gangs right now: who has each rank, and what it uses.


class MemberState(StrEnum):
    HELD = "held"
    SUSPECT = "suspect"  # its worker does not answer
    LOST = "lost"  # another worker is sought
    SOUGHT = "sought"  # it has had no worker yet


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """`worker` has the rank since `since_unix_s`; None where none has. `used` is what its tasks
    used when the worker last said so, None before it has."""

    rank: int
    state: MemberState
    worker: PeerId | None = None
    since_unix_s: float | None = None
    used: LeaseUsage | None = None


@dataclass(frozen=True, slots=True)
class GangStatus:
    """`members` by rank, also those that are sought. It was asked for at `since_unix_s`."""

    gang_id: str
    state: GangState
    since_unix_s: float
    members: tuple[MemberStatus, ...]

    @property
    def between(self) -> Mapping[tuple[int, int], int]:
        """Bytes on streams from one rank to another, OWNER for the owner, since their leases began.
        Both ends count; what the worker of the other end has missed counts too."""
        found: dict[tuple[int, int], int] = {}
        for member in self.members:
            for link in () if member.used is None else member.used.links:
                for pair, size_bytes in (
                    ((member.rank, link.rank), link.sent_bytes),
                    ((link.rank, member.rank), link.received_bytes),
                ):
                    if size_bytes:
                        found[pair] = max(size_bytes, found.get(pair, 0))
        # The owner of the gang last.
        return dict(sorted(found.items(), key=lambda each: (OWNER in each[0], each[0])))


def status_of_gang(gang: Gang) -> GangStatus:
    members = tuple(_member(gang, rank) for rank in range(gang.spec.size))
    return GangStatus(gang.gang_id, gang.state, gang.since_unix_s, members)


def _member(gang: Gang, rank: int) -> MemberStatus:
    lease = gang.leases.get(rank)
    if lease is None:
        return MemberStatus(rank, MemberState.LOST if rank in gang.lost else MemberState.SOUGHT)
    state = MemberState.SUSPECT if lease.is_suspect else MemberState.HELD
    return MemberStatus(
        rank, state, lease.lessor.peer_id, gang.joined_unix_s[rank], gang.used.get(rank)
    )
