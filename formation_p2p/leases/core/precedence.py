"""Who gives way to whom where a machine has no room for what is asked.

A lease under which nothing runs is kept for what may come. It gives way to whatever is asked for at
its priority or above, once it has been idle for a moment: then it ends at once. All others give way
to higher priorities where they would be renewed, and to equals in turn (`FairShare`). What has
waited for long counts as an equal of what is more urgent (waiting.py), and never as more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from formation_p2p.core import refusals
from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId, short_id
from formation_p2p.core.latest import Latest
from formation_p2p.leases.core.lease import Lease, LeaseState
from formation_p2p.leases.core.messages import PlacementRequest
from formation_p2p.leases.core.parameters import LeaseParameters
from formation_p2p.leases.core.preemption import Standing, Want, Wants, to_displace
from formation_p2p.leases.core.waiting import Asked, Waiting
from formation_p2p.machine.core.fits import Ledger
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.trust.core.shares import Account, Shares

# Since when each gang has sought leases at a worker, as the worker itself has seen it.
#
# Of two gangs that hold softly what the other wants, the elder gets it, so that a request says
# since when its gang has sought: its ticket. A forged one is worth little. The worker believes what
# lies a moment before the first request with this ticket that it saw, and no more.


class Seniority:
    """Of all that ask one worker."""

    def __init__(self, parameters: LeaseParameters) -> None:
        self._parameters = parameters
        # When a ticket of an owner was first seen, in Unix milliseconds, and last; the latest at
        # the end.
        self._seen: dict[tuple[PeerId, int], tuple[int, float]] = {}

    def __len__(self) -> int:
        """How many tickets it remembers."""
        return len(self._seen)

    def since_ms(self, owner: PeerId, ticket: int, now: Moment) -> int:
        """What the ticket of a request counts as; 0 for work that is of no gang."""
        if ticket == 0:
            return 0
        limits = self._parameters
        now_ms = round(now.unix_s * 1000)
        first_ms, last_s = self._seen.pop((owner, ticket), (now_ms, now.mono_s))
        if now.mono_s - last_s > limits.ticket_s:
            first_ms = now_ms
        self._seen[owner, ticket] = (first_ms, now.mono_s)
        own = [key for key in self._seen if key[0] == owner]
        if len(own) > limits.max_tickets_per_owner:
            del self._seen[own[0]]
        elif len(self._seen) > limits.max_standings:
            del self._seen[next(iter(self._seen))]
        believed_ms = round(limits.ticket_slack_s * 1000)
        oldest_ms = now_ms - round(limits.max_seniority_s * 1000)
        return max(min(max(ticket, first_ms - believed_ms), first_ms), oldest_ms)


# Whose turn it is among equals: when a lease gives way to one who is further below his share. A
# lease is safe for a slice, and until its owner is ahead by as much use. Then it takes nothing new;
# what runs may end within a while, or is placed anew. An owner whose tasks were cut off so has a
# slice of twice the length the next time, so that two owners of long tasks do not cut off each
# other for ever.
class FairShare:
    """`part` says how much of the machine some needs are."""

    def __init__(
        self, shares: Shares, part: Callable[[Requirements], float], parameters: LeaseParameters
    ) -> None:
        self._shares = shares
        self._part = part
        self._parameters = parameters
        self._doublings = Latest[PeerId, int](parameters.max_standings)

    def opened(self, lease: Lease, now: Moment) -> None:
        self._shares.opened(lease.account, self._part(lease.needs), now)

    def closed(self, lease: Lease, now: Moment) -> None:
        self._shares.closed(lease.account, self._part(lease.needs), now)

    def slice_s(self, owner: PeerId) -> float:
        return self._parameters.slice_s * 2.0 ** self._doublings.get(owner, 0)

    def due_in_s(self, lease: Lease, account: Account, since_s: float, now: Moment) -> float:
        """When a lease gives way to an account that has waited since then, as things stand; 0 for
        now, infinity for never."""
        slice_s = self.slice_s(lease.owner.peer_id)
        # One that waited for a slice does not wait for another that began meanwhile.
        over_s = min(lease.since_s, since_s) + slice_s
        most_s = self._part(lease.needs) * self._parameters.slice_s
        lead = self._shares.lead(lease.account, account, now)
        return max(over_s - now.mono_s, lead.reaches_in_s(most_s), 0.0)

    def goes_first(self, account: Account, other: Account, now: Moment) -> bool:
        """Whether one is further below its share than another."""
        return self._shares.lead(other, account, now).ahead_s > 0

    def waits(self, account: Account, lease: Lease, now: Moment) -> None:
        """It is ahead of the owner of a lease that it waits for: that counts up to a bound."""
        self._shares.forgive(account, lease.account, self._parameters.max_lead_s, now)

    def cut(self, owner: PeerId) -> None:
        """A task of his was ended."""
        doublings = self._doublings.get(owner, 0) + 1
        self._doublings[owner] = min(doublings, self._parameters.max_doublings)

    def finished(self, owner: PeerId) -> None:
        """A task of his came to its end."""
        doublings = self._doublings.pop(owner, 0) - 1
        if doublings > 0:
            self._doublings[owner] = doublings


@dataclass(frozen=True, slots=True)
class Later:
    """An answer, and what has to happen: leases that end now, since they are idle, and leases that
    give way to an equal from now on."""

    answer: refusals.GivingWay | refusals.Infeasible
    idle: tuple[Lease, ...] = ()
    yields: tuple[Lease, ...] = ()


class Precedence:
    """`leases` are those of the lessor, by id. `is_idle` says whether nothing runs under one, and
    no result of it waits."""

    def __init__(
        self,
        leases: Mapping[str, Lease],
        ledger: Ledger,
        standing: Standing,
        is_idle: Callable[[str], bool],
        fair: FairShare,
        parameters: LeaseParameters,
    ) -> None:
        self._leases = leases
        self._ledger = ledger
        self._standing = standing
        self._is_idle = is_idle
        self._fair = fair
        self._parameters = parameters
        self.wants = Wants(parameters)
        self.waiting = Waiting(parameters)

    def later(self, asked: Asked, lacking: refusals.Infeasible, now: Moment) -> Later:
        """What is lacking may come free for these needs: then it is kept for them, for a while; or
        what is offered to others may. And the idle leases that end for them now."""
        later = self._later(asked, lacking, now)
        self.waiting.refused(asked.waits(later.answer), now)
        return later

    def forgone(self, owner: PeerId, request: str | None = None) -> list[Want]:
        """An owner waits no more for what it asked for by this request; without one, it has gone.
        These were to get what others hold."""
        if request is None:
            self.waiting.left(owner)
        else:
            self.waiting.withdrawn(owner, request)
        return self.wants.forgone(owner, request)

    def _later(self, asked: Asked, lacking: refusals.Infeasible, now: Moment) -> Later:
        if self._standing.is_doubtful(asked.owner, asked.invitation, now):
            self.wants.forget(asked)
            return Later(self._unless_offers_lapse(asked, lacking, now))
        idle = self._idle(asked, now)
        if idle:
            wait_s = max(x.used_s for x in idle) + self._parameters.keep_idle_s - now.mono_s
            if wait_s > 0:
                return Later(_giving_way(lacking, wait_s))
            if self.wants.note(asked, _ids(idle), now):
                return Later(_giving_way(lacking, self._parameters.fencing_s), idle)
        live = [x for x in self._leases.values() if x.state is not LeaseState.ENDING]
        lower = [x for x in live if x.priority_at(now.mono_s) < asked.priority]
        # An offer goes before a lease, then the one that is up for renewal first.
        lower.sort(
            key=lambda x: (
                x.priority_at(now.mono_s),
                x.state is LeaseState.LEASED,
                x.expires_s,
            )
        )
        displaced = self._to_displace(asked.needs, lower)
        if displaced is None:
            return self._in_turn(asked, lacking, lower, live, now)
        if not self.wants.note(asked, _ids(displaced), now):
            return Later(self._unless_offers_lapse(asked, lacking, now))
        wait_s = max((self._gives_way_s(x) - now.mono_s for x in displaced), default=0.0)
        return Later(_giving_way(lacking, max(wait_s, 0.0) + self._parameters.fencing_s))

    def _in_turn(
        self,
        asked: Asked,
        lacking: refusals.Infeasible,
        lower: Sequence[Lease],
        live: Iterable[Lease],
        now: Moment,
    ) -> Later:
        """Equals give way in turn, those first that do so already, and then those that have held
        theirs for longest. A gang would end with one of its leases: it does not."""
        lower_ids = set(_ids(lower))
        due_s = {
            x.lease_id: self._fair.due_in_s(x, asked.account, asked.since_s, now)
            for x in live
            if x.state is LeaseState.LEASED
            and x.lease_id not in lower_ids
            and x.priority_at(now.mono_s) <= asked.aged
            and not x.request.since_ms
            and x.owner.peer_id != asked.owner
        }
        equals = [self._leases[x] for x in due_s]
        equals.sort(key=lambda x: (x.yields_s is None, due_s[x.lease_id], x.since_s))
        ripe = [x for x in equals if due_s[x.lease_id] <= 0]
        displaced = self._to_displace(asked.needs, (*lower, *ripe))
        if displaced is not None:
            yielding = [x for x in displaced if x.lease_id not in lower_ids]
            below = [x for x in displaced if x.lease_id in lower_ids]
            if self.wants.note(asked, _ids(below), now, _ids(yielding)):
                begun = tuple(x for x in yielding if x.yields_s is None)
                for each in begun:
                    each.gives_way(now.mono_s)
                left_s = max(self._left_s(x, now) for x in yielding)
                soon_s = self._parameters.ask_turn_soon_s
                turn = (_name_of(yielding[-1]), round(left_s * 1000))
                return Later(_giving_way(lacking, soon_s, turn), yields=begun)
        self.wants.forget(asked)
        for each in equals:
            self._fair.waits(asked.account, each, now)
        coming = [x for x in equals if due_s[x.lease_id] < float("inf")]
        displaced = self._to_displace(asked.needs, (*lower, *coming)) or ()
        turns = [x for x in displaced if x.lease_id not in lower_ids]
        lapsing = self._unless_offers_lapse(asked, lacking, now)
        if not turns or isinstance(lapsing, refusals.GivingWay):
            return Later(lapsing)
        last = max(turns, key=lambda x: due_s[x.lease_id])
        wait_s = due_s[last.lease_id]
        soon_s, late_s = self._parameters.ask_turn_soon_s, self._parameters.ask_turn_s
        # Others may give theirs back before: the longer it waits, the rarer it asks.
        waited_s = now.mono_s - asked.since_s
        retry_s = min(max(min(wait_s / 2, waited_s), soon_s), late_s)
        return Later(_giving_way(lacking, retry_s, (_name_of(last), round(wait_s * 1000))))

    def hindered(
        self, asked: Asked, now: Moment
    ) -> refusals.Infeasible | refusals.GivingWay | None:
        """Something more urgent, or of an equal whose turn it is, would not find room any more."""
        for want in self.wants.live(now):
            other = want.asked
            is_urgent = other.priority > asked.aged
            if not is_urgent and not self._goes_first(want, asked, now):
                continue
            back = {*self._ending(), *want.displaced, *want.yielding}
            free = reduce(self._ledger.with_back, back, self._ledger.free)
            if self._ledger.lacks(other.needs, free) is None:
                continue
            if is_urgent:
                return refusals.Infeasible("priority", other.priority, asked.priority)
            lacking = refusals.Infeasible("turn", other.name or "another", "taken")
            answer = _giving_way(lacking, self._parameters.ask_turn_soon_s)
            self.waiting.refused(asked.waits(answer), now)
            return answer
        return None

    def _goes_first(self, want: Want, asked: Asked, now: Moment) -> bool:
        """Whether equals give way to it just now, and it is further below its share."""
        return (
            bool(want.yielding)
            and want.asked.owner != asked.owner
            and want.asked.aged >= asked.priority
            and self._fair.goes_first(want.asked.account, asked.account, now)
        )

    def younger(self, request: PlacementRequest, needs: Requirements) -> tuple[Lease, ...]:
        """Soft holds for gangs of equal priority that began to seek later yield, where that makes
        room: of two gangs that hold what the other wants, the elder gets it. They hear it when they
        commit. An owner that lets offers lapse gets none so. Source: Rosenkrantz, Stearns and
        Lewis, "System level concurrency control for distributed database systems", 1978
        (wound-wait)."""
        younger = [
            lease
            for lease in self._leases.values()
            if lease.state is LeaseState.OFFERED
            and lease.kept
            and 0 < request.since_ms < lease.request.since_ms
            and lease.request.priority == request.priority
        ]
        younger.sort(key=lambda lease: lease.request.since_ms, reverse=True)
        free, yielding = self._ledger.free, list[Lease]()
        for lease in younger:
            free = self._ledger.with_back(free, lease.lease_id)
            yielding.append(lease)
            if self._ledger.lacks(needs, free) is None:
                return tuple(yielding)
        return ()

    def yields_in_s(self, lease: Lease, now: Moment) -> float | None:
        """How long what runs under a lease may go on, where it is to give way to an equal."""
        if self.wants.yielding_to(lease.lease_id, now) is None:
            lease.stays()
            return None
        lease.gives_way(now.mono_s)
        return self._left_s(lease, now)

    def _left_s(self, lease: Lease, now: Moment) -> float:
        since_s = now.mono_s if lease.yields_s is None else lease.yields_s
        return max(since_s + self._parameters.give_way_s - now.mono_s, 0.0)

    def _idle(self, asked: Asked, now: Moment) -> tuple[Lease, ...]:
        """Those that make room together, the longest idle first; none where they do not."""
        equal = (x for x in self._leases.values() if x.priority_at(now.mono_s) <= asked.aged)
        # A gang's member waits for the others while nothing runs there.
        leased = (x for x in equal if x.state is LeaseState.LEASED and not x.request.since_ms)
        idle = sorted((x for x in leased if self._is_idle(x.lease_id)), key=lambda x: x.used_s)
        return self._to_displace(asked.needs, idle) or ()

    def _unless_offers_lapse(
        self, asked: Asked, lacking: refusals.Infeasible, now: Moment
    ) -> refusals.GivingWay | refusals.Infeasible:
        """An open offer may lapse without a commit: then there is room soon."""
        offers = [x for x in self._leases.values() if x.state is LeaseState.OFFERED]
        lapsing = self._to_displace(asked.needs, sorted(offers, key=lambda x: x.expires_s))
        if lapsing is None:
            return lacking
        ends = (x.expires_s - now.mono_s for x in lapsing)
        return _giving_way(
            lacking, max(*ends, self._parameters.fencing_s if self._ending() else 0.0, 0.0)
        )

    def _to_displace(
        self, needs: Requirements, candidates: Iterable[Lease]
    ) -> tuple[Lease, ...] | None:
        ids = [x.lease_id for x in candidates]
        displaced = to_displace(needs, self._ledger, self._ending(), ids)
        return None if displaced is None else tuple(self._leases[x] for x in displaced)

    def _ending(self) -> list[str]:
        return [x.lease_id for x in self._leases.values() if x.state is LeaseState.ENDING]

    def _gives_way_s(self, lease: Lease) -> float:
        """When it is committed or renewed, or runs out."""
        if lease.ending is not None:
            return 0.0  # as soon as it has been given back: ask again
        parameters = self._parameters
        left_s = (1 - parameters.renew_at) * parameters.lease_s
        return lease.expires_s - (left_s if lease.state is LeaseState.LEASED else 0.0)


def _giving_way(
    lacking: refusals.Infeasible, wait_s: float, turn: tuple[str, int] | None = None
) -> refusals.GivingWay:
    return refusals.GivingWay(lacking.resource, round(wait_s * 1000), turn)


def _ids(leases: Iterable[Lease]) -> list[str]:
    return [lease.lease_id for lease in leases]


def _name_of(lease: Lease) -> str:
    return lease.request.name or short_id(lease.owner.peer_id)
