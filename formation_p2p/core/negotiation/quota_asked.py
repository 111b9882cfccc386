"""An account of a quota over the network, as a worker that asks for slices of it has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from formation_p2p.core.dht.operations import OperationId
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.negotiation.messages import SliceAnswer
from formation_p2p.core.negotiation.quota_account import at_least_nothing, limit_of
from formation_p2p.core.negotiation.quota_voucher import Voucher
from formation_p2p.core.trust.network_quota import month_after
from formation_p2p.core.trust.quota import (
    NOTHING,
    Quota,
    Used,
    format_hours,
    in_hours,
    month_of,
)

CPU: Final = "CPU"
GPU: Final = "GPU"
_ONE: Final = Used(1, 1)
NEVER: Final = float("inf")


class Verdict(StrEnum):
    """What the holders said last of an account."""

    ALONE = "alone"  # too few of them answer, or they were not asked yet
    HELD = "held"  # they noted what was asked for
    SPENT = "spent"  # nothing is left


@dataclass(slots=True)
class Request:
    """To all holders, until a majority has said the same. Where it is noted, the kinds that are
    `short` last no longer."""

    sequence: int
    wanted: Used
    voucher: bytes | None
    again_s: float
    until_s: float
    tries: int
    short: frozenset[str]
    answers: dict[PeerId, SliceAnswer] = field(default_factory=dict)


@dataclass(slots=True)
class AskedFor:
    """An account that leases here are charged to. `allowed` is what a majority noted that this
    worker may use, `total` what all may; nothing is left of the kinds that are `short`. `rate` is
    what leases reserve in a second; the holders are not told of what is this worker's `own` count.
    """

    quota: Quota
    month: str
    verdict: Verdict = Verdict.ALONE
    short: frozenset[str] = frozenset()
    allowed: Used = NOTHING
    total: Used = NOTHING
    rate: Used = NOTHING
    own: Used = NOTHING
    leases: int = 0
    grant: bytes = b""
    voucher: Voucher | None = None
    holders: tuple[Contact, ...] = ()
    looked_up_s: float = float("-inf")
    searching: OperationId | None = None
    request: Request | None = None
    # What a majority has noted, for those holders that have not answered: each that does not know
    # of it would hand out as much again.
    noted: Request | None = None
    ask_s: float = float("-inf")  # not again before
    give_back_s: float = NEVER

    @property
    def due_s(self) -> float:
        waiting = [each for each in (self.request, self.noted) if each is not None]
        return min([self.give_back_s, *(min(x.again_s, x.until_s) for x in waiting)])

    def turn(self, now: Moment) -> None:
        """In a new month nothing is used yet."""
        month = month_of(now.unix_s)
        if self.month != month:
            self.month, self.verdict = month, Verdict.ALONE
            self.request = self.noted = None
            self.allowed = self.total = self.own = NOTHING
            self.short = frozenset()
            self.ask_s = float("-inf")

    def lasts(self, soon: Used) -> bool:
        """Whether so much may be used, as far as the quota has a limit for it."""
        cpu, gpu = self.quota.cpu_milli_hours, self.quota.gpu_milli_hours
        return (cpu is None or soon.cpu_milli_s <= self.allowed.cpu_milli_s) and (
            gpu is None or soon.gpu_milli_s <= self.allowed.gpu_milli_s
        )

    def without_room(self) -> frozenset[str]:
        """The kinds of which all is handed out."""
        return short_of(at_least_nothing(limit_of(self.quota) - self.total), _ONE, _ONE)

    def has_word(self, now: Moment) -> bool:
        """Whether its bearer has signed for hours lately."""
        return self.voucher is not None and self.voucher.is_fresh(now.unix_s)

    def why_used_up(self, used: Used, takes_gpu: bool, now: Moment) -> str | None:
        """Why who has used so much here may use nothing more."""
        kinds = [(CPU, self.quota.cpu_milli_hours, used.cpu_milli_s, self.allowed.cpu_milli_s)]
        if takes_gpu:
            most, allowed = self.quota.gpu_milli_hours, self.allowed.gpu_milli_s
            kinds.append((GPU, most, used.gpu_milli_s, allowed))
        for kind, limit, here, most_here in kinds:
            if limit is not None and kind in self.short and here >= most_here:
                return self._why(kind, limit, now)
        return None

    def _why(self, kind: str, limit: int, now: Moment) -> str:
        total = self.total.cpu_milli_s if kind == CPU else self.total.gpu_milli_s
        spent = f"{in_hours(total)} of {format_hours(limit)} h"
        return f"{kind} quota used in the network: {spent}, until {month_after(now.unix_s)}"


@dataclass(frozen=True, slots=True)
class AccountStatus:
    """Of an account that leases here are charged to: in all of the network, and here."""

    account: str
    month: str
    verdict: Verdict
    quota: Quota
    total: Used
    allowed: Used


def short_of(has: Used, least: Used, reserved: Used) -> frozenset[str]:
    """Of what is reserved, the kinds of which there is less than the least."""
    short = set()
    if reserved.cpu_milli_s and has.cpu_milli_s < least.cpu_milli_s:
        short.add(CPU)
    if reserved.gpu_milli_s and has.gpu_milli_s < least.gpu_milli_s:
        short.add(GPU)
    return frozenset(short)
