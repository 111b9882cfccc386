"""The specs and claims that a node keeps for others, beside the profiles of the DHT's store.

As there, nothing is kept that its author did not sign, that is older than what is known, or
whose author is not admitted. A claim that has expired stays for a while as history: who reads it
knows whom to ask before a slot counts as a gap.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import BadRecord, ExpiredRecord
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import Key, distance, key_from_bytes
from formation_p2p.core.refusals import Denied
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.messages import GetProviders, ProviderQuery
from formation_p2p.features.services.core.claim import SignedClaim, open_claim
from formation_p2p.features.services.core.signed_spec import SignedSpec, open_spec
from formation_p2p.features.services.core.spec import MAX_SERVICES

CLAIMS_PREFIX: Final = b"/formation/service/"
CATALOG_PREFIX: Final = b"/formation/catalog/"
SPEC_PREFIX: Final = b"/formation/spec/"
# A target where all that is kept fits into a reply.
ANYWHERE: Final = Key(0)


@lru_cache(maxsize=1024)
def claims_name(network_id: bytes, service: str) -> bytes:
    """Under it are the claims of a service's replicas."""
    return CLAIMS_PREFIX + hashlib.sha256(network_id + service.encode()).digest()


def catalog_name(network_id: bytes) -> bytes:
    """Under it are the specs of all services of a network."""
    return CATALOG_PREFIX + hashlib.sha256(network_id).digest()


def spec_name(digest: bytes) -> bytes:
    """Under it is one spec."""
    return SPEC_PREFIX + digest


def asking(name: bytes, limit: int, target: Key = ANYWHERE, known: bytes = b"") -> GetProviders:
    """The request for what a peer keeps under a name: of too much the nearest to the target, and
    nothing where all that it keeps is `known`."""
    return GetProviders(name, ProviderQuery(target, known, limit))


# At 1 KiB each, 16 MiB for all services; the specs are 1 MiB.
MAX_CLAIMS: Final = 64
# What one worker claims, and what all do. Names of services are free: a worker may claim more of
# them than a network can have.
MAX_BY_WORKER: Final = MAX_SERVICES
MAX_ALL_CLAIMS: Final = MAX_SERVICES * MAX_CLAIMS
# A reply is a frame of at most 256 KiB, in which there are twenty closer peers too.
MAX_REPLY_BYTES: Final = 160 * 1024
# How long an expired claim is history. A partition of minutes, or a router that restarts, is over
# by then.
HISTORY_S: Final = 600.0

Admit = Callable[[bytes, PeerId, Moment], Denied | None]
"""Why a peer, which showed a grant, may not have such a record here."""


def counts_more(new: SignedSpec, old: SignedSpec) -> bool:
    """Of two specs of one service: the higher version, of equal ones the smaller digest."""
    return (-new.spec.version, new.digest) < (-old.spec.version, old.digest)


def set_hash(specs: Iterable[SignedSpec]) -> bytes:
    """The same for equal sets of specs, and of no other."""
    return hashlib.sha256(b"".join(sorted(each.digest for each in specs))).digest()


class Catalog:
    """The specs that a node knows, one for each service: what counts the most."""

    def __init__(self) -> None:
        self.specs: dict[str, SignedSpec] = {}
        self.previous: dict[str, SignedSpec] = {}  # what counted before, for a way back
        self._hash: bytes | None = None

    @property
    def hash(self) -> bytes:
        if self._hash is None:
            self._hash = set_hash(self.specs.values())
        return self._hash

    def take(self, signed: SignedSpec) -> bool:
        """Whether it is known by now, or what counts more."""
        known = self.specs.get(signed.spec.name)
        if known is None and len(self.specs) >= MAX_SERVICES:
            return False
        if known is None or counts_more(signed, known):
            if known is not None:
                self.previous[known.spec.name] = known
            # By name, whatever the order in which they came: all that follows is the same then.
            self.specs = dict(sorted({**self.specs, signed.spec.name: signed}.items()))
            self._hash = None
            return True
        return known.digest == signed.digest

    def expire(self, now_unix_s: float) -> None:
        for name, signed in list(self.specs.items()):
            if signed.expires_unix_s <= now_unix_s:
                del self.specs[name]
                self.previous.pop(name, None)
                self._hash = None


class Shelf:
    """`admits_work` and `admits_services` judge authors of claims and of specs; `kept` is told of
    each claim that is new here."""

    def __init__(
        self,
        network_id: bytes,
        admits_work: Admit,
        admits_services: Admit,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        max_claims: int = MAX_ALL_CLAIMS,
    ) -> None:
        self._max_claims = max_claims
        self._max_reply_bytes = max_reply_bytes
        self.network_id = network_id
        self._admits_work = admits_work
        self._admits_services = admits_services
        self.kept: Callable[[SignedClaim], None] = lambda signed: None
        self._catalog_name = catalog_name(network_id)
        self._since_s = float("inf")
        self.untimely = 0  # records that came, and are not of this time
        self.catalog = Catalog()
        self._claims: dict[bytes, dict[PeerId, SignedClaim]] = {}
        self._by_worker: Counter[PeerId] = Counter()  # of these

    def holds(self, name: bytes) -> bool:
        """Whether what is under such a name is kept here, and not in the DHT's own store."""
        return name.startswith((CLAIMS_PREFIX, CATALOG_PREFIX, SPEC_PREFIX))

    def open_claim(self, name: bytes, raw: bytes, now: Moment) -> SignedClaim:
        """A claim that anyone sent for this name, also one that is history. Raises BadRecord."""
        signed = open_claim(raw, now.unix_s, late_s=HISTORY_S)
        claim = signed.claim
        if claims_name(self.network_id, claim.service) != name:
            raise BadRecord(f"a claim of {claim.service} under the name of another service")
        # A grant that has ended since does not make a claim of before untrue.
        then = now._replace(unix_s=min(now.unix_s, float(claim.issued_unix_s)))
        denied = self._admits_work(claim.grant, claim.peer_id, then)
        if denied is not None:
            raise BadRecord(f"{claim.peer_id} may not work in this network: {denied}")
        return signed

    def open_spec(self, raw: bytes, now: Moment) -> SignedSpec:
        """A spec that anyone sent. Raises BadRecord."""
        signed = open_spec(raw, now.unix_s)
        # It outlives its publisher, and so the grant that let it publish.
        then = now._replace(unix_s=float(signed.issued_unix_s))
        denied = self._admits_services(signed.grant, signed.publisher, then)
        if denied is not None:
            raise BadRecord(f"{signed.publisher} may not publish services here: {denied}")
        return signed

    def keep(self, name: bytes, raw: bytes, now: Moment) -> bool:
        """Whether the record is kept here by now, or was already."""
        try:
            if name.startswith(CLAIMS_PREFIX):
                return self.keep_claim(name, self.open_claim(name, raw, now), now)
            signed = self.open_spec(raw, now)
        except BadRecord as error:
            self.untimely += isinstance(error, ExpiredRecord)
            return False
        known = (self._catalog_name, SPEC_PREFIX + signed.digest)
        return name in known and self.catalog.take(signed)

    def keep_claim(self, name: bytes, signed: SignedClaim, now: Moment) -> bool:
        claims = self._claims.get(name, {})
        author = signed.claim.peer_id
        known = claims.get(author)
        if known is not None and known.claim.sequence >= signed.claim.sequence:
            return known.raw == signed.raw
        if known is None and len(claims) >= MAX_CLAIMS:
            stale = min(claims.values(), key=lambda each: each.claim.expires_unix_s)
            if stale.claim.is_fresh(now.unix_s):
                return False
            self._forget(name, stale.claim.peer_id)
        if known is None:
            is_full = self._by_worker.total() >= self._max_claims
            if is_full or self._by_worker[author] >= MAX_BY_WORKER:
                return False
            self._by_worker[author] += 1
            self._claims[name] = claims
        claims[author] = signed
        self.kept(signed)
        return True

    def claims(self, name: bytes, now: Moment) -> list[SignedClaim]:
        """What is kept under the name of a service, the newest first."""
        kept = (
            each
            for each in self._claims.get(name, {}).values()
            if each.claim.expires_unix_s + HISTORY_S > now.unix_s
        )
        return sorted(kept, key=lambda each: (-each.claim.issued_unix_s, each.claim.peer_id))

    def providers(self, request: kad.GetProviders, now: Moment) -> kad.Providers:
        """The count is of all that is kept: of specs with nothing else in the reply it is what the
        asker knows already. Of claims it says as well for how many seconds they have been kept
        here, as those that are settled: who has kept them for long and has none tells that there
        are none."""
        query = request.query or kad.ProviderQuery(Key(0), b"", kad.MAX_RECORDS)
        if request.name.startswith(CLAIMS_PREFIX):
            claims = self.claims(request.name, now)
            providers = _fitting(
                (kad.Provider(Contact(each.claim.peer_id), each.raw) for each in claims),
                self._max_reply_bytes,
            )
            found = tuple(providers)[: query.limit]
            return kad.Providers(found, (), kad.ShardCount(len(claims), self._age_s(now)))
        if request.name != self._catalog_name:
            return kad.Providers(())
        count = kad.ShardCount(len(self.catalog.specs))
        if query.requirements == self.catalog.hash:
            return kad.Providers((), (), count)
        nearest = sorted(
            self.catalog.specs.values(),
            key=lambda each: distance(key_from_bytes(each.digest), query.target),
        )
        specs = (kad.Provider(Contact(each.publisher), each.raw) for each in nearest)
        return kad.Providers(
            tuple(_fitting(specs, self._max_reply_bytes))[: query.limit], (), count
        )

    def value(self, name: bytes, now: Moment) -> bytes | None:
        """A spec by its digest."""
        specs = self.catalog.specs.values()
        return next((each.raw for each in specs if SPEC_PREFIX + each.digest == name), None)

    def heard(self, name: bytes, raw: bytes, now: Moment) -> None:
        """Readers of catalogs judge what they are answered themselves."""

    def begin(self, now: Moment) -> None:
        """Others may write here from now on."""
        self._since_s = min(self._since_s, now.mono_s)

    def _age_s(self, now: Moment) -> int:
        return int(max(0.0, min(now.mono_s - self._since_s, HISTORY_S)))

    def expire(self, now: Moment) -> None:
        self.catalog.expire(now.unix_s)
        for name, claims in list(self._claims.items()):
            for author, signed in list(claims.items()):
                if signed.claim.expires_unix_s + HISTORY_S <= now.unix_s:
                    self._forget(name, author)

    def _forget(self, name: bytes, author: PeerId) -> None:
        del self._claims[name][author]
        if not self._claims[name]:
            del self._claims[name]
        self._by_worker[author] -= 1
        if not self._by_worker[author]:
            del self._by_worker[author]


def _fitting(providers: Iterable[kad.Provider], max_bytes: int) -> Iterator[kad.Provider]:
    """The first of them, as far as a reply has room."""
    left_bytes = max_bytes
    for provider in providers:
        left_bytes -= len(provider.profile) + 64
        if left_bytes < 0:
            return
        yield provider
