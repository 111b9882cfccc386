"""The scheduler's side of a lease: ask a few workers, deliberate, commit, renew, let go.

A round asks several workers at once and closes as soon as nothing still outstanding could
change the choice. Leases are renewed at two thirds of their life; their expiry counts from when
the renewal was sent, so that this side never believes in a lease longer than the worker does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import ensure
from formation_p2p.core.identity import PeerId
from formation_p2p.core.latest import Latest
from formation_p2p.core.refusals import Denied, Gone, Refusal, Silent
from formation_p2p.leases.core import messages as work
from formation_p2p.leases.core.held_lease import HeldLease, HeldState, LeaseKey
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS, LeaseParameters
from formation_p2p.leases.core.releases import Releases
from formation_p2p.leases.core.round import MAX_CALLS, Call, Round, RoundId
from formation_p2p.leases.core.session import Send, Undelivered
from formation_p2p.leases.core.unserved import Unserved
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.trust.core.network import narrowed


@dataclass(frozen=True, slots=True)
class RoundClosed:
    """`refusals` are of those that said no, or nothing in time. A worker whose answer no longer
    mattered is in neither."""

    round: RoundId
    committed: tuple[PeerId, ...]
    refusals: tuple[tuple[PeerId, Refusal], ...]


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    lease: HeldLease


@dataclass(frozen=True, slots=True)
class LeaseRecovered:
    """The worker answers again, after messages may have been lost: repeat what matters."""

    lease: HeldLease


@dataclass(frozen=True, slots=True)
class LeaseYields:
    """To an equal from now on, or after all not."""

    lease: HeldLease


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The lease has ended, in this state, and what ran under it will bring no result."""

    lease: HeldLease
    refusal: Refusal
    state: HeldState


@dataclass(frozen=True, slots=True)
class CollectedOffer:
    """It stands until `until_s`, and is to be committed to, or turned down. `rtt_us` is how far its
    worker is."""

    contact: Contact
    offer: work.Offer
    until_s: float
    rtt_us: int | None = None

    @property
    def key(self) -> LeaseKey:
        return (self.contact.peer_id, self.offer.lease_id)


@dataclass(frozen=True, slots=True)
class OffersCollected:
    """A round that only collects has closed. `refusals` are as in RoundClosed."""

    round: RoundId
    offers: tuple[CollectedOffer, ...]
    refusals: tuple[tuple[PeerId, Refusal], ...]


NegotiationEvent = RoundClosed | LeaseHeld | LeaseRecovered | LeaseYields | LeaseLost
LesseeEvent = NegotiationEvent | OffersCollected


class Lessee:
    """Hand it every message of the lessor's kind and every Undelivered, `tick` when due; then
    `take` what came of it. `rounds` are open, `offers` collected, `held` the leases in force.
    `rtt_us` says how far a peer is, as far as that was measured; `name` is that of this node."""

    def __init__(
        self,
        grant: bytes,
        rng: random.Random,
        rtt_us: Callable[[PeerId, Moment], int | None] = lambda peer_id, now: None,
        parameters: LeaseParameters = LEASE_DEFAULTS,
        name: str = "",
    ) -> None:
        self._name = name
        # What a worker is to be shown for hours of a quota; None where there is none.
        self.extension: Callable[[PeerId, Moment], bytes | None] = lambda worker, now: None
        self.held: dict[LeaseKey, HeldLease] = {}
        self._parameters = parameters
        self.grant = grant
        self.root_public_key = b""  # without it nothing is shown for others
        self._rtt_us = rtt_us
        self.rounds: dict[RoundId, Round] = {}
        self.calls = Latest[int, Call](MAX_CALLS)
        self.offers: dict[LeaseKey, CollectedOffer] = {}
        self._releases = Releases()
        self._unserved = Unserved(parameters)
        self._round_count = 0
        # Random, so that answers to an earlier incarnation of this node match nothing.
        self._request_count = rng.getrandbits(48)
        self._effects: list[Send] = []
        self._events: list[LesseeEvent] = []

    def take(self) -> tuple[list[Send], list[LesseeEvent]]:
        effects, self._effects = self._effects, []
        events, self._events = self._events, []
        return effects, events

    def shown(self, key: SchedulingKey) -> bytes:
        """The grant for tasks of this key."""
        return narrowed(self.grant, self.root_public_key, key.on_behalf)

    # -- rounds ---------------------------------------------------------------------------------

    def ask(
        self,
        order: Sequence[Contact],
        key: SchedulingKey,
        *,
        wanted: int,
        now: Moment,
        cause: str,
        collects: bool = False,
        beside: work.Beside = (),
        since_ms: int = 0,
    ) -> RoundId:
        """Ask these workers, best first, for up to `wanted` leases, at most one of each. Ends in
        RoundClosed; each worker committed to then follows as LeaseHeld or LeaseLost. A round that
        `collects` ends in OffersCollected; `beside` and `since_ms` go with its requests."""
        self._round_count += 1
        number = RoundId(self._round_count)
        asked = Round(
            *(number, key, tuple(order), wanted, now.mono_s, cause, self._parameters),
            collects=collects,
        )
        self.rounds[number] = asked
        near = tuple(blob.cid for blob in key.hints.near)
        for contact in asked.order:
            self._request_count += 1
            asked.requests[self._request_count] = contact.peer_id
            if not collects:  # a gang seeks on for as long as it lacks a member
                self._unserved.asked(self._request_count, key)
            request = work.PlacementRequest(
                *(self._request_count, key.needs, self.shown(key), key.priority, near, self._name),
                beside,
                since_ms,
            )
            self._send(contact, request, cause)
        return number

    def withdraw(self, key: SchedulingKey, now: Moment, cause: str) -> None:
        """Nothing waits for leases of this key any more: workers that refused are told, and have
        nothing give way to it."""
        self._withdraw(self._unserved.withdraw(key, now), cause)

    def _withdraw(self, requests: Iterable[tuple[Contact, int]], cause: str) -> None:
        for to, request_id in requests:
            self._send(to, work.Release(work.waiting_id(request_id)), cause)

    def call(self, key: SchedulingKey, wanted: int, enough: int, until_s: float) -> int:
        """Take offers by the number that is returned, of workers that are not asked, if they are
        `expected` as they come."""
        self._request_count += 1
        self.calls[self._request_count] = Call(self._request_count, key, wanted, enough, until_s)
        return self._request_count

    def called(self, number: int, now: Moment) -> Call | None:
        """The call that an offer is for, while that stands."""
        call = self.calls.get(number)
        return None if call is None or call.until_s <= now.mono_s else call

    def expected(
        self, call: Call, order: Sequence[Contact], wanted: int, now: Moment, cause: str
    ) -> RoundId:
        """The offers of these workers, best first, are taken for up to `wanted` leases: in the
        round of the call, or in a new one, which ends as a round of those asked does."""
        opened = self.rounds.get(call.round) if call.round is not None else None
        if opened is not None:
            opened.extended(tuple(order))
            return opened.round
        self._round_count += 1
        number = RoundId(self._round_count)
        self.rounds[number] = Round(
            *(number, call.key, tuple(order), wanted, now.mono_s, cause, self._parameters),
            call=call.number,
            enough=call.enough,
        )
        call.opened(number)
        return number

    def commit(
        self, offered: CollectedOffer, key: SchedulingKey, now: Moment, cause: str
    ) -> HeldLease:
        """Commit to an offer that was collected: it follows as LeaseHeld or LeaseLost."""
        del self.offers[offered.key]
        return self._commit(offered.contact, offered.offer, key, now, cause)

    def turn_down(self, offers: Iterable[CollectedOffer], cause: str) -> None:
        """Give back those of these offers that were not committed to."""
        for each in offers:
            if self.offers.pop(each.key, None) is not None:
                self._give_back(each.contact, each.offer.lease_id, cause)

    def received(self, sender: Contact, message: work.ToLessee, now: Moment) -> None:
        if isinstance(message, work.Offer | work.RequestRefused):
            self._answered(sender, message, now)
            return
        lease = self.held.get((sender.peer_id, message.lease_id))
        if lease is None and isinstance(message, work.Leased):
            self._release(sender, message.lease_id, now.mono_s, "a lease that is not waited for")
        if lease is None:
            return
        match message:
            case work.Leased():
                self._unserved.granted(lease.scheduling_key, sender.peer_id)
                if lease.move("leased"):
                    lease.granted(message, self._parameters)
                    self._events.append(LeaseHeld(lease))
            case work.Renewed():
                was_suspect = lease.is_suspect
                if message.ttl_ms and lease.move("renewed"):
                    lease.granted(message, self._parameters)
                    if was_suspect:
                        self._events.append(LeaseRecovered(lease))
                if lease.told(yields=message.yields_ms is not None):
                    self._events.append(LeaseYields(lease))
            case work.CommitRefused():
                self._lose(lease, "refused", message.refusal)
            case work.LeaseEnded():
                self._lose(lease, "ended", message.refusal)
            case _:
                assert_never(message)

    def _answered(
        self, sender: Contact, message: work.Offer | work.RequestRefused, now: Moment
    ) -> None:
        peer_id, request_id = sender.peer_id, message.request_id
        if self._unserved.answered(sender, message, now):
            self._withdraw([(sender, request_id)], "it came too late to be waited for")
        waiting = (x for x in self.rounds.values() if x.waits_for(peer_id, request_id))
        asked = next(waiting, None)
        if asked is None:
            # A worker's first offer counts: it holds one place for each request. A second one is
            # given back, though it be cheaper: to wait for it would be to wait in every round.
            if isinstance(message, work.Offer) and not self._knows(sender, message.lease_id):
                # Too late, or never asked for. (Where it is known, the message came twice.)
                release = work.Release(message.lease_id)
                self._send(sender, release, "an offer that is not waited for")
            return
        if isinstance(message, work.Offer):
            asked.offered(sender, message, now, self._rtt_us(sender.peer_id, now))
        else:
            asked.refusals[sender.peer_id] = message.refusal
        if asked.decided():
            self._close(asked, now)

    # -- leases ---------------------------------------------------------------------------------

    def adopt(
        self,
        lessor: Contact,
        lease_id: str,
        key: SchedulingKey,
        fence: int,
        device_ids: tuple[str, ...],
        now: Moment,
    ) -> HeldLease:
        """Take up a lease that an earlier incarnation of this node held. Its worker is asked at
        once; it follows as LeaseRecovered, or as LeaseLost within the time for any answer."""
        lease = self._hold(lessor, lease_id, key, HeldState.ADOPTED, fence, device_ids, now)
        self._ask(lease, "renew", now)
        return lease

    def release(self, lease: HeldLease, cause: str) -> None:
        """Give a lease back: nothing is to run under it any more."""
        if lease.move("released"):
            del self.held[lease.key]
            self._release(lease.lessor, lease.lease_id, lease.asked_s, cause)

    def give_up(self, lease: HeldLease, refusal: Refusal, cause: str) -> None:
        """Give a lease back whose holder does not know of that: it follows as LeaseLost."""
        state = lease.state
        self.release(lease, cause)
        if state is not lease.state:
            self._events.append(LeaseLost(lease, refusal, state))

    def forsake(self, refuses: Callable[[HeldLease], Denied | None]) -> None:
        """Leases at workers that are not admitted any more are lost; one that is committed to is
        given back as its answer comes."""
        for lease in list(self.held.values()):
            if (denied := refuses(lease)) is not None:
                self._lose(lease, "refused" if lease.is_committing else "ended", denied)

    def leave(self, cause: str, now: Moment) -> None:
        """Give everything back, offers too. An answer still to come is given back as it comes."""
        for lease in list(self.held.values()):
            self.release(lease, cause)
        for asked in self.rounds.values():
            for contact, lease_id in asked.leases():
                self._give_back(contact, lease_id, cause)
        self.rounds.clear()
        self.calls.clear()
        self.turn_down(list(self.offers.values()), cause)
        self._withdraw(self._unserved.withdraw_all(now), cause)

    def undelivered(self, event: Undelivered, now: Moment) -> None:
        """The stream to a worker broke. What its leases wait for is asked again, then once more
        where they were held; when that cannot be delivered either, they are lost."""
        for asked in list(self.rounds.values()):
            if any(c.peer_id == event.to for c in asked.order) and asked.outstanding(event.to):
                asked.refusals[event.to] = Silent(event.reason)
                if asked.decided():
                    self._close(asked, now)
        for lease in [x for x in self.held.values() if x.lessor.peer_id == event.to]:
            if not self._ask(lease, "undelivered", now):
                self._lose(lease, "undelivered", Silent(event.reason))
        for contact, lease_id in self._releases.again(event.to, now):
            self._give_back(contact, lease_id, "the release may be lost")

    def disconnected(self, peer_id: PeerId, now: Moment) -> None:
        """The connection to a worker closed: ask whether it is still there."""
        for lease in self.held.values():
            if lease.lessor.peer_id == peer_id:
                self._ask(lease, "disconnected", now)

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now: Moment) -> None:
        for asked in list(self.rounds.values()):
            if now.mono_s >= asked.closes_s():
                self._close(asked, now)
        for lease in list(self.held.values()):
            if now.mono_s >= lease.expires_s:
                self._lose(lease, "expired", Silent("it did not answer in time"))
            elif now.mono_s >= lease.renew_s:
                self._ask(lease, "renew", now)

    def next_timeout(self) -> float:
        if not self.rounds and not self.held:
            return float("inf")  # as a rule; it is asked for after every message
        rounds = [asked.closes_s() for asked in self.rounds.values()]
        leases = [min(lease.expires_s, lease.renew_s) for lease in self.held.values()]
        return min(rounds + leases)

    def validate(self) -> None:
        """Raises InvariantBroken."""
        for key, lease in self.held.items():
            ensure(key == lease.key, f"{lease.lease_id} is kept under another name")
            ensure(lease.state is not HeldState.ENDED, f"{lease.lease_id} has ended, and is held")

    def _close(self, asked: Round, now: Moment) -> None:
        """Commit to the best offers, and give back the rest; or hand on those collected."""
        del self.rounds[asked.round]
        committed: list[PeerId] = []
        collected: list[CollectedOffer] = []
        refusals: list[tuple[PeerId, Refusal]] = []
        for contact in asked.best_first():
            standing = asked.offers.get(contact.peer_id)
            refusal = asked.refusals.get(contact.peer_id)
            if refusal is not None:
                refusals.append((contact.peer_id, refusal))
            elif standing is None:
                if now.mono_s >= asked.closes_s():
                    waited = f"it did not answer within {now.mono_s - asked.started_s:.1f} s"
                    refusals.append((contact.peer_id, Silent(waited)))
            elif self._has((contact.peer_id, standing.offer.lease_id)):
                twice = Gone(f"lease {standing.offer.lease_id}", "the worker offered it twice")
                refusals.append((contact.peer_id, twice))
            elif asked.collects:
                rtt_us = self._rtt_us(contact.peer_id, now)
                offered = CollectedOffer(contact, standing.offer, standing.until_s, rtt_us)
                self.offers[offered.key] = offered
                collected.append(offered)
            elif len(committed) >= asked.wanted or standing.until_s <= now.mono_s:
                # One that has run out does not count against the worker: this machine slept.
                self._give_back(contact, standing.offer.lease_id, "a better offer was taken")
            else:
                committed.append(contact.peer_id)
                self._commit(contact, standing.offer, asked.key, now, asked.cause)
        for contact, lease_id in asked.turned_down:
            self._give_back(contact, lease_id, "a better offer was taken")
        if asked.collects:
            offers = tuple(collected)
            self._events.append(OffersCollected(asked.round, offers, tuple(refusals)))
        else:
            self._events.append(RoundClosed(asked.round, tuple(committed), tuple(refusals)))

    def _commit(
        self, to: Contact, offer: work.Offer, key: SchedulingKey, now: Moment, cause: str
    ) -> HeldLease:
        devices = offer.holds.device_ids
        lease = self._hold(to, offer.lease_id, key, HeldState.COMMITTED, 0, devices, now)
        self._send(to, work.Commit(offer.lease_id, self.extension(to.peer_id, now)), cause)
        return lease

    def _hold(
        self,
        lessor: Contact,
        lease_id: str,
        key: SchedulingKey,
        state: HeldState,
        fence: int,
        device_ids: tuple[str, ...],
        now: Moment,
    ) -> HeldLease:
        """Its worker has the time for any answer to say that it is held."""
        expires_s = now.mono_s + self._parameters.answer_s
        # On what an earlier incarnation asked is not known.
        grant = b"" if state is HeldState.ADOPTED else self.shown(key)
        asked_s = now.mono_s
        lease = HeldLease(
            lease_id, lessor, key, state, expires_s, fence, device_ids, asked_s=asked_s, grant=grant
        )
        self.held[lease.key] = lease
        return lease

    def _ask(self, lease: HeldLease, event: str, now: Moment) -> bool:
        """Whether there is anything left to ask."""
        asks = lease.ask(event, now.mono_s, self._parameters.renew_again_s)
        if asks and lease.is_committing:
            commit = work.Commit(lease.lease_id, self.extension(lease.lessor.peer_id, now))
            self._send(lease.lessor, commit, "the commit may be lost")
        elif asks:
            shown = self.shown(lease.scheduling_key)
            grant = b"" if lease.grant == shown else shown
            extension = self.extension(lease.lessor.peer_id, now)
            renew = work.Renew(lease.lease_id, lease.fence, grant, extension)
            self._send(lease.lessor, renew, "renewal is due")
        return asks

    def _knows(self, sender: Contact, lease_id: str) -> bool:
        key = (sender.peer_id, lease_id)
        offered = (each for asked in self.rounds.values() for each in asked.leases())
        return self._has(key) or any((to.peer_id, known) == key for to, known in offered)

    def _has(self, key: LeaseKey) -> bool:
        return key in self.held or key in self.offers

    def _give_back(self, to: Contact, lease_id: str, cause: str) -> None:
        """Turn an offer down, unless its name is that of a lease held."""
        if (to.peer_id, lease_id) not in self.held:
            self._send(to, work.Release(lease_id), cause)

    def _release(self, to: Contact, lease_id: str, asked_s: float, cause: str) -> None:
        """Of a lease that its worker granted, or renewed, not before `asked_s`."""
        self._releases.sent(to, lease_id, asked_s + self._parameters.max_lease_s)
        self._send(to, work.Release(lease_id), cause)

    def _lose(self, lease: HeldLease, event: str, refusal: Refusal) -> None:
        state = lease.state
        if lease.move(event):
            del self.held[lease.key]
            self._events.append(LeaseLost(lease, refusal, state))

    def _send(self, to: Contact, message: work.WorkMessage, cause: str) -> None:
        self._effects.append(Send(to, message, cause=cause))
