"""How much of a worker a grant's holders may use, and the accounts that it is charged to.

Hours count over the whole network (the feature quotas), how many leases there may be at once at
each worker. What counts is what leases reserve, from their commit to their end, whether or not it
is used.

A lease is charged to several accounts, and each has to have room for it:

- the peer that holds it, for all grants that it shows together;
- each block of its grant that sets a quota, by the block's revocation id, which is its signature.
  Whatever is made of a grant, by narrowing it or by binding it to more peers, has that block in
  it: a quota is shared by all who hold a part of it, and handing a grant on multiplies nothing.
"""

from __future__ import annotations

import heapq
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import Final

from formation_p2p.machine.core.bounds import check_amount

# The name of a block's account: 128 bits, and fewer characters than any peer id has.
GRANT_DIGITS: Final = 32
# Twelve digits: more than the largest machine has in a month.
MAX_MILLI_HOURS: Final = 999_999_999_999
MAX_LEASES: Final = 9_999

_MILLI_SECONDS: Final = 3600  # of a thousandth of an hour, in thousandths of a second
# The year 5138, as for grants: a clock further on is broken, and no calendar has its month.
_MAX_UNIX_S: Final = 99_999_999_999


@dataclass(frozen=True, slots=True)
class Quota:
    """None is without limit. Hours are of one core or GPU, in thousandths, in a calendar month
    (UTC); `leases` may be held at once. Raises InvalidInput."""

    cpu_milli_hours: int | None = None
    gpu_milli_hours: int | None = None
    leases: int | None = None

    def __post_init__(self) -> None:
        for field, limit, most in (
            ("cpu hours", self.cpu_milli_hours, MAX_MILLI_HOURS),
            ("gpu hours", self.gpu_milli_hours, MAX_MILLI_HOURS),
            ("concurrent", self.leases, MAX_LEASES),
        ):
            if limit is not None:
                check_amount(field, limit, 0, most)

    def __and__(self, other: Quota) -> Quota:
        """What both allow."""
        return Quota(*map(least, astuple(self), astuple(other)))

    def exceeded(self, used: Used, takes_gpu: bool, now_unix_s: float) -> str | None:
        """Why who has used so much may use nothing more, this month."""
        cpu, gpu = self.cpu_milli_hours, self.gpu_milli_hours if takes_gpu else None
        for kind, most, milli_s in ("CPU", cpu, used.cpu_milli_s), ("GPU", gpu, used.gpu_milli_s):
            if most is not None and milli_s >= most * _MILLI_SECONDS:
                spent = f"{in_hours(milli_s)}/{format_hours(most)}"
                until = month_after(now_unix_s)
                return f"Monthly {kind} quota exceeded: {spent} hours, until {until}"
        return None

    def is_full(self, leases: int) -> str | None:
        """Why who holds so many leases may have no more of them."""
        if self.leases is None or leases < self.leases:
            return None
        return f"Concurrent task limit reached: {leases}/{self.leases}"


@dataclass(frozen=True, slots=True)
class Used:
    """Of one month: thousandths of a core, and of a GPU, times seconds."""

    cpu_milli_s: int = 0
    gpu_milli_s: int = 0

    def __add__(self, other: Used) -> Used:
        return Used(self.cpu_milli_s + other.cpu_milli_s, self.gpu_milli_s + other.gpu_milli_s)

    def __sub__(self, other: Used) -> Used:
        return Used(self.cpu_milli_s - other.cpu_milli_s, self.gpu_milli_s - other.gpu_milli_s)


UNLIMITED: Final = Quota()
NOTHING: Final = Used()


class UsedByMonth:
    """What accounts have used, in so many `months` at most, the one charged last at the end. Of too
    many accounts in all, those go that have used least in the month charged longest ago."""

    def __init__(self, max_months: int, max_accounts: int) -> None:
        self.months: dict[str, dict[str, Used]] = {}
        self._max_months = max_months
        self._max_accounts = max_accounts

    def of(self, month: str, account: str) -> Used:
        return self.months.get(month, {}).get(account, NOTHING)

    def add(self, month: str, account: str, used: Used) -> None:
        accounts = self.months[month] = self.months.pop(month, {})
        accounts[account] = accounts.get(account, NOTHING) + used
        first = next(iter(self.months))
        if sum(map(len, self.months.values())) > self._max_accounts:
            past = self.months[first]
            for least_used in heapq.nsmallest(self._max_accounts // 8, past.items(), key=_by_use):
                del past[least_used[0]]
        if not self.months[first] or len(self.months) > self._max_months:
            del self.months[first]


def _by_use(item: tuple[str, Used]) -> tuple[int, int, str]:
    account, used = item
    return used.gpu_milli_s, used.cpu_milli_s, account


@dataclass(frozen=True, slots=True)
class QuotaAccount:
    """`name` is a peer id, or 32 hexadecimal digits for a block of a grant."""

    name: str
    quota: Quota

    @property
    def is_peer(self) -> bool:
        return len(self.name) != GRANT_DIGITS


def month_of(unix_s: float) -> str:
    """The UTC calendar month, as `2026-11`. Months sort as their texts do."""
    date = datetime.fromtimestamp(min(max(unix_s, 0.0), _MAX_UNIX_S), UTC)
    return f"{date.year:04}-{date.month:02}"


def month_after(unix_s: float) -> str:
    """The first day of the month that follows, as `2026-12-01`."""
    year, month = map(int, month_of(unix_s).split("-"))
    return f"{year + month // 12:04}-{month % 12 + 1:02}-01"


def in_hours(milli_s: int) -> str:
    """`5400000` as `1.5`, cut to thousandths of an hour."""
    return format_hours(milli_s // _MILLI_SECONDS)


def format_hours(milli_hours: int) -> str:
    """`1500` as `1.5`, `1000` as `1.0`."""
    whole, rest = divmod(milli_hours, 1000)
    decimals = f"{rest:03d}".rstrip("0") or "0"
    return f"{whole}.{decimals}"


def least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
