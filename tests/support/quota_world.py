"""A worker's quota escrow and the holders of its accounts: the shipped parts, and messages that the
test passes on, drops or forges.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.dht.core.operations import Searched
from formation_p2p.dht.core.rpc import ResponseReceived, SendRequest
from formation_p2p.dht.core.store import RecordStore
from formation_p2p.discovery.core.finder import suits
from formation_p2p.features.quotas.core.messages import (
    AccountRows,
    AskAccount,
    AskSlice,
    SliceAnswer,
)
from formation_p2p.features.quotas.core.quota_escrow import QuotaEscrow
from formation_p2p.features.quotas.core.quota_holder import QuotaHolder
from formation_p2p.features.quotas.core.quota_parameters import EscrowParameters
from formation_p2p.features.quotas.core.quota_status import AccountStatus
from formation_p2p.features.quotas.core.quota_voucher import seal_voucher
from formation_p2p.leases.core.messages import pack, parse
from formation_p2p.leases.core.session import Send
from formation_p2p.records.core.profile import SignedProfile
from formation_p2p.trust.core.grants import Rights, issue, read_grant
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.network_quota import network_accounts
from formation_p2p.trust.core.quota import NOTHING, Quota, QuotaAccount, Used
from tests.support.dht_world import EPOCH_UNIX_S, NOW, admit_all, contact, names_in_network
from tests.support.dht_world import person as identity

ROOT = identity("root")
PARAMETERS = EscrowParameters()
# A core-hour, of one that reserves a core.
HOUR = Quota(cpu_milli_hours=1000)
HOUR_MILLI_S = 3_600_000
CORE = Used(1000, 0)
MONTH = "2023-11"  # of the tests' clock
HOLDERS = ("hanna", "hugo", "heidi", "hiro", "hal", "helga", "hasan", "hu")

Quotas = QuotaHolder | QuotaEscrow


def later(seconds: float) -> Moment:
    return Moment(NOW.mono_s + seconds, NOW.unix_s + seconds)


@cache
def grant_of(name: str, quota: Quota = HOUR, *, expires_in_s: int = 10_000_000) -> bytes:
    rights = Rights(int(EPOCH_UNIX_S) + expires_in_s, quota=quota)
    return issue(ROOT, rights, identity(name).peer_id)


def accounts_of(grant: bytes) -> tuple[QuotaAccount, ...]:
    return network_accounts(read_grant(grant, ROOT.public_key), None)


def voucher(
    by: str, worker: str, reserved: Used = CORE, at: Moment = NOW, *, early_ms: int = 0
) -> bytes:
    issued = int(at.unix_s * 1000) - early_ms
    return seal_voucher(identity(by), identity(worker).peer_id, reserved, issued)


@dataclass(slots=True)
class Passed:
    sender: Contact
    to: Contact
    message: AskSlice | SliceAnswer | AskAccount | AccountRows


class Circle:
    """Holders, and workers that ask them. `lost` says which messages never arrive."""

    def __init__(
        self, holders: tuple[str, ...] = HOLDERS, parameters: EscrowParameters = PARAMETERS
    ) -> None:
        self.parameters = parameters
        self.membership = Membership(ROOT.public_key)
        self.now = NOW
        self.lost: Callable[[Passed], bool] = lambda passed: False
        self.passed: list[Passed] = []
        self.used: dict[str, dict[str, Used]] = {}
        self.holders: dict[str, QuotaHolder] = {}
        self.escrows: dict[str, QuotaEscrow] = {}
        self._dhts: dict[str, Kademlia[SignedProfile]] = {}
        self._names: dict[PeerId, str] = {}
        for name in holders:
            self.hold(name, *holders)

    def hold(self, name: str, *known: str) -> QuotaHolder:
        """A new holder, which knows these and itself; also in place of one of that name."""
        dht = self._dht(name, *known)
        own = identity(name).peer_id
        held = self.holders[name] = QuotaHolder(
            own, dht, self.membership, lambda: grant_of(name), self.parameters
        )
        return held

    def work(self, name: str, *known: str) -> QuotaEscrow:
        """A worker, to which these are the holders."""
        dht = self._dht(name, *(known or tuple(self.holders)))
        dht.moved((), NOW)  # others cannot dial it: it keeps nothing itself
        dht.take()
        used = self.used.setdefault(name, {})
        escrow = self.escrows[name] = QuotaEscrow(
            identity(name).peer_id,
            dht,
            lambda month, account: used.get(account, NOTHING),
            self.parameters,
        )
        return escrow

    def meet(self) -> None:
        """All know all holders from now on."""
        for name, dht in self._dhts.items():
            for each in self.holders.keys() - {name}:
                dht.table.saw(contact(each), self.now.mono_s)

    def _dht(self, name: str, *known: str) -> Kademlia[SignedProfile]:
        own = identity(name).peer_id
        self._names[own] = name
        store = RecordStore(admit_all, names_in_network, suits)
        dht = self._dhts[name] = Kademlia(own, store, random.Random(name))
        for each in known:
            if each != name:
                dht.table.saw(contact(each), NOW.mono_s)
        return dht

    def vouch(self, name: str, by: str, grant: bytes, reserved: Used = CORE) -> None:
        self.escrows[name].extended(
            identity(by).peer_id,
            accounts_of(grant),
            grant,
            voucher(by, name, reserved, self.now),
            self.now,
        )

    def lease(self, name: str, by: str, grant: bytes, reserved: Used = CORE) -> None:
        """A bearer commits to a lease of a worker, which is named after him."""
        self.vouch(name, by, grant, reserved)
        self.escrows[name].began(by, identity(by).peer_id, accounts_of(grant), reserved, self.now)
        self.settle()

    def use(self, name: str, by: str, grant: bytes, used: Used) -> None:
        """What its leases used is counted, and renewed with a new voucher."""
        self.vouch(name, by, grant)
        for account in accounts_of(grant):
            before = self.used[name].get(account.name, NOTHING)
            self.used[name][account.name] = before + used
        self.escrows[name].charged(by, self.now)
        self.settle()

    def denied(self, name: str, grant: bytes, *, takes_gpu: bool = False) -> str | None:
        """Why a worker would let one on this grant use nothing more."""
        [account] = accounts_of(grant)
        used = self.used[name].get(account.name, NOTHING)
        why = self.escrows[name].used_up(account, used, takes_gpu, self.now)
        self.settle()
        return why

    def status(self, name: str) -> AccountStatus:
        [status] = self.escrows[name].status()
        return status

    def elapse(self, seconds: float) -> None:
        """Everything that is due until then happens in its time."""
        until_s = self.now.mono_s + seconds
        parts: list[Quotas] = [*self.holders.values(), *self.escrows.values()]
        while (due_s := min(each.next_timeout() for each in parts)) <= until_s:
            self._at(max(due_s, self.now.mono_s))
            for escrow in self.escrows.values():
                escrow.tick(self.now)
                self.settle()
            for name, holder in self.holders.items():
                self._pass(name, holder.tick(self.now))
                self.settle()
        self._at(until_s)

    def settle(self) -> None:
        """Until nothing is under way: searches end, and messages arrive or are lost."""
        moved = True
        while moved:
            moved = False
            for name, escrow in self.escrows.items():
                sent = escrow.take()
                self._pass(name, sent)
                moved = self._search(name, escrow) or bool(sent) or moved

    def _search(self, name: str, escrow: QuotaEscrow) -> bool:
        dht = self._dhts[name]
        effects, completed = dht.take()
        for each in completed:
            assert isinstance(each, Searched)
            assert escrow.searched(each, self.now)
            assert not escrow.searched(each, self.now)
        for request in effects:
            if isinstance(request, SendRequest):
                found = ResponseReceived(request.request_id, request.to, kad.Nodes(()))
                dht.handle(found, self.now)
        return bool(completed or effects)

    def _pass(self, sender: str, sent: list[Send]) -> None:
        for each in sent:
            message = parse(pack(each.message))
            assert isinstance(message, AskSlice | SliceAnswer | AskAccount | AccountRows)
            passed = Passed(contact(sender), each.to, message)
            if not self.lost(passed):
                self.passed.append(passed)
                self.deliver(passed)

    def deliver(self, passed: Passed) -> None:
        to = self._names[passed.to.peer_id]
        if isinstance(passed.message, SliceAnswer):
            self.escrows[to].answered(passed.sender, passed.message, self.now)
        elif (holder := self.holders.get(to)) is not None:
            self._pass(to, holder.received(passed.sender, passed.message, self.now))

    def _at(self, mono_s: float) -> None:
        self.now = later(mono_s - NOW.mono_s)
