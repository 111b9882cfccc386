"""Knowing the catalog: reading what its holders have, and giving them what they lack."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import BadRecord
from formation_p2p.core.keyspace import KEY_BITS, Key
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.operations import Answer, Asked, Searched
from formation_p2p.features.services.core.events import ServiceStep, SpecPublished
from formation_p2p.features.services.core.means import Means
from formation_p2p.features.services.core.shelf import asking, catalog_name, counts_more
from formation_p2p.features.services.core.signed_spec import SignedSpec
from formation_p2p.records.core.profile import SignedProfile


class CatalogReader:
    """Of a worker it reads again and again, from `start` to `stop`."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._name = catalog_name(means.network_id)
        self._due_s = float("inf")
        self._located = False
        self._goes_on = False
        self._young_until_s = float("-inf")

    def start(self, now: Moment) -> None:
        if not self._goes_on:
            self._young_until_s = now.mono_s + self._means.parameters.young_s
        self._goes_on = True
        self._due_s = min(self._due_s, now.mono_s + self._means.rng.random())

    def stop(self) -> None:
        self._goes_on = False
        self._due_s = float("inf")

    def tick(self, now: Moment) -> None:
        if now.mono_s >= self._due_s:
            self._due_s = float("inf")
            self.read(now, self._again)

    def next_timeout(self) -> float:
        return self._due_s

    def read(self, now: Moment, then: Callable[[bool, Moment], None], width: int = 1) -> None:
        """`then` gets whether any holder answered; what it has is known by then."""
        if not self._located:
            self._locate(now, lambda now: self._ask(now, then, width))
        else:
            self._ask(now, then, width)

    def publish(self, signed: SignedSpec, now: Moment) -> None:
        """Ends in SpecPublished."""
        means = self._means
        try:
            means.shelf.open_spec(signed.raw, now)
        except BadRecord as error:
            self._published(signed, 0, str(error))
            return
        known = means.shelf.catalog.specs.get(signed.spec.name)
        # The same signed at another time has another digest. Whether that counts is chance, and
        # where it does, all replicas are started anew: what is known is put again.
        if known is not None and known.spec == signed.spec and _lasts(known, signed, now):
            counts = known
        elif means.shelf.catalog.take(signed):
            counts = signed
        else:
            why = "a newer version is known; publish one with a higher version"
            self._published(signed, 0, why)
            return
        self._locate(now, lambda now: self._put(counts, signed, now))

    def _put(self, counts: SignedSpec, signed: SignedSpec, now: Moment) -> None:
        means = self._means
        put = kad.PutValue(self._name, counts.raw)
        asked = [(contact, put) for contact in means.holders.nearest(self._name, now)]
        then = partial(self._stored, signed)
        means.inquiries.ask(asked, now, "publish", then, len(asked))

    def _stored(self, signed: SignedSpec, ended: Asked, now: Moment) -> None:
        self._means.holders.answered(self._name, ended.answers, now)
        stored = len(ended.good)
        why = "" if stored else "no peer took it; is this node connected?"
        self._published(signed, stored, why)
        if stored:
            why = f"version {signed.spec.version}, at {stored} peers"
            self._means.emit(signed.spec.name, 0, ServiceStep.PUBLISHED, why, now)

    def _published(self, signed: SignedSpec, stored: int, why: str) -> None:
        told = SpecPublished(signed.digest, stored, why, cause="publish")
        self._means.effects.append(told)

    def _again(self, answered: bool, now: Moment) -> None:
        if not self._goes_on:
            return
        ours = self._means.parameters
        every_s = ours.catalog_s + ours.catalog_node_s * self._means.dht_size()
        is_empty = not self._means.shelf.catalog.specs and now.mono_s < self._young_until_s
        if not answered or is_empty:
            # In a network that has just begun the next peer may be the first that knows of any.
            self._located = False
            every_s = ours.catalog_retry_s
        spread = 0.8 + 0.4 * self._means.rng.random()
        self._due_s = now.mono_s + min(every_s, ours.max_catalog_s) * spread

    def _locate(self, now: Moment, then: Callable[[Moment], None]) -> None:
        def located(ended: Searched[SignedProfile], now: Moment) -> None:
            self._located = bool(ended.closest)
            self._means.holders.found(self._name, ended.closest)
            then(now)

        width = self._means.parameters.holders
        self._means.inquiries.search(kad.FindNode(self._name), now, "catalog", located, width)

    def _ask(self, now: Moment, then: Callable[[bool, Moment], None], width: int) -> None:
        means = self._means
        holders = means.holders.nearest(self._name, now)
        others = [each for each in holders if each.peer_id != means.peer_id] or list(holders)
        chosen = means.rng.sample(others, min(width, len(others)))
        target = Key(means.rng.getrandbits(KEY_BITS))
        request = asking(self._name, kad.MAX_RECORDS, target, means.shelf.catalog.hash)
        answered = partial(self._answered, then)
        asked: list[tuple[Contact, kad.GetProviders | kad.PutValue]]
        asked = [(contact, request) for contact in chosen]
        means.inquiries.ask(asked, now, "catalog", answered, width)

    def _answered(self, then: Callable[[bool, Moment], None], ended: Asked, now: Moment) -> None:
        means = self._means
        means.holders.answered(self._name, ended.answers, now)
        for answer in ended.good:
            self._merge(answer, now)
        then(bool(ended.good), now)

    def _merge(self, answer: Answer, now: Moment) -> None:
        """Take what a holder has, and give it what it lacks, or has an older version of."""
        means, reply = self._means, answer.reply
        if not isinstance(reply, kad.Providers) or reply.count is None:
            return
        if not reply.providers and reply.count.members == len(means.shelf.catalog.specs):
            return  # it knows the same
        theirs: dict[str, SignedSpec] = {}
        for provider in reply.providers:
            try:
                signed = means.shelf.open_spec(provider.profile, now)
            except BadRecord:
                continue
            theirs[signed.spec.name] = signed
            means.shelf.catalog.take(signed)
        if reply.count.members > len(reply.providers):
            return  # a part of it alone: what is not in it may be there
        puts = [
            (answer.to, kad.PutValue(self._name, ours.raw))
            for name, ours in means.shelf.catalog.specs.items()
            if name not in theirs or counts_more(ours, theirs[name])
        ]
        if puts:
            means.inquiries.ask(puts, now, "read repair", _ignored, len(puts))


def _ignored(ended: Asked, now: Moment) -> None:
    pass


def _lasts(known: SignedSpec, signed: SignedSpec, now: Moment) -> bool:
    """For half as long yet as it would if it were published anew."""
    whole_s = signed.expires_unix_s - signed.issued_unix_s
    return known.expires_unix_s - now.unix_s >= whole_s / 2
