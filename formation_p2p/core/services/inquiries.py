"""Questions to given peers, and what is to be done with the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from formation_p2p.core.dht import messages as kad
from formation_p2p.core.dht.kademlia import Kademlia
from formation_p2p.core.dht.operations import Asked, OperationId, Searched
from formation_p2p.core.discovery.finder import Finder, FindId, Found
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.keyspace import Key
from formation_p2p.core.records.profile import SignedProfile
from formation_p2p.core.resources.requirements import Requirements

Then = Callable[[Asked, Moment], None]
ThenFound = Callable[[Found, Moment], None]
ThenSearched = Callable[[Searched[SignedProfile], Moment], None]


class Inquiries:
    """Of the services part of one peer. Hand it every Asked and Searched of the DHT."""

    def __init__(self, dht: Kademlia[SignedProfile], finder: Finder) -> None:
        self._dht = dht
        self._finder = finder
        self._finds: dict[FindId, ThenFound] = {}
        self._asked: dict[OperationId, Then] = {}
        self._searched: dict[OperationId, ThenSearched] = {}

    def ask(
        self,
        requests: Iterable[tuple[Contact, kad.GetProviders | kad.PutValue]],
        now: Moment,
        cause: str,
        then: Then,
        enough: int,
    ) -> None:
        """`then` gets the answers: as soon as there are `enough`, or when there can be no more."""
        operation = self._dht.operations.ask(requests, now, f"services: {cause}", enough)
        self._asked[operation] = then

    def search(
        self, request: kad.Query, now: Moment, cause: str, then: ThenSearched, width: int
    ) -> None:
        operation = self._dht.search(request, now, f"services: {cause}", width=width)
        self._searched[operation] = then

    def find(
        self,
        needs: Requirements,
        target: Key,
        now: Moment,
        cause: str,
        then: ThenFound,
        least: int = 0,
    ) -> bool:
        """Workers for these needs, nearest to a key, and not fewer than the `least` if there are as
        many. False while too many finds are in flight."""
        cause = f"services: {cause}"
        find = self._finder.find(needs, target, now, cause, fresh=True, least=least)
        if find is not None:
            self._finds[find] = then
        return find is not None

    def found(self, found: Found, now: Moment) -> bool:
        """Whether it was asked for here."""
        then = self._finds.pop(found.find, None)
        if then is not None:
            then(found, now)
        return then is not None

    def ended(self, ended: Searched[SignedProfile] | Asked, now: Moment) -> bool:
        """Whether it was one of these."""
        if isinstance(ended, Asked):
            self._asked.pop(ended.operation)(ended, now)  # no other part of a peer asks
            return True
        then_searched = self._searched.pop(ended.operation, None)
        if then_searched is not None:
            then_searched(ended, now)
        return then_searched is not None
