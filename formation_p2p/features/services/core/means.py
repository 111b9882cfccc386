"""What the parts of the services part share, and how they read and write claims."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import BadRecord
from formation_p2p.core.identity import Identity, PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, Key
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.dht.core.operations import Answer, Asked, OperationId, Searched
from formation_p2p.discovery.core.finder import Finder, FindId, Found
from formation_p2p.features.services.core.claim import (
    CLAIM_TTL_S,
    Claim,
    ClaimState,
    SignedClaim,
    slot_key,
)
from formation_p2p.features.services.core.events import (
    EmitServiceEvent,
    ServiceEffect,
    ServiceEvent,
    ServiceStep,
)
from formation_p2p.features.services.core.holders import Holders
from formation_p2p.features.services.core.parameters import ServiceParameters
from formation_p2p.features.services.core.scaling import wanted
from formation_p2p.features.services.core.shelf import Shelf, asking, claims_name
from formation_p2p.features.services.core.sight import Sight
from formation_p2p.features.services.core.signed_spec import SignedSpec
from formation_p2p.features.services.core.spec import ServiceSpec, WorkerType
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.profile import SignedProfile

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
            then_asked = self._asked.pop(ended.operation, None)
            if then_asked is not None:
                then_asked(ended, now)
            return then_asked is not None
        then_searched = self._searched.pop(ended.operation, None)
        if then_searched is not None:
            then_searched(ended, now)
        return then_searched is not None


class Machine(Protocol):
    """The worker's own, as far as replicas need it."""

    def suits(self, needs: Requirements) -> bool:
        """Whether the machine meets the needs, and has room for them now."""

    def set_aside(self, name: str, needs: Requirements, now: Moment) -> tuple[str, ...] | None:
        """Reserve what a replica needs; the ids of its devices, None without room."""

    def give_back(self, name: str, now: Moment) -> None: ...


# Of the 8 nearest to a name so many have to answer: a claim is at five of them or more. With two,
# where five have died, too often the first answers are those of others.
KNOWING: Final = 1


@dataclass(frozen=True, slots=True)
class Reading:
    """What holders said of a service. It is `sound` where a majority answered, with one among
    them that claims are written to; `is_old` where these have been there for longer than a claim
    lives, so that what they do not have is not there."""

    sound: bool
    is_old: bool


ThenRead = Callable[[Reading, Moment], None]


@dataclass(slots=True, kw_only=True)
class Means:
    """`own` is where this node is reached, `grant` what it shows, and `machine` None where it lends
    none. `counts` says how many workers of a type there are, as far as is known; `refused` which
    version of a service does not become ready; `had` which slots this worker has, or had when its
    node ended."""

    identity: Identity
    dht: Kademlia[SignedProfile]
    inquiries: Inquiries
    holders: Holders
    shelf: Shelf
    rng: random.Random
    parameters: ServiceParameters
    own: Callable[[], Contact]
    grant: Callable[[], bytes]
    machine: Callable[[], Machine | None]
    sights: dict[str, Sight] = field(default_factory=dict)
    counts: dict[WorkerType, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    had: dict[str, int] = field(default_factory=dict)
    effects: list[ServiceEffect] = field(default_factory=list)

    @property
    def network_id(self) -> bytes:
        return self.shelf.network_id

    @property
    def peer_id(self) -> PeerId:
        return self.identity.peer_id

    def specs(self) -> Iterable[SignedSpec]:
        """Of all services that are to run."""
        return (each for each in self.shelf.catalog.specs.values() if not each.spec.withdrawn)

    def spec(self, service: str) -> SignedSpec | None:
        """Also a withdrawn one. Where the newest version does not become ready, the one before it,
        as far as that is known."""
        catalog = self.shelf.catalog
        newest = catalog.specs.get(service)
        if newest is not None and newest.spec.version == self.refused.get(service):
            return catalog.previous.get(service, newest)
        return newest

    def see_refused(self, service: str, now: Moment) -> None:
        """Whether the newest version fails where it was tried, and is ready nowhere."""
        newest = self.shelf.catalog.specs.get(service)
        self.refused.pop(service, None)
        if newest is None:
            return
        version = newest.spec.version
        live = self.sight(service).live(now.unix_s).values()
        is_ready = any(c.version >= version and c.state is ClaimState.READY for c in live)
        if not is_ready and any(claim.failed_version == version for claim in live):
            self.refused[service] = version

    def next_epoch(self, service: str, slot: int, now: Moment) -> int:
        """Higher than that of any claim of the slot before, also where all have begun anew."""
        return max(self.sight(service).epoch(slot) + 1, int(now.unix_s))

    def sight(self, service: str) -> Sight:
        return self.sights.setdefault(service, Sight())

    def wanted(self, signed: SignedSpec, now: Moment) -> int:
        """How many replicas there are to be, by what their holders say of the load."""
        live = self.sight(signed.spec.name).live(now.unix_s)
        return wanted(signed.spec, live.values())

    def name(self, service: str) -> bytes:
        return claims_name(self.network_id, service)

    def workers(self, kind: WorkerType) -> int:
        """At least this one, and at most all nodes that there seem to be."""
        return max(self.counts.get(kind) or self.dht_size(), 1)

    def dht_size(self) -> int:
        """How many nodes there are: as many as the nearest ones to this one's key lie close."""
        key, k = self.identity.key, self.dht.parameters.k
        nearest = self.dht.table.closest(key, k)
        if len(nearest) < k:
            return len(self.dht.table) + 1
        return density(k, key ^ key_of_peer(nearest[-1].peer_id))

    def share(self, kind: WorkerType) -> int:
        """How many replicas each worker of a type has where they share them evenly."""
        replicas = sum(
            signed.spec.replicas.target
            for signed in self.specs()
            if signed.spec.worker_type is kind and signed.spec.pinned is None
        )
        return max(1, -(-replicas // self.workers(kind)))

    def busy(
        self, spec: ServiceSpec, held: int, now: Moment, doubted: Mapping[PeerId, int]
    ) -> set[PeerId]:
        """The workers of a service's type that cannot take it on, this one among them, or that
        have `held` replicas or more: as far as their claims say."""
        newest: dict[PeerId, Claim] = {}
        of_type: set[PeerId] = set()
        for sight in self.sights.values():
            for signed in sight.claims.values():
                claim = signed.claim
                known = newest.get(claim.peer_id)
                if claim.is_fresh(now.unix_s):
                    if known is None or claim.sequence > known.sequence:
                        newest[claim.peer_id] = claim
                    if claim.worker_type is spec.worker_type:
                        of_type.add(claim.peer_id)
        full = {each for each in of_type if newest[each].services_held >= held}
        having = {each.peer_id for each in self.sight(spec.name).live(now.unix_s).values()}
        return full | having | doubted.keys() | {self.peer_id}

    def is_urgent(self, signed: SignedSpec, now: Moment) -> bool:
        """Whether it is the most important one of its type, of more than one importance in the
        catalog, and has no replica at all, as far as is known: it does not wait until workers have
        less to do."""
        own = (signed.spec.tier, signed.spec.priority)
        ranks = sorted({(each.spec.tier, each.spec.priority) for each in self.specs()})
        is_first = own == next((each for each in ranks if each[0] == own[0]), None)
        is_urgent = is_first and own < ranks[-1]
        return is_urgent and not self.sight(signed.spec.name).live(now.unix_s)

    def rank(self, spec: ServiceSpec, slot: int) -> int:
        """How many workers of the type are nearer to a slot than this one, as is to be expected."""
        far = self.identity.key ^ slot_key(spec.name, slot)
        return (far * self.workers(spec.worker_type)) >> KEY_BITS

    def emit(
        self,
        service: str,
        slot: int,
        step: ServiceStep,
        why: str,
        now: Moment,
        peer_id: PeerId | None = None,
    ) -> None:
        event = ServiceEvent(now.unix_s, service, slot, step, why, peer_id)
        self.effects.append(EmitServiceEvent(event, cause=why or step.value))

    # -- claims ---------------------------------------------------------------------------------

    def take(self, service: str, answers: Iterable[Answer], now: Moment) -> None:
        """Take in the claims that peers gave, and who they are."""
        name, sight = self.name(service), self.sight(service)
        answers = tuple(answers)
        self.holders.answered(name, answers, now)
        for answer in answers:
            if isinstance(answer.reply, kad.Providers):
                for provider in answer.reply.providers:
                    self._take(name, sight, provider, now)

    def _take(self, name: bytes, sight: Sight, provider: kad.Provider, now: Moment) -> None:
        known, raw = sight.claims.get(provider.contact.peer_id), provider.profile
        if known is not None and known.raw == raw:
            return
        try:
            sight.take(self.shelf.open_claim(name, raw, now))
        except BadRecord:
            return  # one bad record must not spoil the rest

    def read(self, service: str, now: Moment, cause: str, then: ThenRead) -> None:
        """Ask those of the nearest that are known, and take in what they say."""
        name = self.name(service)
        self._read(service, self.holders.nearest(name, now), now, cause, then)

    def _read(
        self,
        service: str,
        holders: Iterable[Contact],
        now: Moment,
        cause: str,
        then: ThenRead,
    ) -> None:
        name, quorum = self.name(service), self.holders.quorum(now)
        request = asking(name, self.parameters.max_claims)

        def answered(ended: Asked, now: Moment) -> None:
            self.take(service, ended.answers, now)
            unheard = self.holders.unheard(name, ended.good, now)
            enough = len(ended.good) >= quorum
            if enough and unheard and self.holders.knowing(name, ended.good) < KNOWING:
                # Where few of those that know are left, others may always be faster than they are.
                again = [(contact, request) for contact in unheard]
                self.inquiries.ask(again, now, cause, partial(known, ended.good), KNOWING)
            else:
                judge(ended.good, now)

        def known(before: tuple[Answer, ...], ended: Asked, now: Moment) -> None:
            self.take(service, ended.answers, now)
            judge((*before, *ended.good), now)

        def judge(good: tuple[Answer, ...], now: Moment) -> None:
            old = sum(_is_old(answer) for answer in good)
            knowing = self.holders.knowing(name, good)
            then(Reading(len(good) >= quorum and knowing >= KNOWING, old >= quorum), now)

        asked = [(contact, request) for contact in holders]
        self.inquiries.ask(asked, now, cause, answered, quorum)

    def look_up_and_read(self, service: str, now: Moment, cause: str, then: ThenRead) -> None:
        """After a lookup of who is nearest now."""
        name = self.name(service)

        def located(ended: Searched[SignedProfile], now: Moment) -> None:
            self.holders.found(name, ended.closest)
            nearest = self.dht.nearest(name, ended.closest, self.parameters.holders)
            self._read(service, nearest, now, cause, then)

        width = self.parameters.holders
        self.inquiries.search(kad.FindNode(name), now, cause, located, width)

    def write(
        self,
        service: str,
        signed: SignedClaim,
        contacts: Iterable[Contact],
        now: Moment,
        cause: str,
        then: Callable[[Asked, Moment], None],
        enough: int,
    ) -> None:
        name = self.name(service)
        put = kad.PutValue(name, signed.raw)

        def written(ended: Asked, now: Moment) -> None:
            self.holders.answered(name, ended.answers, now)
            then(ended, now)

        by_id = {contact.peer_id: contact for contact in contacts}
        requests = [(contact, put) for contact in by_id.values()]
        self.inquiries.ask(requests, now, cause, written, enough)


def density(count: int, reach: int) -> int:
    """How many there are in all, where the nearest `count` lie within `reach` of a key."""
    return max(count, (count << KEY_BITS) // max(reach, 1))


def ignored(ended: Asked, now: Moment) -> None:
    """Nothing follows from who has answered."""


def has_own(answer: Answer) -> bool:
    """Whether a peer gave a claim of its own: one that has begun anew does not."""
    reply, peer_id = answer.reply, answer.to.peer_id
    return isinstance(reply, kad.Providers) and any(
        provider.contact.peer_id == peer_id for provider in reply.providers
    )


def _is_old(answer: Answer) -> bool:
    """Whether the peer has kept claims for longer than one lives."""
    reply = answer.reply
    return (
        isinstance(reply, kad.Providers)
        and reply.count is not None
        and reply.count.settled > CLAIM_TTL_S
    )
