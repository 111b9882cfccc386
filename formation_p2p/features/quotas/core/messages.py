"""What workers and the holders of accounts say to each other, in the work protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from formation_p2p.core.identity import PeerId
from formation_p2p.features.quotas.core.quota_voucher import MAX_VOUCHER_BYTES
from formation_p2p.leases.core.messages import PEER_ID, WORK, Count, Flag, WorkMessage
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.records.core.schema import integer, items, octets, record, text
from formation_p2p.trust.core.quota import Used

# Workers that one quota is counted for, at 60 bytes each.
MAX_ROWS: Final = 1024
# A peer id, or 32 digits of a grant's block (trust/core/quota.py).
_MAX_ACCOUNT_CHARS: Final = 64
# Thousandths of a core-second in a month: more than all machines of a network have.
MAX_MILLI_S: Final = 10**17

_USED: Final = record(
    Used,
    {"cpu_milli_s": integer(0, MAX_MILLI_S), "gpu_milli_s": integer(0, MAX_MILLI_S)},
)
Account = Annotated[str, text(_MAX_ACCOUNT_CHARS)]
Month = Annotated[str, text(7)]  # such as 2026-11


@WORK.message(50, urgent=True)
@dataclass(frozen=True, slots=True)
class AskSlice(WorkMessage):
    """Let me have used so much of this account in this month, in all: the newest `sequence` of mine
    counts. To have more than before takes a voucher of the grant's bearer."""

    account: Account
    month: Month
    sequence: Count
    wanted: Annotated[Used, _USED]
    grant: Annotated[bytes, octets(MAX_GRANT_BYTES)]
    voucher: Annotated[bytes | None, octets(MAX_VOUCHER_BYTES, trailing=True)] = None


@WORK.message(51, urgent=True)
@dataclass(frozen=True, slots=True)
class SliceAnswer(WorkMessage):
    """Whether I have noted that; how much of it you could have, and how much of the account is
    handed out to all."""

    account: Account
    month: Month
    sequence: Count
    is_kept: Flag
    could: Annotated[Used, _USED]
    total: Annotated[Used, _USED]


@WORK.message(52)
@dataclass(frozen=True, slots=True)
class AskAccount(WorkMessage):
    """What have you noted of this account? Asked by one that is to keep it too, on this grant."""

    account: Account
    month: Month
    grant: Annotated[bytes, octets(MAX_GRANT_BYTES)]


@dataclass(frozen=True, slots=True)
class SliceRow:
    """What a worker may use of an account, in all, as of its newest request."""

    worker: Annotated[PeerId, PEER_ID]
    sequence: Count
    used: Annotated[Used, _USED]


@WORK.message(53)
@dataclass(frozen=True, slots=True)
class AccountRows(WorkMessage):
    """What I have noted of an account; `is_known` is false where I was never asked for any."""

    account: Account
    month: Month
    is_known: Flag
    rows: Annotated[tuple[SliceRow, ...], items(record(SliceRow), MAX_ROWS)]


ToHolder = AskSlice | AskAccount | AccountRows
QuotaMessage = ToHolder | SliceAnswer
