"""The bearer of a grant signs, for each worker, what its leases there reserve."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.features.quotas.core.quota_voucher import seal_voucher
from formation_p2p.leases.core.held_lease import HeldLease
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.network_quota import network_accounts
from formation_p2p.trust.core.quota import Used


class Vouching:
    """`grant` is what it shows, `held` are its leases."""

    def __init__(
        self,
        identity: Identity,
        membership: Membership,
        grant: Callable[[], bytes],
        held: Callable[[], Iterable[HeldLease]],
    ) -> None:
        self._identity = identity
        self._membership = membership
        self._grant = grant
        self._held = held
        self._issued_unix_ms = 0

    def voucher(self, worker: PeerId, now: Moment) -> bytes | None:
        """For a worker that it has leases of, or is about to; None where no quota needs it."""
        terms = self._membership.terms(self._grant())
        if not network_accounts(terms, self._membership.charter):
            return None
        cpu_milli = gpu_milli = 0
        for lease in self._held():
            if lease.lessor.peer_id == worker:
                needs = lease.scheduling_key.needs
                cpu_milli += needs.cpu_milli
                gpu_milli += needs.gpu_count * needs.gpu_share_milli
        # Each is newer than the last: of those that come to one holder the newest counts.
        self._issued_unix_ms = max(self._issued_unix_ms + 1, int(now.unix_s * 1000))
        return seal_voucher(
            self._identity, worker, Used(cpu_milli, gpu_milli), self._issued_unix_ms
        )
