"""What a worker is asked for, as it counts there: with the owner's account, and its priority as
the grant weighs it and as waiting has raised it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.negotiation.messages import PlacementRequest, waiting_id
from formation_p2p.core.negotiation.waiting import Wait, Waiting
from formation_p2p.core.refusals import PeerRefusal
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.trust.admission import AdmissionController
from formation_p2p.core.trust.shares import Account, account_of
from formation_p2p.core.workload.work import MIN_MEMORY_BYTES


@dataclass(frozen=True, slots=True)
class Asked:
    """Work of an owner, who is called by `name`: since when it waits, and what its `priority` has
    `aged` to. `request` is the request's `waiting_id`."""

    owner: PeerId
    name: str
    invitation: str
    account: Account
    needs: Requirements
    priority: int
    aged: int
    since_s: float
    request: str

    def waits(self, answer: PeerRefusal) -> Wait:
        """With the answer that it got."""
        terms = self.needs, self.priority, self.aged, self.since_s
        return Wait(self.owner, self.name, *terms, answer, self.request)

    @property
    def kind(self) -> tuple[PeerId, Requirements, int]:
        return self.owner, self.needs, self.priority


def asked_for(
    request: PlacementRequest,
    owner: PeerId,
    admission: AdmissionController,
    waiting: Waiting,
    now: Moment,
) -> Asked:
    """On a grant that was not denied."""
    grant = request.grant
    # What runs is given this much in any case; leases over less would add up to more memory than
    # there is.
    least_bytes = max(request.needs.memory_bytes, MIN_MEMORY_BYTES)
    needs = replace(request.needs, memory_bytes=least_bytes)
    priority = admission.weighed(grant, request.priority)
    since_s = waiting.since_s(owner, needs, priority, now)
    aged = waiting.aged(since_s, priority, admission.ceiling(grant, priority), now)
    invitation = admission.invitation(grant)
    account = account_of(admission.place(grant), invitation, owner)
    terms = needs, priority, aged, since_s
    return Asked(owner, request.name, invitation, account, *terms, waiting_id(request.request_id))
