"""What owners and members of gangs say to each other, in the work protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from formation_p2p.features.gangs.core.roster import MAX_MEMBERS, Roster
from formation_p2p.features.gangs.core.usage import MAX_REPORTS, LeaseUsage
from formation_p2p.leases.core.messages import (
    OFFER_SLOT,
    PEER_ID,
    REQUEST_SLOT,
    WORK,
    Count,
    Id,
    WorkMessage,
)
from formation_p2p.placement.core.round_trips import MAX_RTT_US
from formation_p2p.records.core.schema import integer, items, pair, record

# Workers that a gang of 64 members, chosen of three times as many, asks at once.
MAX_OTHERS: Final = 192
# Beside a request for a member: who else is asked, as far as it matters how far they are. Beside
# its offer: the round trips that the worker has measured to these, by their places.
REQUEST_SLOT.fill(items(PEER_ID, MAX_OTHERS))
OFFER_SLOT.fill(items(pair(integer(0, MAX_OTHERS - 1), integer(1, MAX_RTT_US)), MAX_OTHERS))


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
