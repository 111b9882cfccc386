"""The worker's side of quotas over the network: hours are asked for in slices, before their use.

Those who keep an account (quota_holder.py) note what each worker may use in all. A slice counts
with a majority of them. Where fewer answer, this worker's own count stands alone, as if there were
no others. What is left of a slice is given back once no lease needs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import BadRecord
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.dht.core.operations import OperationId, Searched
from formation_p2p.features.quotas.core.messages import AskSlice, SliceAnswer
from formation_p2p.features.quotas.core.quota_account import (
    at_least_nothing,
    highest,
    limit_of,
    lowest,
    scaled,
)
from formation_p2p.features.quotas.core.quota_holder import name_of
from formation_p2p.features.quotas.core.quota_parameters import EscrowParameters
from formation_p2p.features.quotas.core.quota_status import AccountStatus, Verdict
from formation_p2p.features.quotas.core.quota_voucher import Voucher, open_voucher
from formation_p2p.leases.core.session import Send
from formation_p2p.records.core.profile import SignedProfile
from formation_p2p.trust.core.network_quota import NetworkCount
from formation_p2p.trust.core.quota import (
    NOTHING,
    Quota,
    QuotaAccount,
    Used,
    format_hours,
    in_hours,
    month_after,
    month_of,
)

_CPU: Final = "CPU"
_GPU: Final = "GPU"
_ONE: Final = Used(1, 1)
_NEVER: Final = float("inf")


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
class _AskedFor:
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
    silent: frozenset[PeerId] = frozenset()
    looked_up_s: float = float("-inf")
    searching: OperationId | None = None
    request: _Request | None = None
    # What a majority has noted, for those holders that have not answered: each that does not know
    # of it would hand out as much again.
    noted: _Request | None = None
    ask_s: float = float("-inf")  # not again before
    give_back_s: float = _NEVER

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
        return _short_of(at_least_nothing(limit_of(self.quota) - self.total), _ONE, _ONE)

    def has_word(self, now: Moment) -> bool:
        """Whether its bearer has signed for hours lately."""
        return self.voucher is not None and self.voucher.is_fresh(now.unix_s)

    def why_used_up(self, used: Used, takes_gpu: bool, now: Moment) -> str | None:
        """Why who has used so much here may use nothing more."""
        kinds = [(_CPU, self.quota.cpu_milli_hours, used.cpu_milli_s, self.allowed.cpu_milli_s)]
        if takes_gpu:
            most, allowed = self.quota.gpu_milli_hours, self.allowed.gpu_milli_s
            kinds.append((_GPU, most, used.gpu_milli_s, allowed))
        for kind, limit, here, most_here in kinds:
            if limit is not None and kind in self.short and here >= most_here:
                return self._why(kind, limit, now)
        return None

    def _why(self, kind: str, limit: int, now: Moment) -> str:
        total = self.total.cpu_milli_s if kind == _CPU else self.total.gpu_milli_s
        spent = f"{in_hours(total)} of {format_hours(limit)} h"
        return f"{kind} quota used in the network: {spent}, until {month_after(now.unix_s)}"


@dataclass(frozen=True, slots=True)
class _Lease:
    """It is charged to accounts, and reserves so much each second."""

    bearer: PeerId
    accounts: tuple[str, ...]
    reserved: Used


class QuotaEscrow(NetworkCount):
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
        self._accounts: dict[str, _AskedFor] = {}
        self._leases: dict[str, _Lease] = {}
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
        self,
        lease_id: str,
        bearer: PeerId,
        accounts: tuple[QuotaAccount, ...],
        reserved: Used,
        now: Moment,
    ) -> None:
        if not accounts:
            return
        self._leases[lease_id] = _Lease(bearer, tuple(each.name for each in accounts), reserved)
        for each in accounts:
            asked = self._asked(each, now)
            asked.leases += 1
            asked.rate = asked.rate + reserved
            asked.give_back_s = _NEVER
            self._look(each.name, asked, now)

    def charged(self, lease_id: str, now: Moment) -> None:
        lease = self._leases.get(lease_id)
        for name in () if lease is None else lease.accounts:
            asked = self._accounts[name]
            asked.turn(now)
            self._look(name, asked, now)

    def ended(self, lease_id: str, now: Moment) -> None:
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return
        for name in lease.accounts:
            asked = self._accounts[name]
            asked.leases -= 1
            asked.rate = asked.rate - lease.reserved
            if asked.leases == 0:
                asked.give_back_s = now.mono_s + self._parameters.give_back_s

    def used_up(
        self, account: QuotaAccount, used: Used, takes_gpu: bool, now: Moment
    ) -> str | None:
        asked = self._accounts.get(account.name)
        if asked is None:
            return None
        asked.turn(now)
        used = at_least_nothing(used - asked.own)
        if asked.leases and not asked.has_word(now) and not asked.lasts(used):
            return "the grant's bearer has not signed for the hours of its quota at this worker"
        if asked.verdict is not Verdict.SPENT:
            return None
        if not asked.leases and asked.request is None and now.mono_s >= asked.ask_s:
            self._ask(account.name, asked, asked.allowed, None, now)  # is there room again?
        return asked.why_used_up(used, takes_gpu, now)

    # -- what comes ----------------------------------------------------------------------------

    def extended(
        self,
        bearer: PeerId,
        accounts: tuple[QuotaAccount, ...],
        grant: bytes,
        extension: bytes,
        now: Moment,
    ) -> None:
        """The bearer of a grant, which has these accounts, has sent a voucher."""
        try:
            voucher = open_voucher(extension, now.unix_s)
        except BadRecord:
            return
        if (voucher.bearer, voucher.worker) != (bearer, self._own):
            return
        reserved = NOTHING
        for lease in self._leases.values():
            if lease.bearer == bearer:
                reserved = reserved + lease.reserved
        if voucher.reserved != highest(voucher.reserved, reserved):
            return  # the holders would note less than is used
        for each in accounts:
            asked = self._asked(each, now)
            asked.grant, asked.voucher = grant, voucher

    def searched(self, completed: Searched[SignedProfile], now: Moment) -> bool:
        """Whether it was a search of this part."""
        for name, asked in self._accounts.items():
            if asked.searching == completed.operation:
                asked.searching = None
                holders = self._parameters.holders
                # A search may miss one whose answer is lost.
                known = [each for each in asked.holders if each.peer_id not in asked.silent]
                found = {each.peer_id: each for each in (*known, *completed.closest)}
                asked.holders = self._dht.nearest(name_of(name), found.values(), holders)
                self._look(name, asked, now)
                return True
        return False

    def answered(self, sender: Contact, answer: SliceAnswer, now: Moment) -> None:
        asked = self._accounts.get(answer.account)
        if asked is None or all(each.peer_id != sender.peer_id for each in asked.holders):
            return
        request, noted = asked.request, asked.noted
        if request is not None and request.sequence == answer.sequence:
            request.answers.setdefault(sender.peer_id, answer)
            self._judge(answer.account, asked, request, now, is_over=False)
        elif noted is not None and noted.sequence == answer.sequence:
            noted.answers.setdefault(sender.peer_id, answer)
            if len(noted.answers) == len(asked.holders):
                asked.noted = None

    def tick(self, now: Moment) -> None:
        for name, asked in list(self._accounts.items()):
            if asked.due_s > now.mono_s:
                continue
            request, noted = asked.request, asked.noted
            if request is not None and request.until_s <= now.mono_s:
                self._judge(name, asked, request, now, is_over=True)
            elif noted is not None and noted.until_s <= now.mono_s:
                asked.noted = None
                self._look_up_soon(asked, noted, now)
            else:
                for each in (request, noted):
                    if each is not None and each.again_s <= now.mono_s:
                        each.again_s = now.mono_s + self._parameters.again_s
                        self._send(name, asked, each)
            if asked.give_back_s <= now.mono_s:
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

    def _asked(self, account: QuotaAccount, now: Moment) -> _AskedFor:
        asked = self._accounts.get(account.name)
        if asked is None:
            if len(self._accounts) >= self._parameters.max_asked_for:
                idle = next((x for x, each in self._accounts.items() if not each.leases), None)
                self._accounts.pop(idle or "", None)
            month = month_of(now.unix_s)
            # What an earlier incarnation used was noted then: it is not to be given back.
            asked = _AskedFor(account.quota, month, allowed=self._used(month, account.name))
            self._accounts[account.name] = asked
        asked.quota = account.quota
        asked.turn(now)
        return asked

    def _look_up_soon(self, asked: _AskedFor, request: _Request, now: Moment) -> None:
        """One of the holders does not answer: there may be others by now."""
        ours = self._parameters
        soon_s = now.mono_s + ours.look_again_s - ours.looked_up_s
        asked.looked_up_s = min(asked.looked_up_s, soon_s)
        holders = {each.peer_id for each in asked.holders}
        asked.silent = frozenset(holders - request.answers.keys())

    def _counted(self, name: str, asked: _AskedFor) -> Used:
        """What was used here, but for what was used while this worker counted alone."""
        return at_least_nothing(self._used(asked.month, name) - asked.own)

    def _look(self, name: str, asked: _AskedFor, now: Moment) -> None:
        """Ask for the next slice, if what is left will be used up soon."""
        now_s, ours = now.mono_s, self._parameters
        if asked.request is not None or asked.searching is not None or now_s < asked.ask_s:
            return
        used = self._counted(name, asked)
        soon = used + scaled(asked.rate, round(ours.ahead_s * 1000))
        if not asked.leases or asked.lasts(soon):
            return
        if now_s >= asked.looked_up_s + ours.looked_up_s:
            asked.looked_up_s = now_s
            find = kad.FindNode(name_of(name))
            cause = "who keeps a quota"
            asked.searching = self._dht.search(find, now, cause, width=ours.holders)
            return
        voucher = asked.voucher
        if voucher is None or not asked.has_word(now):
            return  # the holders would refuse
        _, wanted = self._plan(name, asked, voucher)
        self._ask(name, asked, wanted, voucher.raw, now)

    def _plan(self, name: str, asked: _AskedFor, voucher: Voucher) -> tuple[Used, Used]:
        """The least that is of use in all, and what to ask for."""
        ours, used = self._parameters, self._counted(name, asked)
        left = at_least_nothing(limit_of(asked.quota) - highest(asked.total, used))
        part = Used(left.cpu_milli_s // ours.parts, left.gpu_milli_s // ours.parts)
        least = scaled(voucher.reserved, round(ours.least_s * 1000))
        whole = scaled(voucher.reserved, round(ours.slice_s * 1000))
        wanted = highest(asked.allowed, used + highest(least, lowest(whole, part)))
        return used + least, wanted

    def _ask(
        self,
        name: str,
        asked: _AskedFor,
        wanted: Used,
        voucher: bytes | None,
        now: Moment,
        tries: int = 1,
        short: frozenset[str] = frozenset(),
    ) -> None:
        # Each is newer than the last, also across restarts.
        self._sequence = max(self._sequence + 1, int(now.unix_s * 1000))
        ours, now_s = self._parameters, now.mono_s
        asked.noted = None
        again_s, until_s = now_s + ours.again_s, now_s + ours.answer_s
        asked.request = _Request(self._sequence, wanted, voucher, again_s, until_s, tries, short)
        self._send(name, asked, asked.request)
        if not asked.holders:
            self._judge(name, asked, asked.request, now, is_over=True)

    def _send(self, name: str, asked: _AskedFor, request: _Request) -> None:
        message = AskSlice(
            name, asked.month, request.sequence, request.wanted, asked.grant, request.voucher
        )
        self._sent += (
            Send(holder, message, cause="a slice of a quota")
            for holder in asked.holders
            if holder.peer_id not in request.answers
        )

    def _give_back(self, name: str, asked: _AskedFor, now: Moment) -> None:
        used = lowest(asked.allowed, self._counted(name, asked))
        if asked.request is None and used != asked.allowed:
            self._ask(name, asked, used, None, now)

    def _judge(
        self, name: str, asked: _AskedFor, request: _Request, now: Moment, *, is_over: bool
    ) -> None:
        """What the answers so far come to; `is_over` where no more are waited for."""
        ours = self._parameters
        majority = len(asked.holders) // 2 + 1
        answers = list(request.answers.values())
        kept = sum(each.is_kept for each in answers)
        most_kept = kept + len(asked.holders) - len(answers)
        is_decided = kept >= majority or (most_kept < majority <= len(answers))
        # One that asks for no more asks how much there is: each answer counts.
        is_decided = is_decided and request.voucher is not None
        if not is_decided and most_kept > kept and not is_over:
            return
        asked.request = None
        if is_over and len(answers) < len(asked.holders):
            self._look_up_soon(asked, request, now)
        if len(answers) < majority:
            asked.verdict, asked.ask_s = Verdict.ALONE, now.mono_s + ours.alone_s
            self._counts["unanswered"] += 1
            return
        asked.total = _common([each.total for each in answers], len(answers) // 2 + 1)
        if kept >= majority:
            asked.noted = request if len(answers) < len(asked.holders) else None
            self._held(asked, request, now)
            return
        could = _common([each.could for each in answers], majority)
        self._refused(name, asked, request, could, kept, now)

    def _held(self, asked: _AskedFor, request: _Request, now: Moment) -> None:
        asked.allowed = request.wanted
        short = request.short if request.voucher is not None else asked.without_room()
        self._settled(asked, short, now)

    def _refused(
        self, name: str, asked: _AskedFor, request: _Request, could: Used, kept: int, now: Moment
    ) -> None:
        """Ask for less, or see that nothing is left."""
        voucher = asked.voucher
        if request.voucher is None or voucher is None:
            self._settled(asked, asked.without_room(), now)
            return
        behind = at_least_nothing(self._counted(name, asked) - asked.allowed)
        most = scaled(voucher.reserved, round(self._parameters.slice_s * 1000))
        if behind != lowest(behind, most):
            # More than leases use before they are denied: it was while the holders were gone.
            asked.own = asked.own + behind
        least, wanted = self._plan(name, asked, voucher)
        smaller = lowest(could, wanted)
        short = _short_of(could, least, voucher.reserved)
        grows = smaller != lowest(smaller, asked.allowed)
        if grows and request.tries < self._parameters.tries:
            self._ask(name, asked, smaller, voucher.raw, now, request.tries + 1, short)
            return
        self._settled(asked, short, now)
        if kept:  # some noted what counts for nothing
            self._ask(name, asked, asked.allowed, None, now)

    def _settled(self, asked: _AskedFor, short: frozenset[str], now: Moment) -> None:
        asked.short = short
        asked.verdict = Verdict.SPENT if short else Verdict.HELD
        if short:
            asked.ask_s = now.mono_s + self._parameters.spent_s
        self._counts["refused" if short else "held"] += 1


def _common(amounts: list[Used], enough: int) -> Used:
    """The most that so many of them reach."""
    cpu = sorted((each.cpu_milli_s for each in amounts), reverse=True)
    gpu = sorted((each.gpu_milli_s for each in amounts), reverse=True)
    return Used(cpu[enough - 1], gpu[enough - 1])


def _short_of(has: Used, least: Used, reserved: Used) -> frozenset[str]:
    """Of what is reserved, the kinds of which there is less than the least."""
    short = set()
    if reserved.cpu_milli_s and has.cpu_milli_s < least.cpu_milli_s:
        short.add(_CPU)
    if reserved.gpu_milli_s and has.gpu_milli_s < least.gpu_milli_s:
        short.add(_GPU)
    return frozenset(short)
