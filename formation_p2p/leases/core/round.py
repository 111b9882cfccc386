"""One round of asking: several workers, best first, and what each of them answered.

A worker is outstanding while it has neither offered nor refused. The round may close as soon as
nothing that is outstanding could change the choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NewType

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Infeasible, Refusal, TooDear
from formation_p2p.leases.core.held import shortfall
from formation_p2p.leases.core.messages import Offer
from formation_p2p.leases.core.parameters import LeaseParameters
from formation_p2p.placement.core.hinted import unmet
from formation_p2p.placement.core.task_options import SchedulingKey

RoundId = NewType("RoundId", int)


@dataclass(frozen=True, slots=True)
class Standing:
    """An offer that stands until `until_s`: at the latest, as the worker began to count before."""

    offer: Offer
    until_s: float


@dataclass(slots=True)
class Round:
    """`order` is best first. `turned_down` are leases offered that will not do: they are given
    back when the round closes, with those that were not the best, so that no worker can tell
    from when it hears whether its price or its place was the reason.

    `offered_s` is when the first offer came. One that `collects` commits to none of its offers: who
    asked chooses. Those of a `call` were not asked, and
    answer by its number.
    """

    round: RoundId
    key: SchedulingKey
    order: tuple[Contact, ...]
    wanted: int
    started_s: float
    cause: str
    parameters: LeaseParameters
    requests: dict[int, PeerId] = field(default_factory=dict)
    offers: dict[PeerId, Standing] = field(default_factory=dict)
    offered_s: float = float("inf")
    refusals: dict[PeerId, Refusal] = field(default_factory=dict)
    turned_down: list[tuple[Contact, str]] = field(default_factory=list)
    collects: bool = False
    call: int | None = None
    enough: int = 0

    def waits_for(self, peer_id: PeerId, request_id: int) -> bool:
        was_asked = self.requests.get(request_id) == peer_id
        if request_id == self.call:
            was_asked = any(contact.peer_id == peer_id for contact in self.order)
        return was_asked and self.outstanding(peer_id)

    def extended(self, order: tuple[Contact, ...]) -> None:
        """More workers answer its call: these are all of them, best first."""
        self.order = order

    def outstanding(self, peer_id: PeerId) -> bool:
        return peer_id not in self.offers and peer_id not in self.refusals

    def offered(self, sender: Contact, offer: Offer, now: Moment, rtt_us: int | None) -> None:
        """The answer of a worker that is outstanding. Everything in it is checked here. Where its
        distance was not measured, it is at most what its answer took."""
        if rtt_us is None:
            rtt_us = round((now.mono_s - self.started_s) * 1_000_000)
        problem = self._problem(offer) or unmet(self.key.hints, offer.there, rtt_us)
        if problem is None:
            self.offers[sender.peer_id] = Standing(offer, now.mono_s + offer.hold_ms / 1000)
            self.offered_s = min(self.offered_s, now.mono_s)
        else:
            self.refusals[sender.peer_id] = problem
            self.turned_down.append((sender, offer.lease_id))

    def leases(self) -> Iterator[tuple[Contact, str]]:
        """What workers have offered here, and who did, as far as it has not been given back."""
        for contact in self.order:
            if contact.peer_id in self.offers:
                yield contact, self.offers[contact.peer_id].offer.lease_id
        yield from self.turned_down

    def decided(self) -> bool:
        """Whether no answer still to come could change the choice: the best `wanted` offers
        stand before the first worker that has not answered, and none can have more of the data.
        Any number of workers may answer a call: `enough` do."""
        if self.call is not None:
            return len(self.offers) >= self.enough
        offers = 0
        for contact in self.order:
            if offers >= self.wanted:
                return True
            if self.outstanding(contact.peer_id):
                return False
            offers += contact.peer_id in self.offers and self._lacks(contact) == 0
        return True

    def best_first(self) -> list[Contact]:
        """The `order`, except that a worker with more of the data hinted at comes before."""
        return sorted(self.order, key=self._lacks)

    def closes_s(self) -> float:
        parameters = self.parameters
        return min(self.started_s + parameters.answer_s, self.offered_s + parameters.deliberation_s)

    def _lacks(self, contact: Contact) -> int:
        """Bytes of the data hinted at that are not there; more yet for one to be avoided."""
        hints, standing = self.key.hints, self.offers.get(contact.peer_id)
        if not hints.near:
            return 0
        there = 0 if standing is None else hints.bytes_of(standing.offer.there)
        return hints.data_bytes * (1 + hints.avoids(contact.peer_id)) - there

    def _problem(self, offer: Offer) -> Refusal | None:
        short = shortfall(offer.holds, self.key.needs)
        if short is not None:
            return short
        # It has to last for as long as this side deliberates.
        least_ms = round(self.parameters.deliberation_s * 1000)
        most_ms = round(self.parameters.max_hold_s * 1000)
        if not least_ms <= offer.hold_ms <= most_ms:
            return Infeasible("hold", f"{least_ms} to {most_ms} ms", offer.hold_ms)
        most_micro = self.key.max_price_micro
        if most_micro is not None and offer.price_micro > most_micro:
            return TooDear(offer.price_micro, most_micro)
        return None


# One for each kind of task that waits, and one before it; the oldest is forgotten.
MAX_CALLS: Final = 128


@dataclass(slots=True)
class Call:
    """For up to `wanted` leases at once, of offers that come until `until_s`; `enough` of them, or
    the deliberation after the first, end its `round`. Then another may begin."""

    number: int
    key: SchedulingKey
    wanted: int
    enough: int
    until_s: float
    round: RoundId | None = None

    def opened(self, number: RoundId) -> None:
        self.round = number
