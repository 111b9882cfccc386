"""Explanations: who could run a task, and why the others could not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.keyspace import key_of
from formation_p2p.discovery.core.finder import Finder, FindId, Found
from formation_p2p.discovery.core.trace import Trace
from formation_p2p.jobs.core.scheduler import Scheduler
from formation_p2p.machine.core.python import ANY_PYTHON
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.effects import Explained, RejectRequest
from formation_p2p.peer.core.events import Explain


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
