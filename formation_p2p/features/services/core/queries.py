"""Which services are there, and where: what a person, a router or a gateway asks of a node."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.operations import Asked, Searched
from formation_p2p.features.services.core.catalog import CatalogReader
from formation_p2p.features.services.core.claim import Claim, ClaimState
from formation_p2p.features.services.core.events import ReadServices, ServicesRead
from formation_p2p.features.services.core.means import Means, has_own
from formation_p2p.features.services.core.shelf import asking
from formation_p2p.records.core.profile import SignedProfile

# Asked for one question: those that were not heard of for the longest time.
MAX_ASKED = 64


class Sureness:
    """Of one node. Who was asked lately is not asked again."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._asked_s: dict[PeerId, float] = {}  # of those that had a claim lately
        self._silent: dict[tuple[str, PeerId], int] = {}  # and the sequence of the claim

    def is_silent(self, claim: Claim) -> bool:
        return self._silent.get((claim.service, claim.peer_id), -1) >= claim.sequence

    def check(self, services: Iterable[str], now: Moment, then: Callable[[Moment], None]) -> None:
        """`then` is called when all have answered, or will not."""
        means, ours = self._means, self._means.parameters
        claims: dict[PeerId, Claim] = {}
        for service in services:
            for signed in means.sight(service).listed(now.unix_s):
                if signed.claim.state is ClaimState.READY:
                    claims[signed.claim.peer_id] = signed.claim
        claims.pop(means.peer_id, None)
        self._asked_s = {
            peer_id: asked_s
            for peer_id, asked_s in self._asked_s.items()
            if peer_id in claims and now.mono_s - asked_s < ours.sure_s
        }
        due = [claim for peer_id, claim in claims.items() if peer_id not in self._asked_s]
        chosen = {claim.peer_id: claim for claim in due[:MAX_ASKED]}
        if not chosen:
            then(now)
            return
        self._asked_s |= dict.fromkeys(chosen, now.mono_s)
        asked = [
            (
                Contact(claim.peer_id, claim.addresses),
                asking(means.name(claim.service), ours.max_claims),
            )
            for claim in chosen.values()
        ]
        answered = partial(self._answered, chosen, then)
        means.inquiries.ask(asked, now, "sure", answered, len(asked))

    def _answered(
        self,
        asked: Mapping[PeerId, Claim],
        then: Callable[[Moment], None],
        ended: Asked,
        now: Moment,
    ) -> None:
        for answer in ended.answers:
            claim = asked[answer.to.peer_id]
            if answer.reply is None or not has_own(answer):
                self._mark(claim.peer_id)
            else:
                self._means.take(claim.service, [answer], now)
        then(now)

    def _mark(self, peer_id: PeerId) -> None:
        """All that it claims is in doubt, until it claims it again."""
        known = self._means.sights.items()
        silent = {
            (service, peer_id): sight.claims[peer_id].claim.sequence
            for service, sight in known
            if peer_id in sight.claims
        }
        there = {
            key: sequence
            for key, sequence in self._silent.items()
            if key[1] in self._means.sight(key[0]).claims
        }
        self._silent = there | silent


# Services that are read at once for one question: lookups share the DHT with all else.
AT_ONCE = 16


@dataclass(slots=True)
class _Query:
    number: int
    named: tuple[str, ...]
    sure: bool = False
    heard: bool = False
    left: deque[str] = field(default_factory=deque)
    names: tuple[str, ...] = ()
    running: int = 0
    unknown: list[str] = field(default_factory=list)


class Queries:
    """Each ends in ServicesRead."""

    def __init__(self, means: Means, catalog: CatalogReader) -> None:
        self._means = means
        self._catalog = catalog
        self._sureness = Sureness(means)
        self._running = 0

    def read(self, event: ReadServices, now: Moment) -> None:
        query = _Query(event.query, event.named, event.sure)
        if self._running >= self._means.parameters.max_queries:
            query.names = self._names(query)
            self._tell(query, now)  # as it is remembered
            return
        self._running += 1
        self._catalog.read(now, partial(self._catalogued, query), self._means.parameters.read_width)

    def _catalogued(self, query: _Query, heard: bool, now: Moment) -> None:
        query.heard = heard
        query.names = self._names(query)
        query.left.extend(query.names)
        self._go_on(query, now)

    def _names(self, query: _Query) -> tuple[str, ...]:
        """The services that it asks about, of those that are known by now."""
        there = (signed.spec.name for signed in self._means.specs())
        return tuple(name for name in there if not query.named or name in query.named)

    def _go_on(self, query: _Query, now: Moment) -> None:
        while query.left and query.running < AT_ONCE:
            query.running += 1
            self._claims(query, query.left.popleft(), now)
        if not query.running and not query.left:
            if query.sure:
                self._sureness.check(query.names, now, partial(self._end, query))
            else:
                self._end(query, now)

    def _end(self, query: _Query, now: Moment) -> None:
        self._running -= 1
        self._tell(query, now)

    def _claims(self, query: _Query, service: str, now: Moment) -> None:
        means, name = self._means, self._means.name(service)

        def located(ended: Searched[SignedProfile], now: Moment) -> None:
            means.holders.found(name, ended.closest)
            self._ask(query, service, now)

        if means.holders.knows(name):
            self._ask(query, service, now)
        else:
            width = means.parameters.holders
            means.inquiries.search(kad.FindNode(name), now, "read", located, width)

    def _ask(self, query: _Query, service: str, now: Moment) -> None:
        means, name = self._means, self._means.name(service)
        request = asking(name, means.parameters.max_claims)
        nearest = means.holders.nearest(name, now)[: means.parameters.read_width]
        asked = [(contact, request) for contact in nearest]
        then = partial(self._answered, query, service)
        means.inquiries.ask(asked, now, "read", then, means.parameters.read_width)

    def _answered(self, query: _Query, service: str, ended: Asked, now: Moment) -> None:
        self._means.take(service, ended.answers, now)
        if not ended.good:
            query.unknown.append(service)
        query.running -= 1
        self._go_on(query, now)

    def _tell(self, query: _Query, now: Moment) -> None:
        means = self._means
        catalog = tuple(each for each in means.specs() if each.spec.name in query.names)
        claims = tuple(
            claim
            for name in query.names
            if name not in query.unknown
            for claim in means.sight(name).listed(now.unix_s)
            if not self._sureness.is_silent(claim.claim)
        )
        unknown = tuple(query.unknown)
        read = ServicesRead(query.number, catalog, claims, unknown, query.heard, cause="asked for")
        means.effects.append(read)
