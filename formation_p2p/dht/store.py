"""What this node keeps for others: signed profiles, and under which names each is provided.

A profile is kept once, whatever the number of its names; provider records and the value record
`/formation/<peer id>` are two ways to ask for the same bytes. Nothing is stored that is not
signed by its author, newer than what was known, unexpired, admitted to the network, and rightly
under its name; nothing expired is returned.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from formation_p2p.dht.messages import ProviderQuery
from formation_p2p.effects import Moment
from formation_p2p.errors import BadRecord, MisKeyedRecord
from formation_p2p.identity import PeerId, key_of_peer
from formation_p2p.keyspace import Key, distance
from formation_p2p.records.newest import Newest, supersedes
from formation_p2p.records.profile import Profile, SignedProfile, open_profile
from formation_p2p.refusals import Denied

# Authors whose profiles are kept: 8,192 x 4 KiB is 32 MiB at the worst, and a DHT of a million
# workers asks each node to keep about 20 x 12 x 1,000,000 / 1,000,000 = 240 entries.
MAX_AUTHORS: Final = 8_192
# Profiles that were verified lately. One comes once for each of its dozen names and, in a
# search, once from each peer asked: a few hundred at a time, 4 KiB each at the worst.
MAX_VERIFIED: Final = 2_048

_VALUE_PREFIX: Final = b"/formation/"


@dataclass(slots=True)
class _Entry:
    """`names` are among those that the profile belongs under, so that they are few."""

    signed: SignedProfile
    key: Key
    names: set[bytes] = field(default_factory=set)


class RecordStore:
    """`admit` says why a profile's author may not be kept, or None where it may.

    `names_of` gives every DHT name that a profile belongs under: a few dozen at most.
    """

    def __init__(
        self,
        admit: Callable[[Profile, Moment], Denied | None],
        names_of: Callable[[Profile], frozenset[bytes]],
    ) -> None:
        self._admit = admit
        self._names_of = names_of
        self._newest = Newest()
        self._entries: dict[PeerId, _Entry] = {}
        self._by_name: dict[bytes, set[PeerId]] = {}  # never of one who has withdrawn
        self._verified: dict[bytes, SignedProfile] = {}  # by their bytes, the oldest first

    def check(self, name: bytes, raw: bytes, now: Moment) -> SignedProfile:
        """Open a profile that anyone sent for a name. Raises BadRecord (its subclass says why).

        A withdrawn profile opens too: it is a record like any other, and says that its author
        is gone.
        """
        signed = self._verified.get(raw)
        if signed is None or not _is_fresh(signed, now):
            signed = open_profile(raw, now.unix_s)  # 230 us
        denied = self._admit(signed.profile, now)
        if denied is not None:
            raise BadRecord(f"{signed.profile.peer_id} is not of this network: {denied}")
        self._newest.admit(signed, now.unix_s)
        if name not in self._names_of(signed.profile):
            raise MisKeyedRecord(f"{signed.profile.peer_id} does not belong under this name")
        if raw not in self._verified and len(self._verified) >= MAX_VERIFIED:
            del self._verified[next(iter(self._verified))]
        self._verified[raw] = signed
        return signed

    def keep(self, name: bytes, raw: bytes, now: Moment) -> None:
        """Keep a profile under a name, as ADD_PROVIDER and PUT_VALUE ask. Raises BadRecord."""
        signed = self.check(name, raw, now)
        author = signed.profile.peer_id
        entry = self._entries.get(author)
        if entry is None:
            if len(self._entries) >= MAX_AUTHORS:
                self._make_room()
            entry = self._entries[author] = _Entry(signed, key_of_peer(author))
        elif supersedes(signed.profile, entry.signed.profile):
            entry.signed = signed
            for stale in entry.names - self._names_of(signed.profile):
                self._unname(author, stale)
        if signed.profile.withdrawn:
            for old in list(entry.names):
                self._unname(author, old)
        else:
            entry.names.add(name)
            self._by_name.setdefault(name, set()).add(author)

    def value(self, name: bytes, now: Moment) -> SignedProfile | None:
        """The profile under `/formation/<peer id>`, if it is here and fresh."""
        if not name.startswith(_VALUE_PREFIX):
            return None  # the name of a bucket, which has providers
        kept = (self._entries[author].signed for author in self._by_name.get(name, ()))
        return next((signed for signed in kept if _is_fresh(signed, now)), None)

    def providers(
        self,
        name: bytes,
        query: ProviderQuery,
        suits: Callable[[Profile], bool],
        now: Moment,
    ) -> tuple[SignedProfile, ...]:
        """The fresh providers of a name that suit, nearest to the query's target first."""
        nearest = [
            (distance(self._entries[author].key, query.target), author)
            for author in self._by_name.get(name, ())
        ]
        # A heap, since most suit and few are wanted: of thousands, a few dozen are looked at.
        heapq.heapify(nearest)
        found: list[SignedProfile] = []
        while nearest and len(found) < query.limit:
            signed = self._entries[heapq.heappop(nearest)[1]].signed
            if _is_fresh(signed, now) and suits(signed.profile):
                found.append(signed)
        return tuple(found)

    def expire(self, now: Moment) -> None:
        """Drop what has expired. Tombstones stay until their own expiry: they bar replays."""
        expired = [
            author for author, entry in self._entries.items() if not _is_fresh(entry.signed, now)
        ]
        for author in expired:
            self._drop(author)

    def __len__(self) -> int:
        return len(self._entries)

    def _make_room(self) -> None:
        """The one that expires first goes: it was heard from least recently."""
        first = min(self._entries.values(), key=lambda e: e.signed.profile.expires_unix_s)
        self._drop(first.signed.profile.peer_id)

    def _drop(self, author: PeerId) -> None:
        for name in list(self._entries[author].names):
            self._unname(author, name)
        del self._entries[author]

    def _unname(self, author: PeerId, name: bytes) -> None:
        self._entries[author].names.discard(name)
        authors = self._by_name[name]
        authors.discard(author)
        if not authors:
            del self._by_name[name]


def value_name(peer_id: PeerId) -> bytes:
    """The DHT name of a peer's own profile."""
    return _VALUE_PREFIX + peer_id.encode()


def _is_fresh(signed: SignedProfile, now: Moment) -> bool:
    return signed.profile.expires_unix_s > now.unix_s
