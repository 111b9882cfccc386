"""The worker's side of a lease: offer, commit, renew, release, expire.

The worker is the only judge of its capacity, and of what grants allow on it. An offer holds
capacity softly for a moment, a commit makes the hold hard, and the capacity returns once the shell
has said that nothing runs under the lease any more. Work of higher priority takes the place of
lower at a commit or a renewal, never in between; what is idle gives way to all others at once, and
equals take turns.

Source of the idea: Gray and Cheriton, "Leases", 1989; fencing tokens as in Burrows, "Chubby",
2006, section 2.4 (sequencers).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from formation_p2p.core import refusals
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import ensure
from formation_p2p.core.identity import PeerId, short_id
from formation_p2p.leases.core import messages as work
from formation_p2p.leases.core.budget import Budget
from formation_p2p.leases.core.failed_environments import FailedEnvironments
from formation_p2p.leases.core.held import held_by
from formation_p2p.leases.core.lease import Lease, LeaseState
from formation_p2p.leases.core.notice import Notices
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS, LeaseParameters
from formation_p2p.leases.core.precedence import FairShare, Precedence, Seniority
from formation_p2p.leases.core.preemption import Standing, Want
from formation_p2p.leases.core.session import Fence, Send
from formation_p2p.leases.core.waiting import Wait, asked_for
from formation_p2p.machine.core.capability import Capability
from formation_p2p.machine.core.fits import Ledger, fits
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.fragmentation import best_devices
from formation_p2p.trust.core.admission import AdmissionController
from formation_p2p.trust.core.shares import Shares
from formation_p2p.workload.core.blob import Cid
from formation_p2p.workload.core.mix import Seen
from formation_p2p.workload.core.outcome import Outcome

LessorEffect = Send | Fence
_LEAVING: Final = refusals.Leaving()


class Lessor:
    """`admission` judges grants, and `budget` how near their holders are; both are told what leases
    use. `places` says which content of a list is here. Nothing runs
    under a lease that `is_idle`; what runs under one that `saves` goes on from there. `seen` is
    what it was asked for lately, by which it chooses devices."""

    def __init__(
        self,
        capability: Capability,
        labels: Mapping[str, str],
        drivers: Collection[str],
        admission: AdmissionController,
        rng: random.Random,
        budget: Budget,
        is_idle: Callable[[str], bool],
        price_micro: int = 0,
        places: Callable[[Sequence[Cid]], tuple[int, ...]] = lambda near: (),
        parameters: LeaseParameters = LEASE_DEFAULTS,
        shares: Shares | None = None,
        saves: Callable[[str], bool] = lambda lease_id: False,
    ) -> None:
        self._parameters = parameters
        self.seen = Seen()
        self.ledger = Ledger(
            capability, lambda needs, has, free: best_devices(needs, has, free, self.seen.mix)
        )
        self.capability = capability
        self._labels = labels
        self._drivers = drivers
        self._admission = admission
        self._rng = rng
        self.price_micro = price_micro
        self._budget = budget
        self._places = places
        # What a feature says beside an offer, to what stands beside the request.
        self.beside: Callable[[work.Beside, Moment], work.Beside] = lambda asked, now: ()
        self._leases: dict[str, Lease] = {}
        self.standing = Standing(capability, parameters)
        self._seniority = Seniority(parameters)
        self.shares = Shares() if shares is None else shares
        self._fair = FairShare(self.shares, self.standing.part, parameters)
        self._is_idle = is_idle
        self._precedence = Precedence(
            self._leases, self.ledger, self.standing, is_idle, self._fair, parameters
        )
        self._wants = self._precedence.wants
        self._evicted: list[LessorEffect] = []  # while a request is answered
        self.notices = Notices(admission, saves, parameters)
        self._failed_environments = FailedEnvironments()
        self._fence = 0
        self._closed: refusals.PeerRefusal | None = None

    def begin(self, now: Moment) -> None:
        """Fences grow across restarts too: there is less than one lease in a millisecond."""
        self._fence = int(now.unix_s * 1000)

    def waits(self, now: Moment) -> list[Wait]:
        """What waits for room here."""
        return self._precedence.waiting.live(now)

    def requested(
        self, sender: Contact, request: work.PlacementRequest, now: Moment
    ) -> list[LessorEffect]:
        cause = f"{sender.peer_id} asks for a placement"
        answer: work.WorkMessage
        lease = self._offer(sender, request, now)
        if not isinstance(lease, refusals.Denied):
            self.seen.see(request.needs)
        if isinstance(lease, Lease):
            holds, hold_ms = held_by(lease.reservation), round(self._parameters.hold_s * 1000)
            price_micro, there = self.price_micro, self._places(request.near)
            answer = work.Offer(
                *(request.request_id, lease.lease_id, holds, price_micro, hold_ms, there),
                self.beside(request.beside, now),
            )
        else:
            answer = work.RequestRefused(request.request_id, lease)
        evicted, self._evicted = self._evicted, []
        return [Send(sender, answer, cause=cause), *evicted]

    def committed(self, sender: Contact, message: work.Commit, now: Moment) -> list[LessorEffect]:
        cause = f"{sender.peer_id} commits {message.lease_id}"
        lease = self._owned(sender, message.lease_id)
        is_offer = isinstance(lease, Lease) and lease.state is LeaseState.OFFERED
        answer: work.WorkMessage
        if isinstance(lease, refusals.Gone):
            answer = work.CommitRefused(message.lease_id, lease)
        elif is_offer and (taken := self._taken_back(lease, now)):
            event, why = taken
            self._end(lease, event, cause, now)
            answer = work.CommitRefused(message.lease_id, why)
        elif is_offer and not lease.kept and (refusal := self._take(lease, now)):
            self._end(lease, "preempt", cause, now)
            answer = work.CommitRefused(message.lease_id, refusal)
        elif not lease.moved("commit"):
            answer = work.CommitRefused(message.lease_id, _ended(message.lease_id))
        else:
            if is_offer:
                self._fence += 1
                slice_s = self._fair.slice_s(sender.peer_id)
                lease.granted(self._fence, now.mono_s, self._parameters.lease_s, slice_s)
                self._precedence.waiting.served(sender.peer_id, lease.needs, lease.base_priority)
                self._fair.opened(lease, now)
                self._admission.began(lease.lease_id, now)
                self.standing.committed(sender.peer_id, now)
            left_ms = round((lease.expires_s - now.mono_s) * 1000)
            answer = work.Leased(lease.lease_id, lease.fence, left_ms, self._parameters.window)
        return [Send(sender, answer, cause=cause)]

    def renewed(self, sender: Contact, message: work.Renew, now: Moment) -> list[LessorEffect]:
        cause = f"{sender.peer_id} renews {message.lease_id}"
        lease = self.lease(sender, message.lease_id, message.fence)
        if isinstance(lease, refusals.Gone):
            return [Send(sender, work.LeaseEnded(message.lease_id, lease), cause=cause)]
        self._admission.charge(lease.lease_id, now.mono_s, now)
        self.shares.charged(lease.account)
        if message.grant and self._admission.moved(
            lease.lease_id, message.grant, sender.peer_id, lease.needs, lease.request.priority, now
        ):
            lease.moved_to(message.grant)
        taken = self._taken_back(lease, now)
        if taken is not None and not self.notices.merits(lease, taken[1], now):
            ended = work.LeaseEnded(lease.lease_id, taken[1])
            return [Send(sender, ended, cause=cause), *self._end(lease, taken[0], cause, now)]
        told = self.notices.renewed(lease, taken and taken[1], now)
        lease.moved("renew")
        lease_s = self._parameters.lease_s
        lease.renewed(sender, now.mono_s + lease_s)
        return [*told, self._renewed(lease, lease_s, cause, now)]

    def _renewed(self, lease: Lease, life_s: float, cause: str, now: Moment) -> Send:
        """Where it was not asked for, with no `life_s`."""
        yields_s = self._precedence.yields_in_s(lease, now)
        yields_ms = None if yields_s is None else round(yields_s * 1000)
        life_ms, window = round(life_s * 1000), self._parameters.window
        renewed = work.Renewed(lease.lease_id, life_ms, window, yields_ms)
        return Send(lease.owner, renewed, cause=cause)

    def released(self, sender: Contact, message: work.Release, now: Moment) -> list[LessorEffect]:
        lease, cause = self._owned(sender, message.lease_id), f"{sender.peer_id} releases"
        if isinstance(lease, refusals.Gone):
            # A request, or a lease that has ended already, which is what the owner wants.
            wants = self._precedence.forgone(sender.peer_id, message.lease_id)
            return self._forgone(wants, f"{cause} a request", now)
        return self._end(lease, "release", f"{cause} {lease.lease_id}", now)

    def disconnected(self, owner: PeerId, now: Moment) -> list[LessorEffect]:
        """Nothing gives way to one that has gone."""
        return self._forgone(self._precedence.forgone(owner), f"{owner} has gone", now)

    def _forgone(self, wants: Collection[Want], cause: str, now: Moment) -> list[LessorEffect]:
        """Nothing gives way to these any more: owners that were told otherwise are told so. What
        was kept for them counts as an offer that lapsed."""
        for want in wants:
            asked, since_s = want.asked, want.until_s - self._parameters.want_s
            idle_s = min(now.mono_s - since_s, self._parameters.hold_s)
            self.standing.idled(asked.owner, asked.invitation, asked.needs, idle_s, now)
        ids = dict.fromkeys(each for want in wants for each in want.yielding)
        leases = (self._leases[each] for each in ids if each in self._leases)
        leased = [each for each in leases if each.state is LeaseState.LEASED]
        stay = [each for each in leased if self._precedence.yields_in_s(each, now) is None]
        return [self._renewed(each, 0.0, cause, now) for each in stay]

    def fenced(self, lease_id: str) -> None:
        """The shell says that nothing runs under the lease: its capacity is free again."""
        lease = self._leases.get(lease_id)
        if lease is not None and lease.moved("fenced"):
            self._forget(lease)

    def ended(self, lease_id: str, outcome: Outcome, now: Moment) -> None:
        """How an execution under a lease has ended."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            lease.used(now.mono_s)
            self._fair.finished(lease.owner.peer_id)
            self._failed_environments.ended(lease.request.needs.environment, outcome, now)

    def tick(self, now: Moment) -> list[LessorEffect]:
        effects: list[LessorEffect] = []
        for lease in list(self._leases.values()):
            if lease.expires_s <= now.mono_s:
                effects += self._end(lease, "expire", f"lease {lease.lease_id} expired", now)
            elif lease.ending is not None and lease.ends_s <= now.mono_s:
                effects += self._end_for(lease, lease.ending, now)
        return effects

    def next_timeout(self) -> float:
        live = (x.due_s for x in self._leases.values() if x.state is not LeaseState.ENDING)
        return min(live, default=float("inf"))

    def leave(
        self,
        now: Moment,
        why: refusals.Leaving | refusals.GrantEnded = _LEAVING,
        grace_s: float = 0.0,
        own: PeerId | None = None,
    ) -> list[LessorEffect]:
        """End every lease and tell the owners; refuse all that is asked until `reopen`. With
        `grace_s` what runs has so long to end, and the leases of this node's `own` stay."""
        self._closed = why
        effects: list[LessorEffect] = []
        for lease in list(self._leases.values()):
            if lease.state is not LeaseState.LEASED or not grace_s or self._is_idle(lease.lease_id):
                effects += self._end_for(lease, why, now)
            elif lease.owner.peer_id != own and lease.ending is None:
                effects.append(self.notices.give(lease, why, grace_s, now))
        return effects

    def _end_for(self, lease: Lease, why: refusals.PeerRefusal, now: Moment) -> list[LessorEffect]:
        """End it, and tell its owner if that has it."""
        ended = Send(lease.owner, work.LeaseEnded(lease.lease_id, why), cause=str(why))
        told = [ended] if lease.state is LeaseState.LEASED else []
        return [*told, *self._end(lease, "leave", str(why), now)]

    def reopen(self) -> None:
        self._closed = None

    def lease(self, sender: Contact, lease_id: str, fence: int) -> Lease | refusals.Gone:
        """The live lease that `sender` may use under this fencing token, or why not."""
        lease = self._owned(sender, lease_id)
        if isinstance(lease, refusals.Gone):
            return lease
        if lease.state is not LeaseState.LEASED or lease.fence != fence:
            return _ended(lease_id)
        return lease

    def grant_of(self, sender: Contact, lease_id: str) -> bytes | None:
        """What its owner showed for a lease or an offer."""
        lease = self._owned(sender, lease_id)
        return None if isinstance(lease, refusals.Gone) else lease.request.grant

    def grant_shown_by(self, owner: PeerId) -> bytes | None:
        """For one of the leases that it has here."""
        grants = (x.request.grant for x in self._leases.values() if x.owner.peer_id == owner)
        return next(grants, None)

    def validate(self) -> None:
        """Raises InvariantBroken."""
        kept = {lease_id for lease_id, lease in self._leases.items() if lease.kept}
        self.ledger.validate(kept)
        self._budget.validate(kept)
        for lease_id, lease in self._leases.items():
            ensure(lease_id == lease.lease_id, f"{lease.lease_id} is kept under another id")
            ensure(lease.state is not LeaseState.ENDED, f"{lease_id} has ended, and is kept")
            unleased = lease.state is LeaseState.OFFERED
            ensure(unleased == (lease.fence == 0), f"{lease_id} is {lease.state} with this fence")

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases.values())

    def _offer(
        self, sender: Contact, request: work.PlacementRequest, now: Moment
    ) -> Lease | refusals.PeerRefusal:
        """Hold capacity, or the first reason why not. The grant comes first: a stranger learns
        nothing else."""
        needs = request.needs
        denied = self._denied(sender, request, now, another=True)
        if denied is not None:
            return denied
        owner = sender.peer_id
        asked = asked_for(request, owner, self._admission, self._precedence.waiting, now)
        invitation = asked.invitation
        since_ms = self._seniority.since_ms(sender.peer_id, request.since_ms, now)
        request = replace(request, priority=asked.aged, since_ms=since_ms)
        if self._closed is not None:
            return self._closed
        for want in self._wants.take_lapsed(now):
            idle_s = self._parameters.hold_s
            self.standing.idled(want.owner, want.invitation, want.needs, idle_s, now)
        refusal = (
            self._budget.refusal(request.grant, owner, needs.cpu_milli)
            or fits(needs, self.capability, self._labels, self._drivers)
            or self._failed_environments.refusal(needs.environment, now)
            or self.standing.refusal(owner, invitation, self._offers(), now)
        )
        if refusal is not None:
            return refusal
        if len(self._leases) >= (limit := self._parameters.max_leases):
            return refusals.Busy("the table of leases", limit)
        lease_id = f"{self._rng.getrandbits(64):016x}"
        least = asked.needs
        reservation = self.ledger.reserve(lease_id, least)
        kept = not self.standing.is_doubtful(owner, invitation, now)
        lacks = isinstance(reservation, refusals.Infeasible)
        if lacks and kept and self._wound(request, least, now):
            reservation = self.ledger.reserve(lease_id, least)
        if isinstance(reservation, refusals.Infeasible):
            later = self._precedence.later(asked, reservation, now)
            for each in later.idle:
                self._evict(each, request.priority, now)
            for each in later.yields:
                self._evicted.append(self._renewed(each, 0.0, "an equal has its turn", now))
            return later.answer
        if isinstance(reservation, refusals.Busy):
            return reservation
        hindered = self._precedence.hindered(asked, now)
        if hindered is not None:
            self.ledger.release(lease_id)
            return hindered
        self._wants.forget(asked)
        expires_s = now.mono_s + self._parameters.hold_s
        state = LeaseState.OFFERED
        terms = invitation, kept, now.mono_s, asked.account, asked.priority
        lease = Lease(lease_id, sender, request, reservation, state, expires_s, 0, *terms)
        self._leases[lease_id] = lease
        if kept:
            self._opened(lease)
        else:
            self.ledger.release(lease_id)
        return lease

    def _wound(self, request: work.PlacementRequest, needs: Requirements, now: Moment) -> bool:
        """Whether younger gangs make room for an elder."""
        younger = self._precedence.younger(request, needs)
        for each in younger:
            self._end(each, "preempt", "an elder gang wants it", now)
        return bool(younger)

    def _take(self, lease: Lease, now: Moment) -> refusals.PeerRefusal | None:
        """Keep what an offer was for, now that it is committed to; or why not."""
        grant, peer_id = lease.request.grant, lease.owner.peer_id
        denied = self._denied(lease.owner, lease.request, now, another=True)
        refusal = denied or self._budget.refusal(grant, peer_id, lease.needs.cpu_milli)
        if refusal is not None:
            return refusal
        if not self.ledger.retake(lease.reservation):
            why = "others took it; it was not kept, since earlier offers had lapsed"
            return refusals.Gone(f"lease {lease.lease_id}", why)
        self._opened(lease)
        return None

    def _opened(self, lease: Lease) -> None:
        """The lease holds capacity from now on."""
        grant, cpu_milli = lease.request.grant, lease.needs.cpu_milli
        self._admission.opened(lease.lease_id, grant, cpu_milli, lease.gpu_milli)
        self._budget.opened(lease.lease_id, grant, lease.owner.peer_id, cpu_milli)

    def _offers(self) -> list[Lease]:
        return [x for x in self._leases.values() if x.state is LeaseState.OFFERED]

    def _denied(
        self, sender: Contact, request: work.PlacementRequest, now: Moment, *, another: bool
    ) -> refusals.Denied | None:
        needs, priority = request.needs, request.priority
        return self._admission.denied(
            request.grant, sender.peer_id, needs, priority, now, another=another
        )

    def _taken_back(
        self, lease: Lease, now: Moment
    ) -> tuple[str, refusals.Denied | refusals.Preempted] | None:
        """Why the lease may not begin, or go on, and the event that this is."""
        denied = self._denied(lease.owner, lease.request, now, another=False)
        if denied is not None:  # the grant has expired since, or a quota is used up
            return "expire", denied
        priority = self._wants.displacing(lease.lease_id, now)
        if priority is not None:
            return "preempt", refusals.Preempted(priority)
        return self._yielded(lease, now)

    def _yielded(self, lease: Lease, now: Moment) -> tuple[str, refusals.Preempted] | None:
        """Its turn is over: nothing runs any more, or for too long."""
        left_s = self._precedence.yields_in_s(lease, now)
        is_idle = self._is_idle(lease.lease_id)
        other = self._wants.yielding_to(lease.lease_id, now)
        if other is None or left_s is None or (left_s > 0 and not is_idle):
            return None
        return "preempt", refusals.Preempted(other.aged, other.name or short_id(other.owner))

    def _owned(self, sender: Contact, lease_id: str) -> Lease | refusals.Gone:
        lease = self._leases.get(lease_id)
        if lease is None or lease.owner.peer_id != sender.peer_id:
            # The same answer for both: who does not own a lease cannot find out that it exists.
            return _ended(lease_id)
        return lease

    def _end(self, lease: Lease, event: str, cause: str, now: Moment) -> list[LessorEffect]:
        was_offered = lease.state is LeaseState.OFFERED
        if not lease.moved(event):
            return []
        if was_offered and event in ("release", "expire"):
            for_s = self._parameters.hold_s - max(lease.expires_s - now.mono_s, 0.0)
            owner = lease.owner.peer_id
            self.standing.idled(owner, lease.invitation, lease.needs, for_s, now)
        # Past its end its owner had no use of it, however late that is noticed.
        self._admission.charge(lease.lease_id, min(now.mono_s, lease.expires_s), now)
        self._admission.stopped(lease.lease_id, now)
        if not was_offered:
            self._fair.closed(lease, now)
        if event == "preempt" and lease.yields_s is not None and not self._is_idle(lease.lease_id):
            self._fair.cut(lease.owner.peer_id)
        if lease.state is LeaseState.ENDED:
            self._forget(lease)
            return []
        return [Fence(lease.lease_id, cause=cause)]

    def _evict(self, lease: Lease, priority: int, now: Moment) -> None:
        self._evicted += self._end_for(lease, refusals.Preempted(priority), now)

    def _forget(self, lease: Lease) -> None:
        self.ledger.release(lease.lease_id)
        self._admission.closed(lease.lease_id)
        self._budget.closed(lease.lease_id)
        del self._leases[lease.lease_id]


def _ended(lease_id: str) -> refusals.Gone:
    return refusals.Gone(f"lease {lease_id}", "it expired, was released, or never was yours")
