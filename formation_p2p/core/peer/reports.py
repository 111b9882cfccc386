"""Whom reports of the lessee and the finder are for: one who asked, a gang, or the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from formation_p2p.core.discovery.finder import Found
from formation_p2p.core.dispatch.scheduler import Scheduler
from formation_p2p.core.effects import Moment
from formation_p2p.core.gang.gangs import Gangs, RanksEnded
from formation_p2p.core.negotiation.lessee import LeaseHeld, LesseeEvent, OffersCollected
from formation_p2p.core.peer.effects import PeerEffect
from formation_p2p.core.peer.explanations import Explanations
from formation_p2p.core.peer.reputation_gossip import ReputationGossip
from formation_p2p.core.peer.story import Story


class Reports:
    def __init__(
        self,
        explanations: Explanations,
        gangs: Gangs,
        scheduler: Scheduler,
        gossip: ReputationGossip,
        story: Story,
    ) -> None:
        self._explanations = explanations
        self._gangs = gangs
        self._scheduler = scheduler
        self._gossip = gossip
        self._story = story

    def negotiated(self, events: Sequence[LesseeEvent], now: Moment) -> list[PeerEffect]:
        effects: list[PeerEffect] = []
        for event in events:
            if isinstance(event, OffersCollected):
                continue  # of a gang, which tells of itself
            self._story.note(event, now)
            if isinstance(event, LeaseHeld):
                effects += self._gossip.met(event.lease.lessor, now)
        self._gangs.negotiated(events, now)
        return effects

    def found(self, searches: Iterable[Found], now: Moment) -> list[PeerEffect]:
        effects: list[PeerEffect] = []
        for found in searches:
            told = self._explanations.found(found, now)
            if told is not None:
                effects.append(told)
            elif not self._gangs.found(found, now):
                effects += self._scheduler.found(found, now)
        return effects

    def of_gangs(self, now: Moment) -> list[PeerEffect] | None:
        """What gangs tell comes first: their members are to know each other before they work. None
        where there is nothing."""
        told, handed = self._gangs.take()
        effects: list[PeerEffect] = [*told]
        for each in handed:
            if isinstance(each, RanksEnded):
                effects += self._scheduler.ranks_ended(each.members, each.why)
            else:
                effects += self._scheduler.negotiated([each], now)
        return effects if told or handed else None
