"""The holder's side of quotas over the network: the accounts that a peer keeps for others.

The k peers nearest to an account's name keep it, each by itself. A peer that is asked for one that
it does not know learns it from the others first. A worker shows the grant, whose quota counts, and
to have more than before, a voucher of its bearer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, assert_never

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import BadRecord
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import key_of
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.features.quotas.core.messages import (
    AccountRows,
    AskAccount,
    AskSlice,
    SliceAnswer,
    SliceRow,
    ToHolder,
)
from formation_p2p.features.quotas.core.quota_account import KeptAccount, SavedAccount, limit_of
from formation_p2p.features.quotas.core.quota_parameters import EscrowParameters
from formation_p2p.features.quotas.core.quota_voucher import Voucher, open_voucher
from formation_p2p.leases.core.limits import Limits
from formation_p2p.leases.core.session import Send
from formation_p2p.records.core.profile import SignedProfile
from formation_p2p.records.core.signed_fields import MAX_CLOCK_SKEW_S
from formation_p2p.trust.core.grants import GrantTerms, Right
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.network_quota import network_accounts
from formation_p2p.trust.core.quota import NOTHING, Quota, Used, month_of

_ALL: Final = ""


def name_of(account: str) -> bytes:
    """The name whose nearest peers keep an account."""
    return f"quota {account}".encode()


class _Name(NamedTuple):
    account: str
    month: str


class _Asked(NamedTuple):
    """A request that is good."""

    sender: Contact
    message: AskSlice
    quota: Quota
    voucher: Voucher | None


@dataclass(slots=True)
class _Learning:
    """What the others know is waited for until then; so are the workers that asked."""

    until_s: float
    holders: int
    asked: set[PeerId]
    answers: list[Sequence[SliceRow]] = field(default_factory=list)
    waiting: dict[PeerId, _Asked] = field(default_factory=dict)


class QuotaHolder:
    """Of the peer `own`, which shows its `grant` to other holders."""

    def __init__(
        self,
        own: PeerId,
        dht: Kademlia[SignedProfile],
        membership: Membership,
        grant: Callable[[], bytes],
        parameters: EscrowParameters,
    ) -> None:
        ours = parameters
        self._own = own
        self._dht = dht
        self._membership = membership
        self._grant = grant
        self._parameters = parameters
        self._accounts: dict[_Name, KeptAccount] = {}  # the one asked for longest ago first
        self._rows = 0  # of all accounts
        self._unsaved: set[_Name] = set()  # of these
        self._learning: dict[_Name, _Learning] = {}
        self._from_peer = Limits(ours.max_from_peer, ours.window_s, ours.max_counted)
        self._from_invitation = Limits(ours.max_from_invitation, ours.window_s, ours.max_counted)
        self._from_all = Limits(ours.max_from_all, ours.window_s, 1)

    def __len__(self) -> int:
        return len(self._accounts)

    def recalled(self, saved: Iterable[SavedAccount], now: Moment) -> None:
        """An earlier run of this node kept these."""
        for each in saved:
            name, ours = _Name(each.account, each.month), self._parameters
            if (
                _is_now(each.month, now)
                and name not in self._accounts
                and len(self._accounts) < ours.max_accounts
            ):
                account = self._accounts[name] = KeptAccount(each.invitation, ours.max_bearers)
                account.recall(each.rows)
                self._bound(len(account))

    def unsaved(self) -> list[SavedAccount]:
        """Those that have changed since they were asked for so."""
        names, self._unsaved = self._unsaved & self._accounts.keys(), set()
        return [
            SavedAccount(*name, self._accounts[name].invitation, self._accounts[name].rows())
            for name in names
        ]

    def received(self, sender: Contact, message: ToHolder, now: Moment) -> list[Send]:
        """Nothing is answered to one that is not of this network, or says too much."""
        match message:
            case AskSlice() | AskAccount() if not self._from_peer.admits(
                sender.peer_id, now.mono_s
            ):
                return []
            case AskSlice():
                return self._asked(sender, message, now)
            case AskAccount():
                return self._told(sender, message, now)
            case AccountRows():
                return self._learnt(sender, message, now)
            case _:
                assert_never(message)

    def tick(self, now: Moment) -> list[Send]:
        late = [name for name, each in self._learning.items() if each.until_s <= now.mono_s]
        return [sent for name in late for sent in self._known(name, now)]

    def next_timeout(self) -> float:
        return min((each.until_s for each in self._learning.values()), default=float("inf"))

    def undelivered(self, to: PeerId, now: Moment) -> list[Send]:
        """What a holder was asked did not reach it: it is not waited for."""
        sent: list[Send] = []
        for name in [name for name, each in self._learning.items() if to in each.asked]:
            self._learning[name].asked.remove(to)
            if not self._learning[name].asked:
                sent += self._known(name, now)
        return sent

    def _has_time(self, terms: GrantTerms, now: Moment) -> bool:
        """For one more request. Strangers, who are without end, do not use it up; nor does a peer
        with a copy of a grant, for the bearers of other invitations."""
        is_in_turn = self._from_invitation.admits(terms.invitation, now.mono_s)
        return is_in_turn and self._from_all.admits(_ALL, now.mono_s)

    def _asked(self, sender: Contact, message: AskSlice, now: Moment) -> list[Send]:
        terms = self._membership.terms_if_any(message.grant)
        if terms is None or not _is_now(message.month, now) or not self._has_time(terms, now):
            return []
        charter = self._membership.charter
        quotas = {each.name: each.quota for each in network_accounts(terms, charter)}
        quota = quotas.get(message.account)
        if quota is None:
            return []
        voucher = self._voucher(sender.peer_id, message, terms, now)
        asked = _Asked(sender, message, quota, voucher)
        name = _Name(message.account, message.month)
        sent: list[Send] = []
        if name not in self._accounts:
            if voucher is None:
                answer = _answer(message, False, limit_of(quota), NOTHING)
                return [Send(sender, answer, cause="an account that is not known here")]
            sent = self._begin(name, terms.invitation, now)
        elif self._accounts[name].learnt_s + self._parameters.learn_again_s <= now.mono_s:
            sent = self._ask_others(name, now)
        learning = self._learning.get(name)
        if learning is None:
            return [*sent, self._noted(asked, now)]
        if sender.peer_id in learning.waiting or (
            len(learning.waiting) < self._parameters.max_waiting
        ):
            learning.waiting[sender.peer_id] = asked
        return sent

    def _noted(self, asked: _Asked, now: Moment) -> Send:
        message, worker = asked.message, asked.sender.peer_id
        name = _Name(message.account, message.month)
        account = self._accounts[name] = self._accounts.pop(name)
        before = len(account)
        noted = account.note(
            *(worker, message.sequence, message.wanted, asked.quota, asked.voucher, now.unix_s)
        )
        self._unsaved.add(name)
        answer = _answer(message, noted.is_kept, noted.could, account.total)
        self._bound(len(account) - before)
        return Send(asked.sender, answer, cause=f"{worker} asks for a slice")

    def _begin(self, name: _Name, invitation: str, now: Moment) -> list[Send]:
        """Keep an account from now on: what others have noted comes first."""
        for over in [each for each in self._accounts if not _is_now(each.month, now)]:
            self._forget(over)
        ours = self._parameters
        of_it = [n for n, each in self._accounts.items() if each.invitation == invitation]
        if len(of_it) >= ours.max_of_invitation:
            self._forget(of_it[0])
        elif len(self._accounts) >= ours.max_accounts:
            self._forget(next(iter(self._accounts)))
        self._accounts[name] = KeptAccount(invitation, ours.max_bearers)
        return self._ask_others(name, now)

    def _ask_others(self, name: _Name, now: Moment) -> list[Send]:
        """Workers do not all find the same holders, and what one is told may be lost: so each looks
        now and then at what the others have noted, before it answers."""
        if name in self._learning:
            return []
        ours = self._parameters
        key = name_of(name.account)
        known = self._dht.table.closest(key_of(key), self._dht.parameters.k)
        holders = self._dht.nearest(key, known, ours.holders)
        others = [each for each in holders if each.peer_id != self._own]
        if not others:
            self._accounts[name].learn((), 1, now.mono_s)
            return []
        self._learning[name] = _Learning(
            now.mono_s + ours.learn_s, len(others) + 1, {each.peer_id for each in others}
        )
        ask = AskAccount(name.account, name.month, self._grant())
        return [Send(other, ask, cause="an account to keep") for other in others]

    def _forget(self, name: _Name) -> None:
        self._rows -= len(self._accounts.pop(name))
        self._learning.pop(name, None)

    def _bound(self, more: int) -> None:
        """The account that was asked for last has so many rows more, and stays."""
        self._rows += more
        while self._rows > self._parameters.max_rows and len(self._accounts) > 1:
            self._forget(next(iter(self._accounts)))

    def _told(self, sender: Contact, message: AskAccount, now: Moment) -> list[Send]:
        if (
            self._membership.denies_membership(message.grant, sender.peer_id, now) is not None
            or (terms := self._membership.terms_if_any(message.grant)) is None
            or not self._has_time(terms, now)
        ):
            return []
        name = _Name(message.account, message.month)
        account = self._accounts.get(name)
        is_known = account is not None and account.learnt_s > float("-inf")
        rows = account.rows() if account is not None and is_known else ()
        answer = AccountRows(message.account, message.month, is_known, rows)
        return [Send(sender, answer, cause=f"{sender.peer_id} keeps the account too")]

    def _learnt(self, sender: Contact, message: AccountRows, now: Moment) -> list[Send]:
        name = _Name(message.account, message.month)
        learning = self._learning.get(name)
        if learning is None or sender.peer_id not in learning.asked:
            return []
        learning.asked.remove(sender.peer_id)
        if message.is_known:
            learning.answers.append(message.rows)
        return [] if learning.asked else self._known(name, now)

    def _known(self, name: _Name, now: Moment) -> list[Send]:
        """The others have said what they know, or do not."""
        learning = self._learning.pop(name)
        account = self._accounts[name] = self._accounts.pop(name)
        before = len(account)
        account.learn(learning.answers, learning.holders, now.mono_s)
        self._unsaved.add(name)
        self._bound(len(account) - before)
        return [self._noted(asked, now) for asked in learning.waiting.values()]

    def _voucher(
        self, worker: PeerId, message: AskSlice, terms: GrantTerms, now: Moment
    ) -> Voucher | None:
        """The one shown, if it is by the grant's bearer, for this worker."""
        if message.voucher is None:
            return None
        try:
            voucher = open_voucher(message.voucher, now.unix_s)
        except BadRecord:
            return None
        bearer = voucher.bearer
        if voucher.worker != worker or bearer != terms.bound_to:
            return None
        denied = self._membership.denies(message.grant, bearer, Right.SUBMIT, now)
        return voucher if denied is None else None


def _is_now(month: str, now: Moment) -> bool:
    """Whether it is this month for someone whose clock is about right."""
    skew_s = MAX_CLOCK_SKEW_S
    return month in (month_of(now.unix_s - skew_s), month_of(now.unix_s + skew_s))


def _answer(message: AskSlice, is_kept: bool, could: Used, total: Used) -> SliceAnswer:
    return SliceAnswer(message.account, message.month, message.sequence, is_kept, could, total)
