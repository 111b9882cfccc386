"""Since when each kind of an owner's work has waited at a worker, as the worker itself has seen.

What waits is asked for again and again. It has waited since it was first refused for want of room;
where nothing was asked for a while, a lease was granted, or the owner said that it waits no more,
the next request begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.latest import Latest
from formation_p2p.core.refusals import PeerRefusal
from formation_p2p.leases.core.messages import PlacementRequest, waiting_id
from formation_p2p.leases.core.parameters import LeaseParameters
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.trust.core.admission import AdmissionController
from formation_p2p.trust.core.shares import Account, account_of
from formation_p2p.workload.core.work import MIN_MEMORY_BYTES

_Kind = tuple[Requirements, int]


@dataclass(frozen=True, slots=True)
class Wait:
    """Work that waits here: whose, since when, and the answer that it got last. Its priority has
    risen from that in its request to `aged`. `request` is the `waiting_id` of its last."""

    owner: PeerId
    name: str
    needs: Requirements
    priority: int
    aged: int
    since_s: float
    answer: PeerRefusal
    request: str


class Waiting:
    """Of all that ask one worker; a kind of work is its needs and its priority."""

    def __init__(self, parameters: LeaseParameters) -> None:
        self._parameters = parameters
        # By owner: since when each kind has waited, and when it was last refused.
        self._owners = Latest[PeerId, Latest[_Kind, tuple[Wait, float]]](parameters.max_standings)
        self._left: set[PeerId] = set()  # those of them that are not connected

    def __len__(self) -> int:
        """How many owners it remembers."""
        return len(self._owners)

    def _kinds(self, owner: PeerId) -> Latest[_Kind, tuple[Wait, float]]:
        return self._owners.get(owner) or Latest(self._parameters.max_waits_per_owner)

    def since_s(self, owner: PeerId, needs: Requirements, priority: int, now: Moment) -> float:
        wait, last_s = self._kinds(owner).get((needs, priority), (None, 0.0))
        if wait is None or now.mono_s - last_s > self._parameters.waits_s:
            return now.mono_s
        return wait.since_s

    def aged(self, since_s: float, priority: int, ceiling: int, now: Moment) -> int:
        """A priority after so long, no higher than the owner's grant allows."""
        risen = priority + int((now.mono_s - since_s) / self._parameters.age_s)
        return max(min(risen, ceiling), priority)

    def refused(self, wait: Wait, now: Moment) -> None:
        """There was no room for it now."""
        self._left.discard(wait.owner)
        kinds = self._kinds(wait.owner)
        kinds[wait.needs, wait.priority] = wait, now.mono_s
        self._owners[wait.owner] = kinds

    def live(self, now: Moment) -> list[Wait]:
        """Those that were asked for lately, by owners that are connected."""
        recent_s = now.mono_s - self._parameters.waits_s
        here = (kinds for owner, kinds in self._owners.items() if owner not in self._left)
        waits = (each for kinds in here for each in kinds.values())
        return [wait for wait, last_s in waits if last_s >= recent_s]

    def left(self, owner: PeerId) -> None:
        """Its connection ended. Where it soon asks again, it has waited all the time."""
        self._left = {each for each in (*self._left, owner) if each in self._owners}

    def withdrawn(self, owner: PeerId, request: str) -> None:
        """It waits no more for what it asked for last by this request."""
        kinds = self._kinds(owner)
        for needs, priority in [k for k, (wait, _) in kinds.items() if wait.request == request]:
            self.served(owner, needs, priority)

    def served(self, owner: PeerId, needs: Requirements, priority: int) -> None:
        """It has a lease."""
        kinds = self._kinds(owner)
        kinds.pop((needs, priority), None)
        if not kinds:
            self._owners.pop(owner, None)


# What a worker is asked for, as it counts there: with the owner's account, and its priority as the
# grant weighs it and as waiting has raised it.
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
