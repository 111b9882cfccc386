"""What the tasks of a gang's member use, as its worker reports it to the owner of the lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from formation_p2p.features.gangs.core.roster import MAX_MEMBERS, OWNER
from formation_p2p.machine.core.bounds import MAX_CPU_MILLI, MAX_MEMORY_BYTES
from formation_p2p.records.core.codec import MAX_INT
from formation_p2p.records.core.schema import integer, items, record, text

# In one message: leases of one owner on one worker.
MAX_REPORTS: Final = 100
_MAX_LEASE_ID_CHARS: Final = 128
_Bytes = Annotated[int, integer(0, MAX_INT)]


@dataclass(frozen=True, slots=True)
class LinkBytes:
    """Since the lease began, on streams with the member of this rank, or with the owner."""

    rank: Annotated[int, integer(OWNER, MAX_MEMBERS - 1)]
    sent_bytes: _Bytes
    received_bytes: _Bytes


@dataclass(frozen=True, slots=True)
class LeaseUsage:
    """`cpu_milli` is the mean since the last report, in thousandths of a core; `memory_bytes` is in
    use now."""

    lease_id: Annotated[str, text(_MAX_LEASE_ID_CHARS)]
    fence: Annotated[int, integer(0, MAX_INT)]
    cpu_milli: Annotated[int, integer(0, MAX_CPU_MILLI)]
    memory_bytes: Annotated[int, integer(0, MAX_MEMORY_BYTES)]
    links: Annotated[tuple[LinkBytes, ...], items(record(LinkBytes), MAX_MEMBERS + 1)] = ()
