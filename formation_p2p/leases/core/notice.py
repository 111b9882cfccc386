"""Notice: a lease ends though it is renewed, and what runs under it is told to save what it has."""

from __future__ import annotations

from collections.abc import Callable

from formation_p2p.core.effects import Moment
from formation_p2p.core.refusals import Denied, PeerRefusal, Preempted
from formation_p2p.leases.core.lease import Lease
from formation_p2p.leases.core.messages import MAX_MS, Notice
from formation_p2p.leases.core.parameters import LeaseParameters
from formation_p2p.leases.core.session import Send
from formation_p2p.trust.core.admission import AdmissionController


class Notices:
    """Of one lessor. `saves` says whether something runs under a lease that would lose least by
    being told. `take` has the leases that were given notice since the last time, and how long what
    runs under them has to end."""

    def __init__(
        self,
        admission: AdmissionController,
        saves: Callable[[str], bool],
        parameters: LeaseParameters,
    ) -> None:
        self._admission = admission
        self._saves = saves
        self._parameters = parameters
        self._given: list[tuple[str, float]] = []  # as many as there are leases

    def take(self) -> list[tuple[str, float]]:
        given, self._given = self._given, []
        return given

    def merits(self, lease: Lease, why: Denied | Preempted, now: Moment) -> bool:
        """Whether what runs there may first save what it has, before it is taken back: where it has
        done so before, or does so by ending, and its owner is a member still."""
        if not self._saves(lease.lease_id):
            return False
        if isinstance(why, Preempted):
            return True
        peer_id, priority = lease.owner.peer_id, lease.request.priority
        return self._admission.is_member(lease.request.grant, peer_id, lease.needs, priority, now)

    def renewed(self, lease: Lease, why: PeerRefusal | None, now: Moment) -> list[Send]:
        """It is being renewed: give notice where there is a reason, once. The first may be lost, so
        it is told again."""
        if lease.ending is not None:
            return [_told(lease, lease.ending, now)]
        return [] if why is None else [self.give(lease, why, self._parameters.notice_s, now)]

    def give(self, lease: Lease, why: PeerRefusal, grace_s: float, now: Moment) -> Send:
        """The lease ends after so long for what runs, and for its last checkpoint to be fetched."""
        lease.noticed(now.mono_s + grace_s + self._parameters.saving_s, why)
        self._given.append((lease.lease_id, grace_s))
        return _told(lease, why, now)


def _told(lease: Lease, why: PeerRefusal, now: Moment) -> Send:
    left_ms = min(max(0, round((lease.ends_s - now.mono_s) * 1000)), MAX_MS)
    return Send(lease.owner, Notice(lease.lease_id, lease.fence, left_ms, why), cause=str(why))
