"""What an owner knows of its gangs right now: who has each rank, and what it uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from formation_p2p.core.identity import PeerId
from formation_p2p.features.gangs.core.gang import Gang, GangState
from formation_p2p.leases.core.gang_usage import LeaseUsage
from formation_p2p.leases.core.tunnel import OWNER


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
