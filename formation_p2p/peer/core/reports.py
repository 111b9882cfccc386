"""Whom reports of the lessee and the finder are for: one who asked, a gang, or the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.keyspace import key_of
from formation_p2p.discovery.core.finder import Finder, FindId, Found
from formation_p2p.discovery.core.trace import Trace
from formation_p2p.features.gangs.core.gangs import Gangs, RanksEnded
from formation_p2p.jobs.core.scheduler import Scheduler
from formation_p2p.leases.core.lessee import LeaseHeld, LesseeEvent, OffersCollected
from formation_p2p.machine.core.python import ANY_PYTHON
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.effects import Explained, PeerEffect, RejectRequest
from formation_p2p.peer.core.events import Explain
from formation_p2p.peer.core.reputation_gossip import ReputationGossip
from formation_p2p.peer.core.story import Story


@dataclass(slots=True, eq=False)
class _Query:
    """`found` is what its searches have brought so far."""

    event: Explain
    found: list[Found] = field(default_factory=list)


class Explanations:
    """Those asked for whose searches go on. The finder bounds them."""

    def __init__(self, finder: Finder, scheduler: Scheduler) -> None:
        self._finder = finder
        self._scheduler = scheduler
        self._asked: dict[FindId, _Query] = {}

    def ask(self, event: Explain, now: Moment) -> list[RejectRequest]:
        """Search. Empty, or the refusal."""
        target, query = key_of(event.name.encode()), _Query(event)
        why = "too many queries are under way; ask again when one has ended"
        finds: list[FindId | None] = []
        try:
            for needs in _searched(None if event.terms is None else event.terms.needs):
                finds.append(self._finder.find(needs, target, now, "explain", fresh=True))
        except InvalidInput as error:
            finds, why = [None], str(error)
        begun = [find for find in finds if find is not None]
        if len(begun) < len(finds):
            return [RejectRequest(str(event.query), why, cause="explain")]
        self._asked |= dict.fromkeys(begun, query)
        return []

    def found(self, found: Found, now: Moment) -> Explained | None:
        """The explanation, where it was the last search for this; else None."""
        query = self._asked.pop(found.find, None)
        if query is None:
            return None
        query.found.append(found)
        if query in self._asked.values():
            return None
        profiles = {each.peer_id: each for one in query.found for each in one.profiles}
        trace = Trace(tuple(step for one in query.found for step in one.trace.steps))
        event = query.event
        decision = self._scheduler.explain(event.terms, event.name, profiles.values(), now)
        return Explained(event.query, decision, trace, cause="explain")


def _searched(needs: Requirements | None) -> Iterator[Requirements | None]:
    """Discovery names none of those with other versions of Python while it finds some with the one
    that is asked for."""
    yield needs
    if needs is not None and needs.python not in ("", ANY_PYTHON):
        yield replace(needs, python="")


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
