"""What is known at a worker of a quota over the network, for those who look."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from formation_p2p.trust.core.quota import Quota, Used


class Verdict(StrEnum):
    """What the holders said last of an account."""

    ALONE = "alone"  # too few of them answer, or they were not asked yet
    HELD = "held"  # they noted what was asked for
    SPENT = "spent"  # nothing is left


@dataclass(frozen=True, slots=True)
class AccountStatus:
    """Of an account that leases here are charged to: what of it is handed out to all, and here."""

    account: str
    month: str
    verdict: Verdict
    quota: Quota
    total: Used
    allowed: Used
