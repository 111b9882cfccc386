"""Which accounts of a grant are counted over the whole network, and what admission tells of them.

The hours of a quota are those of all workers together; how many leases there may be at once is for
each worker to count. The account of a peer is one worker's own too, since its use counts under the
blocks of its grant; unless the charter gives the quota, which no block of the grant has.
"""

from __future__ import annotations

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.grants import GrantTerms
from formation_p2p.trust.core.quota import UNLIMITED, Quota, QuotaAccount, Used


class NetworkCount:
    """What counts the hours of all workers together: the feature quotas. By itself it counts
    nothing, as at a worker that asks no other."""

    def began(
        self,
        lease_id: str,
        bearer: PeerId,
        accounts: tuple[QuotaAccount, ...],
        reserved: Used,
        now: Moment,
    ) -> None:
        """A bearer's lease is committed, which reserves so much each second."""

    def charged(self, lease_id: str, now: Moment) -> None:
        """What it has reserved is counted up to now."""

    def ended(self, lease_id: str, now: Moment) -> None:
        """It reserves nothing any more."""

    def used_up(
        self, account: QuotaAccount, used: Used, takes_gpu: bool, now: Moment
    ) -> str | None:
        """Why who has used so much here may use nothing more, this month."""
        return None

    def extended(
        self,
        bearer: PeerId,
        accounts: tuple[QuotaAccount, ...],
        grant: bytes,
        extension: bytes,
        now: Moment,
    ) -> None:
        """The bearer of a grant, which has these accounts, says this along with its lease."""

    def leave(self, now: Moment) -> None:
        """The worker leaves, and has no leases any more."""


def quota_of(terms: GrantTerms, account: QuotaAccount, charter: Charter | None) -> Quota:
    """Of a grant without a quota the charter's is its peer's."""
    if charter is None or terms.rights.quota != UNLIMITED or not account.is_peer:
        return account.quota
    return charter.quotas


def network_accounts(terms: GrantTerms, charter: Charter | None) -> tuple[QuotaAccount, ...]:
    """Those whose hours count over the network, each with its quota."""
    is_charters = terms.rights.quota == UNLIMITED
    found = (
        QuotaAccount(each.name, quota_of(terms, each, charter))
        for each in terms.accounts
        if is_charters or not each.is_peer
    )
    return tuple(each for each in found if limits_hours(each.quota))


def limits_hours(quota: Quota) -> bool:
    return quota.cpu_milli_hours is not None or quota.gpu_milli_hours is not None
