"""What a peer is told of gangs, and what it tells: who is a member, and of each change."""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.effects import Contact, Effect, OwnedEvent
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Refusal
from formation_p2p.features.gangs.core.partition import Move
from formation_p2p.features.gangs.core.roster import Roster
from formation_p2p.features.gangs.core.spec import GangSpec
from formation_p2p.features.gangs.core.usage import LeaseUsage
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.profile import Profile


@dataclass(frozen=True, slots=True)
class FormGang:
    """Lease a worker for each rank, all or none. Ends in GangFormed, GangUnplaceable, GangEnded or
    GangRejected."""

    gang_id: str
    spec: GangSpec


@dataclass(frozen=True, slots=True)
class EndGang:
    """Give all leases back; tasks of the gang that have not ended are cancelled."""

    gang_id: str


@dataclass(frozen=True, slots=True)
class ResizeGang:
    """Have so many ranks: more of the last one's kind, all or none of them, or fewer, the highest
    first."""

    gang_id: str
    size: int


@dataclass(frozen=True, slots=True, repr=False)
class GangMember:
    """Who has a rank. `fence` is the token of its lease, `device_ids` are the devices that this
    holds. `profile` is the newest that is known of the worker; None where none is. `trips_us` has
    the round trips to the other members' workers that are known, in microseconds."""

    rank: int
    contact: Contact
    needs: Requirements
    lease_id: str
    fence: int
    device_ids: tuple[str, ...] = ()
    profile: Profile | None = None
    trips_us: tuple[tuple[PeerId, int], ...] = ()

    @property
    def peer_id(self) -> PeerId:
        return self.contact.peer_id

    @property
    def name(self) -> str:
        """What its worker goes by; empty where that is not known."""
        return "" if self.profile is None else self.profile.name

    def __repr__(self) -> str:
        """For people, who print all of them: a profile takes half a screen."""
        who = f"{self.rank}, {self.name!r}, {self.peer_id!r}"
        return f"GangMember({who}, device_ids={self.device_ids!r})"


@dataclass(frozen=True, slots=True)
class GangFormed:
    """Each rank has its member, and each member knows all others."""

    members: tuple[GangMember, ...]


@dataclass(frozen=True, slots=True)
class MemberLost:
    """Its lease has ended, and what ran there. `why` is for people."""

    rank: int
    worker: PeerId
    why: str


@dataclass(frozen=True, slots=True)
class MemberReplaced:
    """Another worker has the rank of one that was lost."""

    member: GangMember


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """The gang has grown."""

    member: GangMember


@dataclass(frozen=True, slots=True)
class MemberReleased:
    """The gang has shrunk: this rank is gone."""

    rank: int


@dataclass(frozen=True, slots=True)
class MemberUsed:
    """What the tasks of a rank use, as its worker reports it every few seconds."""

    rank: int
    usage: LeaseUsage


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """Parts of a lost member go to others."""

    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class GangNotGrown:
    """There are not workers enough for the ranks that were asked for; it stays as it was."""

    refusals: tuple[tuple[PeerId, Refusal], ...]


@dataclass(frozen=True, slots=True)
class GangEnded:
    """The last event of a gang that had formed. `why` is for people, empty where it was asked
    for."""

    why: str


@dataclass(frozen=True, slots=True)
class GangUnplaceable:
    """The last event of a gang that has not formed: there are not workers enough."""

    refusals: tuple[tuple[PeerId, Refusal], ...]


@dataclass(frozen=True, slots=True)
class GangRejected:
    """What its owner asked for cannot be done, and changes nothing."""

    why: str


GangEvent = (
    GangFormed
    | MemberLost
    | MemberReplaced
    | MemberJoined
    | MemberReleased
    | MemberUsed
    | Repartitioned
    | GangNotGrown
    | GangEnded
    | GangUnplaceable
    | GangRejected
)


@dataclass(frozen=True, slots=True)
class UsageMeasured:
    """What the tasks of these leases use now, which members of gangs have here."""

    reports: tuple[LeaseUsage, ...]


@dataclass(frozen=True, slots=True)
class JoinGang(Effect):
    """The lease is that of the gang's member with this rank, until it is fenced: let what runs
    under it reach the other members, as the newest roster has them."""

    lease_id: str
    rank: int
    roster: Roster


@dataclass(frozen=True, slots=True)
class EmitGangEvent(OwnedEvent):
    """Hands an event of a gang to its owner."""

    event: GangEvent


@dataclass(frozen=True, slots=True)
class OwnRoster(Effect):
    """What each member is told of the gang, its owner's node keeps too: streams with it go by that,
    until the gang's last event."""

    roster: Roster


# What the gangs of a peer are told, and what they want done.
GangRequest = FormGang | EndGang | ResizeGang
ToGangs = GangRequest | UsageMeasured
GangEffect = EmitGangEvent | OwnRoster | JoinGang
