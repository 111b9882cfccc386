"""What owners and members of gangs say to each other, in the work protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from formation_p2p.leases.core.gang_usage import MAX_REPORTS, LeaseUsage
from formation_p2p.leases.core.messages import WORK, Count, Id, WorkMessage
from formation_p2p.leases.core.roster import MAX_MEMBERS, Roster
from formation_p2p.records.core.schema import integer, items, record


@WORK.message(22)
@dataclass(frozen=True, slots=True)
class Enlist(WorkMessage):
    """The lease is that of a gang's member with this rank: who its members are, from now on."""

    lease_id: Id
    fence: Count
    rank: Annotated[int, integer(0, MAX_MEMBERS - 1)]
    roster: Annotated[Roster, record(Roster)]


@WORK.message(23)
@dataclass(frozen=True, slots=True)
class ReportUsage(WorkMessage):
    """What members of the receiver's gangs use, by the leases that it has of the sender. Told every
    few seconds, and not again where it is lost."""

    reports: Annotated[tuple[LeaseUsage, ...], items(record(LeaseUsage), MAX_REPORTS)]


GangMessage = Enlist | ReportUsage
