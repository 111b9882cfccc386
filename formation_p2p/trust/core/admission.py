"""Admission to one worker: grants are checked, and what their leases use is counted.

Usage is charged in whole numbers when a lease is renewed, and when it ends. So a lease exceeds a
quota by what it reserves until its next renewal at most; a worker that is killed loses what its
leases have reserved since their last.

The shell adds up each `Charged` on the disk, and the worker's next incarnation begins with that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.effects import Effect, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Denied
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.trust.core.grants import Right, Rights
from formation_p2p.trust.core.hours import opening_in_words
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.network_quota import NetworkCount, network_accounts, quota_of
from formation_p2p.trust.core.parameters import TrustParameters
from formation_p2p.trust.core.quota import NOTHING, QuotaAccount, Used, UsedByMonth, month_of
from formation_p2p.workload.core.data_rule import DataRule
from formation_p2p.workload.core.scope import NOWHERE, Place

# The longest wait that a refusal can carry (leases/core/refusal_kind.py).
MAX_WAIT_S: Final = 3600
_SUBMIT: Final = Right.SUBMIT.value


@dataclass(frozen=True, slots=True)
class Charged(Effect):
    """Each of these accounts has used this much more in a month, such as `2026-11`."""

    month: str
    accounts: tuple[QuotaAccount, ...]
    used: Used


@dataclass(frozen=True, slots=True)
class Tolerated(Effect):
    """A permissive worker allowed what the grant of a peer does not."""

    peer_id: PeerId
    why: str


AdmissionEffect = Charged | Tolerated


@dataclass(slots=True)
class _Lease:
    """`charged` is what of it has been, since it was committed at `began_s`. The hours of accounts
    that are `shared` are counted over the network, too."""

    bearer: PeerId
    accounts: tuple[QuotaAccount, ...]
    shared: tuple[QuotaAccount, ...]
    reserved: Used  # a second of it
    began_s: float | None = None
    charged: Used = NOTHING


class AdmissionController:
    """`labels` are the worker's; `used` is what was counted before, by month and account, and what
    each has used here by now. `network` counts the hours of all workers together.

    A `permissive` one reports what quotas, hours and labels forbid, and allows it. Peers without a
    grant to submit are refused all the same, and so are drivers and priorities past it.
    """

    def __init__(
        self,
        membership: Membership,
        labels: Mapping[str, str],
        used: Iterable[tuple[str, str, Used]] = (),
        permissive: bool = False,
        parameters: TrustParameters = TrustParameters(),
    ) -> None:
        self._parameters = parameters
        self.network = NetworkCount()
        self._membership = membership
        self._labels = labels
        self._permissive = permissive
        self.used = UsedByMonth(parameters.max_months, parameters.max_accounts)
        self._leases: dict[str, _Lease] = {}
        self._open: Counter[str] = Counter()  # leases, by account
        self._tolerated_s: dict[PeerId, float] = {}
        self._effects: list[AdmissionEffect] = []
        for month, account, amount in used:
            self.used.add(month, account, amount)

    def take(self) -> list[AdmissionEffect]:
        """What was charged and tolerated since the last time."""
        effects, self._effects = self._effects, []
        return effects

    def denied(
        self,
        grant: bytes,
        peer_id: PeerId,
        needs: Requirements,
        priority: int,
        now: Moment,
        *,
        another: bool,
    ) -> Denied | None:
        """Why a peer, which showed `grant`, may not have such a lease: `another` one, or one that
        it has for longer."""
        denied = self._membership.denies_submit(grant, peer_id, needs, priority, now)
        if denied is not None:
            return denied
        denied = self._beyond(grant, needs.gpu_count > 0, now, another)
        if denied is None or not self._permissive:
            return denied
        self._tolerate(peer_id, denied.why, now)
        return None

    def is_member(
        self, grant: bytes, peer_id: PeerId, needs: Requirements, priority: int, now: Moment
    ) -> bool:
        """Whether the grant is good, whatever its hours and quotas."""
        denied = self._membership.denies_submit(grant, peer_id, needs, priority, now)
        return denied is None

    def weighed(self, grant: bytes, priority: int) -> int:
        """A priority, weighed by a grant that was not denied."""
        return self._membership.terms(grant).rights.weighed(priority)

    def invitation(self, grant: bytes) -> str:
        """What a grant that was not denied was made of."""
        return self._membership.terms(grant).invitation

    def place(self, grant: bytes) -> Place:
        """The circles that a grant names; none where it is not of this network."""
        terms = self._membership.terms_if_any(grant)
        return NOWHERE if terms is None else terms.rights.place

    def refuses_read(self, grant: bytes, party: PeerId, now: Moment, rule: DataRule) -> str | None:
        """Why a party to a job, which showed `grant`, may not have data under a rule."""
        region = self._membership.region_of(grant, party, now) or ""
        return rule.refuses(self.place(grant), region, is_party=True)

    def ceiling(self, grant: bytes, priority: int) -> int:
        """How high a priority on a grant may rise."""
        terms = self._membership.terms_if_any(grant)
        return priority if terms is None else terms.rights.max_priority

    # -- usage ------------------------------------------------------------------------

    def opened(self, lease_id: str, grant: bytes, cpu_milli: int, gpu_milli: int) -> None:
        """A lease is offered on a grant that was not denied. It counts as open from now on."""
        terms = self._membership.terms(grant)
        shared = network_accounts(terms, self._membership.charter)
        bearer = PeerId(terms.bound_to or "")
        reserved = Used(cpu_milli, gpu_milli)
        self._leases[lease_id] = _Lease(bearer, terms.accounts, shared, reserved)
        self._open.update(account.name for account in terms.accounts)

    def began(self, lease_id: str, now: Moment) -> None:
        """The lease is committed, and costs from now on."""
        if (lease := self._leases.get(lease_id)) is not None:
            lease.began_s = now.mono_s
            self.network.began(lease_id, lease.bearer, lease.shared, lease.reserved, now)

    def charge(self, lease_id: str, until_s: float, now: Moment) -> None:
        """Charge what the lease has reserved until then, and was not charged for yet, to the
        current month."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.began_s is None:
            return
        elapsed_ms = int((until_s - lease.began_s) * 1000)
        # Of the whole time, so that nothing is lost by cutting it into pieces.
        whole = Used(
            lease.reserved.cpu_milli_s * elapsed_ms // 1000,
            lease.reserved.gpu_milli_s * elapsed_ms // 1000,
        )
        more = whole - lease.charged
        if more == NOTHING:
            return
        lease.charged = whole
        month = month_of(now.unix_s)
        for account in lease.accounts:
            self.used.add(month, account.name, more)
        cause = f"lease {lease_id} is charged for"
        self._effects.append(Charged(month, lease.accounts, more, cause=cause))
        self.network.charged(lease_id, now)

    def stopped(self, lease_id: str, now: Moment) -> None:
        """The lease, which is charged for until now, costs nothing any more."""
        self.network.ended(lease_id, now)

    def shared(self, grant: bytes, bearer: PeerId) -> tuple[QuotaAccount, ...]:
        """The accounts of its bearer's grant whose hours are counted over the network."""
        terms = self._membership.terms_if_any(grant)
        if terms is None or terms.bound_to != bearer:
            return ()
        return network_accounts(terms, self._membership.charter)

    def moved(
        self,
        lease_id: str,
        grant: bytes,
        peer_id: PeerId,
        needs: Requirements,
        priority: int,
        now: Moment,
    ) -> bool:
        """Whether the lease, which is charged for until now, is on this other grant from now on:
        not where that is denied."""
        lease = self._leases.get(lease_id)
        if lease is None or self.denied(grant, peer_id, needs, priority, now, another=False):
            return False
        self._close(lease)
        self.network.ended(lease_id, now)
        terms = self._membership.terms(grant)
        lease.accounts = terms.accounts
        lease.shared = network_accounts(terms, self._membership.charter)
        self._open.update(account.name for account in lease.accounts)
        lease.began_s, lease.charged = now.mono_s, NOTHING
        self.network.began(lease_id, lease.bearer, lease.shared, lease.reserved, now)
        return True

    def closed(self, lease_id: str) -> None:
        """The lease has ended, and what ran under it."""
        lease = self._leases.pop(lease_id, None)
        if lease is not None:
            self._close(lease)

    def _close(self, lease: _Lease) -> None:
        for account in lease.accounts:
            self._open[account.name] -= 1
            if self._open[account.name] == 0:
                del self._open[account.name]

    def _beyond(self, grant: bytes, takes_gpu: bool, now: Moment, another: bool) -> Denied | None:
        terms = self._membership.terms(grant)
        denied = not_valid_at(terms.rights, self._labels, now)
        if denied is not None:
            return denied
        month = month_of(now.unix_s)
        charter = self._membership.charter
        shared = {each.name for each in network_accounts(terms, charter)}
        for account in terms.accounts:
            quota = quota_of(terms, account, charter)
            spent = self.used.of(month, account.name)
            why = quota.exceeded(spent, takes_gpu, now.unix_s)
            if why is None and account.name in shared:
                counted = QuotaAccount(account.name, quota)
                why = self.network.used_up(counted, spent, takes_gpu, now)
            if why is not None:
                return Denied(_SUBMIT, why)
            full = quota.is_full(self._open[account.name]) if another else None
            if full is not None:
                # Of none at all none ends, so that no waiting helps.
                return Denied(_SUBMIT, full, self._parameters.room_ms if quota.leases else None)
        return None

    def _tolerate(self, peer_id: PeerId, why: str, now: Moment) -> None:
        recent_s = now.mono_s - self._parameters.tolerated_every_s
        if self._tolerated_s.get(peer_id, float("-inf")) > recent_s:
            return
        if len(self._tolerated_s) >= self._parameters.max_tolerated:
            recent = {peer: at_s for peer, at_s in self._tolerated_s.items() if at_s > recent_s}
            self._tolerated_s = recent
            if len(recent) >= self._parameters.max_tolerated:
                return
        self._tolerated_s[peer_id] = now.mono_s
        self._effects.append(Tolerated(peer_id, why, cause="the worker is permissive"))


def not_valid_at(rights: Rights, labels: Mapping[str, str], now: Moment) -> Denied | None:
    """Why a grant with these rights is not valid now at a worker with these labels."""
    missing = [f"{key}={value}" for key, value in sorted(rights.labels) if labels.get(key) != value]
    if missing:
        why = f"the grant is for workers with {' and '.join(missing)}, and this one is without"
        return Denied(_SUBMIT, why)
    hours = rights.hours
    if hours is None or hours.include(now.unix_s):
        return None
    opening = hours.opening(now.unix_s)
    if opening is None:
        return Denied(_SUBMIT, "the grant is good at no hour of the week; ask for another")
    wait_s = opening - now.unix_s
    why = f"the grant is good {hours} UTC; that begins next {opening_in_words(opening)}"
    return Denied(_SUBMIT, why, None if wait_s >= MAX_WAIT_S else int(wait_s * 1000) + 1)
