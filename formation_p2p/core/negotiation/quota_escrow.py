"""The worker's side of quotas over the network: hours are asked for in slices, before their use.

Those who keep an account (quota_holder.py) note what each worker may use in all. A slice counts
with a majority of them. Where fewer answer, this worker's own count stands alone, as if there were
no others. What is left of a slice is given back once no lease needs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from formation_p2p.core.dht import messages as kad
from formation_p2p.core.dht.kademlia import Kademlia
from formation_p2p.core.dht.operations import OperationId, Searched
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import BadRecord
from formation_p2p.core.identity import PeerId
from formation_p2p.core.negotiation.messages import AskSlice, SliceAnswer
from formation_p2p.core.negotiation.quota_account import (
    at_least_nothing,
    highest,
    limit_of,
    lowest,
    scaled,
)
from formation_p2p.core.negotiation.quota_holder import name_of
from formation_p2p.core.negotiation.quota_parameters import EscrowParameters
from formation_p2p.core.negotiation.quota_voucher import Voucher, open_voucher
from formation_p2p.core.negotiation.session import Send
from formation_p2p.core.records.profile import SignedProfile
from formation_p2p.core.trust.network_quota import limits_hours, month_after
from formation_p2p.core.trust.quota import (
    NOTHING,
    Quota,
    QuotaAccount,
    Used,
    format_hours,
    in_hours,
    month_of,
)

CPU: Final = "CPU"
GPU: Final = "GPU"
_ONE: Final = Used(1, 1)
_NEVER: Final = float("inf")


class Verdict(StrEnum):
    """What the holders said last of an account."""

    ALONE = "alone"  # too few of them answer, or they were not asked yet
    HELD = "held"  # they noted what was asked for
    SPENT = "spent"  # nothing is left


@dataclass(slots=True)
class _Request:
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
class _Asked:
    """An account that leases here are charged to. `allowed` is what a majority noted that this
    worker may use, `total` what all may; nothing is left of the kinds that are `short`. `rate` is
    what leases reserve in a second."""

    quota: Quota
    month: str
    verdict: Verdict = Verdict.ALONE
    short: frozenset[str] = frozenset()
    allowed: Used = NOTHING
    total: Used = NOTHING
    rate: Used = NOTHING
    leases: int = 0
    grant: bytes = b""
    voucher: Voucher | None = None
    holders: tuple[Contact, ...] = ()
    looked_up_s: float = float("-inf")
    searching: OperationId | None = None
    request: _Request | None = None
    ask_s: float = float("-inf")  # not again before
    give_back_s: float = _NEVER

    @property
    def due_s(self) -> float:
        waits_s = (
            _NEVER if self.request is None else min(self.request.again_s, self.request.until_s)
        )
        return min(waits_s, self.give_back_s)


@dataclass(frozen=True, slots=True)
class AccountStatus:
    """Of an account that leases here are charged to: in all of the network, and here."""

    account: str
    month: str
    verdict: Verdict
    quota: Quota
    total: Used
    allowed: Used


class QuotaEscrow:
    """Of the worker `own`. `used` is what it has counted for an account in a month."""

    def __init__(
        self,
        own: PeerId,
        dht: Kademlia[SignedProfile],
        used: Callable[[str, str], Used],
        parameters: EscrowParameters,
    ) -> None:
        self._own = own
        self._dht = dht
        self._used = used
        self._parameters = parameters
        self._accounts: dict[str, _Asked] = {}
        self._leases: dict[str, tuple[tuple[str, ...], Used]] = {}
        self._sequence = 0
        self._sent: list[Send] = []
        self._counts: Counter[str] = Counter(dict.fromkeys(("held", "refused", "unanswered"), 0))

    def take(self) -> list[Send]:
        sent, self._sent = self._sent, []
        return sent

    @property
    def counts(self) -> Mapping[str, int]:
        """Requests, by how they ended."""
        return self._counts

    def status(self) -> tuple[AccountStatus, ...]:
        return tuple(
            AccountStatus(name, each.month, each.verdict, each.quota, each.total, each.allowed)
            for name, each in self._accounts.items()
        )

    # -- what admission tells --------------------------------------------------------------

    def began(
        self, lease_id: str, accounts: tuple[QuotaAccount, ...], reserved: Used, now: Moment
    ) -> None:
        if not accounts:
            return
        self._leases[lease_id] = tuple(each.name for each in accounts), reserved
        for each in accounts:
            asked = self._asked(each, now)
            asked.leases += 1
            asked.rate = asked.rate + reserved
            asked.give_back_s = _NEVER
            self._look(each.name, asked, now)

    def charged(self, lease_id: str, now: Moment) -> None:
        for name in self._leases.get(lease_id, ((), NOTHING))[0]:
            asked = self._accounts[name]
            self._turn(asked, now)
            self._look(name, asked, now)

    def ended(self, lease_id: str, now: Moment) -> None:
        names, reserved = self._leases.pop(lease_id, ((), NOTHING))
        for name in names:
            asked = self._accounts[name]
            asked.leases -= 1
            asked.rate = asked.rate - reserved
            if asked.leases == 0:
                asked.give_back_s = now.mono_s + self._parameters.give_back_s

    def used_up(
        self, account: QuotaAccount, used: Used, takes_gpu: bool, now: Moment
    ) -> str | None:
        asked = self._accounts.get(account.name)
        if asked is None or not limits_hours(account.quota):
            return None
        self._turn(asked, now)
        if asked.verdict is not Verdict.SPENT:
            return None
        if not asked.leases and asked.request is None and now.mono_s >= asked.ask_s:
            self._ask(account.name, asked, asked.allowed, None, now)  # is there room again?
        kinds = [(CPU, account.quota.cpu_milli_hours, used.cpu_milli_s, asked.allowed.cpu_milli_s)]
        if takes_gpu:
            most, allowed = account.quota.gpu_milli_hours, asked.allowed.gpu_milli_s
            kinds.append((GPU, most, used.gpu_milli_s, allowed))
        for kind, most, here, allowed in kinds:
            if most is not None and kind in asked.short and here >= allowed:
                return self._why(kind, most, asked, now)
        return None

    @staticmethod
    def _why(kind: str, most: int, asked: _Asked, now: Moment) -> str:
        voucher = asked.voucher
        if asked.leases and (voucher is None or not voucher.is_fresh(now.unix_s)):
            return f"{kind} quota: the grant's bearer has not signed for hours at this worker"
        total = asked.total.cpu_milli_s if kind == CPU else asked.total.gpu_milli_s
        spent = f"{in_hours(total)} of {format_hours(most)} h"
        return f"{kind} quota used in the network: {spent}, until {month_after(now.unix_s)}"

    # -- what comes ----------------------------------------------------------------------------

    def vouched(
        self, accounts: tuple[QuotaAccount, ...], grant: bytes, raw: bytes, now: Moment
    ) -> None:
        """A bearer of these accounts, which showed `grant`, has sent a voucher."""
        try:
            voucher = open_voucher(raw, now.unix_s)
        except BadRecord:
            return
        if voucher.worker != self._own:
            return
        for each in accounts:
            asked = self._asked(each, now)
            asked.grant, asked.voucher = grant, voucher

    def searched(self, completed: Searched[SignedProfile], now: Moment) -> bool:
        """Whether it was a search of this part."""
        for name, asked in self._accounts.items():
            if asked.searching == completed.operation:
                asked.searching = None
                holders = self._parameters.holders
                asked.holders = self._dht.nearest(name_of(name), completed.closest, holders)
                self._look(name, asked, now)
                return True
        return False

    def answered(self, sender: Contact, answer: SliceAnswer, now: Moment) -> None:
        asked = self._accounts.get(answer.account)
        if asked is None or asked.request is None or asked.request.sequence != answer.sequence:
            return
        if any(each.peer_id == sender.peer_id for each in asked.holders):
            asked.request.answers.setdefault(sender.peer_id, answer)
            self._judge(answer.account, asked, now, is_over=False)

    def tick(self, now: Moment) -> None:
        for name, asked in list(self._accounts.items()):
            if asked.due_s > now.mono_s:
                continue
            request = asked.request
            if request is not None and request.until_s <= now.mono_s:
                self._judge(name, asked, now, is_over=True)
            elif request is not None and request.again_s <= now.mono_s:
                request.again_s = now.mono_s + self._parameters.again_s
                self._send(name, asked, request)
            elif asked.give_back_s <= now.mono_s:
                asked.give_back_s = _NEVER
                self._give_back(name, asked, now)

    def next_timeout(self) -> float:
        return min((each.due_s for each in self._accounts.values()), default=_NEVER)

    def leave(self, now: Moment) -> None:
        """Give back what is unused; it is not waited for."""
        for name, asked in self._accounts.items():
            asked.request = None
            self._give_back(name, asked, now)
            asked.request = None

    # -- asking -------------------------------------------------------------------------------

    def _asked(self, account: QuotaAccount, now: Moment) -> _Asked:
        asked = self._accounts.get(account.name)
        if asked is None:
            if len(self._accounts) >= self._parameters.max_asked_for:
                idle = next((x for x, each in self._accounts.items() if not each.leases), None)
                self._accounts.pop(idle or "", None)
            month = month_of(now.unix_s)
            asked = self._accounts[account.name] = _Asked(account.quota, month)
        asked.quota = account.quota
        self._turn(asked, now)
        return asked

    def _turn(self, asked: _Asked, now: Moment) -> None:
        """In a new month nothing is used yet."""
        month = month_of(now.unix_s)
        if asked.month != month:
            asked.month, asked.verdict, asked.request = month, Verdict.ALONE, None
            asked.allowed = asked.total = NOTHING
            asked.short = frozenset()
            asked.ask_s = float("-inf")

    def _look(self, name: str, asked: _Asked, now: Moment) -> None:
        """Ask for the next slice, if what is left will be used up soon."""
        now_s, ours = now.mono_s, self._parameters
        if asked.request is not None or asked.searching is not None or now_s < asked.ask_s:
            return
        used = self._used(asked.month, name)
        soon = used + scaled(asked.rate, round(ours.ahead_s * 1000))
        if not asked.leases or soon == lowest(soon, highest(asked.allowed, self._unlimited(asked))):
            return
        if now_s >= asked.looked_up_s + ours.looked_up_s:
            asked.looked_up_s = now_s
            find = kad.FindNode(name_of(name))
            cause = "who keeps a quota"
            asked.searching = self._dht.search(find, now, cause, width=ours.holders)
            return
        voucher = asked.voucher
        if voucher is None or not voucher.is_fresh(now.unix_s):
            # Without its bearer's word the holders would refuse.
            asked.verdict, asked.short = Verdict.SPENT, frozenset({CPU, GPU})
            return
        _, wanted = self._plan(name, asked, voucher)
        self._ask(name, asked, wanted, voucher.raw, now)

    def _plan(self, name: str, asked: _Asked, voucher: Voucher) -> tuple[Used, Used]:
        """The least that is of use in all, and what to ask for."""
        ours, used = self._parameters, self._used(asked.month, name)
        left = at_least_nothing(limit_of(asked.quota) - highest(asked.total, used))
        part = Used(left.cpu_milli_s // ours.parts, left.gpu_milli_s // ours.parts)
        least = scaled(voucher.reserved, round(ours.least_s * 1000))
        whole = scaled(voucher.reserved, round(ours.slice_s * 1000))
        wanted = highest(asked.allowed, used + highest(least, lowest(whole, part)))
        return used + least, wanted

    @staticmethod
    def _unlimited(asked: _Asked) -> Used:
        """As much as there can be, of what the quota has no limit for."""
        limit = limit_of(asked.quota)
        cpu, gpu = asked.quota.cpu_milli_hours, asked.quota.gpu_milli_hours
        return Used(
            limit.cpu_milli_s if cpu is None else 0, limit.gpu_milli_s if gpu is None else 0
        )

    def _ask(
        self,
        name: str,
        asked: _Asked,
        wanted: Used,
        voucher: bytes | None,
        now: Moment,
        tries: int = 1,
        short: frozenset[str] = frozenset(),
    ) -> None:
        # Each is newer than the last, also across restarts.
        self._sequence = max(self._sequence + 1, int(now.unix_s * 1000))
        ours, now_s = self._parameters, now.mono_s
        again_s, until_s = now_s + ours.again_s, now_s + ours.answer_s
        asked.request = _Request(self._sequence, wanted, voucher, again_s, until_s, tries, short)
        self._send(name, asked, asked.request)
        if not asked.holders:
            self._judge(name, asked, now, is_over=True)

    def _send(self, name: str, asked: _Asked, request: _Request) -> None:
        message = AskSlice(
            name, asked.month, request.sequence, request.wanted, asked.grant, request.voucher
        )
        self._sent += (
            Send(holder, message, cause="a slice of a quota")
            for holder in asked.holders
            if holder.peer_id not in request.answers
        )

    def _give_back(self, name: str, asked: _Asked, now: Moment) -> None:
        used = lowest(asked.allowed, self._used(asked.month, name))
        if asked.request is None and used != asked.allowed:
            self._ask(name, asked, used, None, now)

    def _judge(self, name: str, asked: _Asked, now: Moment, *, is_over: bool) -> None:
        """What the answers so far come to; `is_over` where no more are waited for."""
        request, ours = asked.request, self._parameters
        if request is None:
            return
        majority = len(asked.holders) // 2 + 1
        answers = list(request.answers.values())
        kept = sum(each.is_kept for each in answers)
        if kept < majority and len(answers) < len(asked.holders) and not is_over:
            return
        asked.request = None
        if len(answers) < len(asked.holders):
            asked.looked_up_s = min(
                asked.looked_up_s, now.mono_s + ours.look_again_s - ours.looked_up_s
            )
        if len(answers) < majority:
            asked.verdict, asked.ask_s = Verdict.ALONE, now.mono_s + ours.alone_s
            self._counts["unanswered"] += 1
            return
        asked.total = _common([each.total for each in answers], len(answers) // 2 + 1)
        if kept >= majority:
            self._held(asked, request, now)
            return
        could = _common([each.could for each in answers], majority)
        self._refused(name, asked, request, could, kept, now)

    def _held(self, asked: _Asked, request: _Request, now: Moment) -> None:
        asked.allowed = request.wanted
        short = request.short if request.voucher is not None else _without_room(asked)
        self._settled(asked, short, now)

    def _refused(
        self, name: str, asked: _Asked, request: _Request, could: Used, kept: int, now: Moment
    ) -> None:
        """Ask for less, or see that nothing is left."""
        voucher = asked.voucher
        if request.voucher is None or voucher is None:
            self._settled(asked, _without_room(asked), now)
            return
        least, wanted = self._plan(name, asked, voucher)
        smaller = lowest(could, wanted)
        short = _short(could, least, voucher.reserved)
        grows = smaller != lowest(smaller, asked.allowed)
        if grows and request.tries < self._parameters.tries:
            self._ask(name, asked, smaller, voucher.raw, now, request.tries + 1, short)
            return
        self._settled(asked, short, now)
        if kept:  # some noted what counts for nothing
            self._ask(name, asked, asked.allowed, None, now)

    def _settled(self, asked: _Asked, short: frozenset[str], now: Moment) -> None:
        asked.short = short
        asked.verdict = Verdict.SPENT if short else Verdict.HELD
        if short:
            asked.ask_s = now.mono_s + self._parameters.spent_s
        self._counts["refused" if short else "held"] += 1


def _without_room(asked: _Asked) -> frozenset[str]:
    return _short(at_least_nothing(limit_of(asked.quota) - asked.total), _ONE, _ONE)


def _short(has: Used, least: Used, reserved: Used) -> frozenset[str]:
    """Of what is reserved, the kinds of which there is less than the least."""
    short = set()
    if reserved.cpu_milli_s and has.cpu_milli_s < least.cpu_milli_s:
        short.add(CPU)
    if reserved.gpu_milli_s and has.gpu_milli_s < least.gpu_milli_s:
        short.add(GPU)
    return frozenset(short)


def _common(amounts: list[Used], enough: int) -> Used:
    """The most that so many of them reach."""
    cpu = sorted((each.cpu_milli_s for each in amounts), reverse=True)
    gpu = sorted((each.gpu_milli_s for each in amounts), reverse=True)
    return Used(cpu[enough - 1], gpu[enough - 1])
