"""What is known at a worker of a quota over the network, for those who look."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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


def account_in_json(account: AccountStatus) -> dict[str, Any]:
    """How much of it is handed out in the network, and to this worker."""
    quota, total, allowed = account.quota, account.total, account.allowed
    return {
        "account": account.account,
        "month": account.month,
        "verdict": account.verdict.value,
        "cpu_milli_hours": quota.cpu_milli_hours,
        "gpu_milli_hours": quota.gpu_milli_hours,
        "total_cpu_milli_s": total.cpu_milli_s,
        "total_gpu_milli_s": total.gpu_milli_s,
        "allowed_cpu_milli_s": allowed.cpu_milli_s,
        "allowed_gpu_milli_s": allowed.gpu_milli_s,
    }
