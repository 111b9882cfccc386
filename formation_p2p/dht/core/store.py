"""The records that this node keeps for others: signed profiles, and the names of each.

A profile is kept once, whatever the number of its names; provider records and the value record
`/formation/<peer id>` are two ways to ask for the same bytes. Nothing is stored that is not
signed by its author, newer than what was known, unexpired, admitted to the network, and rightly
under its name; nothing expired is returned.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from statistics import median_low
from typing import Final, Protocol

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import BadRecord, ExpiredRecord, MisKeyedRecord
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, Key, Span, distance, key_of
from formation_p2p.core.refusals import Denied
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.records.core.profile import Newest, Profile, SignedProfile, open_profile

_VALUE_PREFIX: Final = b"/formation/"

NamesOf = Callable[[Profile], Mapping[bytes, tuple[int, Span]]]
"""Every DHT name that a profile belongs under, a few dozen at most, and of each the depth of the
shard and the author's span there. What has no shards is at depth 0."""

Suits = Callable[[bytes], Callable[[Profile], bool]]
"""Turns a query's CBOR into a test of profiles. It accepts any bytes, and rejects every profile
for those that do not parse."""


class Shelf(Protocol):
    """Records of other kinds, under names of their own. `untimely` came, and are not of this
    time."""

    @property
    def untimely(self) -> int: ...

    def holds(self, name: bytes) -> bool: ...

    def keep(self, name: bytes, raw: bytes, now: Moment) -> bool: ...

    def providers(self, request: kad.GetProviders, now: Moment) -> kad.Providers: ...

    def value(self, name: bytes, now: Moment) -> bytes | None: ...

    def heard(self, name: bytes, raw: bytes, now: Moment) -> None: ...

    def expire(self, now: Moment) -> None: ...


@dataclass(frozen=True, slots=True)
class CheckedProfile:
    """A verified profile, and all names that it belongs under."""

    signed: SignedProfile
    names: Mapping[bytes, tuple[int, Span]]


@dataclass(slots=True)
class _Entry:
    """`names` are those that the profile is kept under, among all that it belongs under."""

    checked: CheckedProfile
    key: Key
    names: set[bytes] = field(default_factory=set)

    @property
    def signed(self) -> SignedProfile:
        return self.checked.signed


class RecordStore:
    """`admit` returns why a profile's author is not admitted, or None; `met` is told of each
    profile that was not seen before. What is no profile is on one of the `shelves`."""

    def __init__(
        self,
        admit: Callable[[Profile, Moment], Denied | None],
        names_of: NamesOf,
        suits: Suits,
        parameters: DhtParameters = DhtParameters(),
        met: Callable[[Profile], None] = lambda profile: None,
        shelves: Iterable[Shelf] = (),
    ) -> None:
        self._shelves = list(shelves)
        self._parameters = parameters
        self._admit = admit
        self._met = met
        self._names_of = names_of
        self._suits = suits
        self._newest = Newest()
        self._entries: dict[PeerId, _Entry] = {}  # the longest without a record first
        # Without withdrawn ones. A dict for its order, which is the same in every run.
        self._by_name: dict[bytes, dict[PeerId, _Entry]] = {}
        self._untimely = 0  # profiles
        self._checked: dict[bytes, CheckedProfile] = {}  # by the profiles' bytes, the oldest first

    @property
    def untimely(self) -> int:
        """Records that came, and are not of this time."""
        return self._untimely + sum(each.untimely for each in self._shelves)

    def shelve(self, shelf: Shelf) -> None:
        """Keep the records of this one, too."""
        self._shelves.append(shelf)

    def check(self, raw: bytes, names: Iterable[bytes], now: Moment) -> CheckedProfile:
        """Open a profile that anyone sent for these names. Raises BadRecord (its subclass says
        why).

        A withdrawn profile opens too: it is a record like any other, and says that its author
        is gone.
        """
        try:
            signed = open_profile(raw, now.unix_s)
        except ExpiredRecord:
            self._untimely += 1
            raise
        denied = self._admit(signed.profile, now)
        if denied is not None:
            raise BadRecord(f"{signed.profile.peer_id} is not of this network: {denied}")
        self._newest.admit(signed, now.unix_s)
        checked = self._checked.get(raw)
        if checked is None:
            if len(self._checked) >= self._parameters.max_checked:
                del self._checked[next(iter(self._checked))]
            checked = self._checked[raw] = CheckedProfile(signed, self._names_of(signed.profile))
            self._met(signed.profile)
        if not all(name in checked.names for name in names):
            raise MisKeyedRecord(f"{signed.profile.peer_id} does not belong under this name")
        return checked

    def keep(self, sender: Contact, write: kad.Write, now: Moment) -> bool:
        """From any sender: the author's signature is what counts."""
        if isinstance(write, kad.PutValue) and (shelf := self._shelf_of(write.name)) is not None:
            return shelf.keep(write.name, write.value, now)
        if isinstance(write, kad.AddProvider):
            names, raw = write.names, write.provider.profile
        else:
            names, raw = (write.name,), write.value
        try:
            return self.keep_checked(self.check(raw, names, now), names)
        except BadRecord:
            return False

    def keep_checked(self, checked: CheckedProfile, names: Iterable[bytes]) -> bool:
        """Keep what `check` has let pass. Whether there was room under all the names."""
        author = checked.signed.profile.peer_id
        entry = self._entries.pop(author, None)
        if entry is None:
            if len(self._entries) >= self._parameters.max_authors:
                self.drop(next(iter(self._entries)))
            entry = _Entry(checked, key_of_peer(author))
        self._entries[author] = entry
        if self.supersedes(checked.signed, entry.signed):
            entry.checked = checked
            for stale in [name for name in entry.names if name not in checked.names]:
                self._unname(author, stale)
        if checked.signed.profile.withdrawn:
            for old in list(entry.names):
                self._unname(author, old)
            return True
        kept = True
        for name in names:
            authors = self._by_name.setdefault(name, {})
            if author in authors or len(authors) < self._parameters.max_authors_per_name:
                authors[author] = entry
                entry.names.add(name)
            else:
                kept = False
        return kept

    def value(self, name: bytes, now: Moment) -> bytes | None:
        """The profile under `/formation/<peer id>`, if it is here and fresh."""
        if (shelf := self._shelf_of(name)) is not None:
            return shelf.value(name, now)
        if not name.startswith(_VALUE_PREFIX):
            return None  # the name of a bucket, which has providers
        kept = (entry.signed for entry in self._by_name.get(name, {}).values())
        return next((signed.raw for signed in kept if _is_fresh(signed, now)), None)

    def put(self, name: bytes, record: SignedProfile) -> kad.PutValue:
        return kad.PutValue(name, record.raw)

    def received_unix_s(self, name: bytes) -> float | None:
        """A profile says itself when it was issued."""
        return None

    def providers(self, request: kad.GetProviders, now: Moment) -> kad.Providers:
        """The fresh providers that suit, nearest to the query's target first."""
        if (shelf := self._shelf_of(request.name)) is not None:
            return shelf.providers(request, now)
        query = request.query or kad.ProviderQuery(key_of(request.name), b"", kad.MAX_PROVIDERS)
        nearest = islice(
            self._nearest(request.name, query, now), min(query.limit, kad.MAX_PROVIDERS)
        )
        found = tuple(
            kad.Provider(Contact(s.profile.peer_id, s.profile.addresses), s.raw) for s in nearest
        )
        return kad.Providers(found, (), self._count(request.name, query.target, now))

    def _nearest(
        self, name: bytes, query: kad.ProviderQuery, now: Moment
    ) -> Iterator[SignedProfile]:
        nearest = [
            (distance(entry.key, query.target), author)
            for author, entry in self._by_name.get(name, {}).items()
        ]
        # A heap, since most suit and few are wanted: of hundreds, a few dozen are looked at.
        heapq.heapify(nearest)
        suits = self._suits(query.requirements)
        while nearest:
            signed = self._entries[heapq.heappop(nearest)[1]].signed
            if _is_fresh(signed, now) and suits(signed.profile):
                yield signed

    def counts(self, write: kad.AddProvider, now: Moment) -> tuple[kad.ShardCount, ...]:
        target = key_of_peer(write.provider.contact.peer_id)
        return tuple(self._count(name, target, now) for name in write.names)

    def _count(self, name: bytes, target: Key, now: Moment) -> kad.ShardCount:
        members = settled = shallower = 0
        depths: list[int] = []
        beyond: list[int] = []
        for entry in self._by_name.get(name, {}).values():
            if not _is_fresh(entry.signed, now):
                continue
            depth, (low, high) = entry.checked.names[name]
            is_member = depth in (low, high)
            members += is_member
            if (entry.key ^ target) >> (KEY_BITS - 1 - depth) == 0:  # one bit more in common
                settled += is_member and low == high
                shallower += is_member and low < depth
                if high > depth:
                    depths.append(high)
            elif high > depth:
                beyond.append(high)
        deepest = median_low(depths or beyond or [0])
        return kad.ShardCount(members, settled, shallower, len(depths), deepest, len(beyond))

    def verified(
        self, name: bytes, reply: kad.Providers | kad.Value, now: Moment
    ) -> list[tuple[PeerId, SignedProfile]]:
        """Bad records are left out: the other peers asked make up for one that lies."""
        if isinstance(reply, kad.Providers):
            raws = [provider.profile for provider in reply.providers]
        else:
            raws = [] if reply.value is None else [reply.value]
            if (shelf := self._shelf_of(name)) is not None:
                for raw in raws:
                    shelf.heard(name, raw, now)
                return []
        verified = []
        for raw in raws:
            with suppress(BadRecord):
                signed = self.check(raw, (name,), now).signed
                verified.append((signed.profile.peer_id, signed))
        return verified

    def supersedes(self, new: SignedProfile, old: SignedProfile) -> bool:
        return new.profile.sequence > old.profile.sequence

    def is_live(self, record: SignedProfile) -> bool:
        return not record.profile.withdrawn

    def expire(self, now: Moment) -> None:
        """Drop what has expired. Tombstones stay until their own expiry: they bar replays."""
        for shelf in self._shelves:
            shelf.expire(now)
        for author, entry in list(self._entries.items()):
            if not _is_fresh(entry.signed, now):
                self.drop(author)

    def profiles(self, now: Moment) -> Iterator[Profile]:
        """Those that are kept here and fresh, of workers that have not withdrawn."""
        signed = (entry.signed for entry in self._entries.values() if entry.names)
        return (each.profile for each in signed if _is_fresh(each, now))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def load(self) -> int:
        """Entries: how many names of how many authors are kept here."""
        return sum(len(entry.names) for entry in self._entries.values())

    def judge_again(self, now: Moment) -> None:
        """Drop the profiles of authors that are admitted no more."""
        for author, entry in list(self._entries.items()):
            if self._admit(entry.signed.profile, now) is not None:
                self.drop(author)

    def drop(self, author: PeerId) -> None:
        """Forget an author whose profile is kept."""
        for name in list(self._entries[author].names):
            self._unname(author, name)
        del self._entries[author]

    def _shelf_of(self, name: bytes) -> Shelf | None:
        return next((shelf for shelf in self._shelves if shelf.holds(name)), None)

    def _unname(self, author: PeerId, name: bytes) -> None:
        self._entries[author].names.discard(name)
        authors = self._by_name[name]
        del authors[author]
        if not authors:
            del self._by_name[name]


def value_name(peer_id: PeerId) -> bytes:
    """The DHT name of a peer's own profile."""
    return _VALUE_PREFIX + peer_id.encode()


def _is_fresh(signed: SignedProfile, now: Moment) -> bool:
    return signed.profile.expires_unix_s > now.unix_s
