"""Why a task would go where, asked by the person: a search for workers, and no lease."""

from __future__ import annotations

from formation_p2p.core.discovery.finder import Finder, FindId, Found
from formation_p2p.core.dispatch.scheduler import Scheduler
from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.keyspace import key_of
from formation_p2p.core.peer.effects import Explained, RejectRequest
from formation_p2p.core.peer.events import Explain


class Explanations:
    """Those asked for whose search goes on. The finder bounds them."""

    def __init__(self, finder: Finder, scheduler: Scheduler) -> None:
        self._finder = finder
        self._scheduler = scheduler
        self._asked: dict[FindId, Explain] = {}

    def ask(self, event: Explain, now: Moment) -> list[RejectRequest]:
        """Search. Empty, or the refusal."""
        target = key_of(event.name.encode())
        needs = None if event.terms is None else event.terms.needs
        why = "too many queries are under way; ask again when one has ended"
        try:
            find = self._finder.find(needs, target, now, "explain", fresh=True)
        except InvalidInput as error:
            find, why = None, str(error)
        if find is None:
            return [RejectRequest(str(event.query), why, cause="explain")]
        self._asked[find] = event
        return []

    def found(self, found: Found, now: Moment) -> Explained | None:
        """The explanation, where it was this search; None where it was another."""
        query = self._asked.pop(found.find, None)
        if query is None:
            return None
        decision = self._scheduler.explain(query.terms, query.name, found.profiles, now)
        return Explained(query.query, decision, found.trace, cause="explain")
