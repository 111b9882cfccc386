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
from formation_p2p.keyspace import distance
from formation_p2p.records.newest import Newest, supersedes
from formation_p2p.records.profile import Profile, SignedProfile, open_profile
from formation_p2p.refusals import Denied

# Authors whose profiles are kept: 8,192 x 4 KiB is 32 MiB at the worst, and a DHT of a million
# workers asks each node to keep about 20 x 12 x 1,000,000 / 1,000,000 = 240 entries.
MAX_AUTHORS: Final = 8_192
# Names one author may be kept under; a worker belongs to at most 32 buckets.
MAX_NAMES_PER_AUTHOR: Final = 48


@dataclass(slots=True)
class _Entry:
    signed: SignedProfile
    names: set[bytes] = field(default_factory=set)


class RecordStore:
    """`admit` says why a profile's author may not be kept, or None where it may.

    `names_of` gives every DHT name that a profile may be provided under.
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
        self._by_name: dict[bytes, set[PeerId]] = {}
        self._opened: dict[bytes, SignedProfile] = {}  # those in the entries, by their bytes

    def check(self, raw: bytes, now: Moment) -> SignedProfile:
        """Open a profile that anyone sent. Raises BadRecord (its subclass says why).

        A withdrawn profile opens too: it is a record like any other, and says that its author
        is gone.
        """
        known = self._opened.get(raw)
        if known is not None and known.profile.expires_unix_s > now.unix_s:
            return known  # the same bytes come once for each bucket; verifying them costs 200 us
        signed = open_profile(raw, now.unix_s)
        denied = self._admit(signed.profile, now)
        if denied is not None:
            raise BadRecord(f"{signed.profile.peer_id} is not of this network: {denied}")
        self._newest.admit(signed, now.unix_s)
        return signed

    def provide(self, name: bytes, raw: bytes, now: Moment) -> SignedProfile:
        """Keep a profile under a name, as ADD_PROVIDER asks. Raises BadRecord."""
        signed = self.check(raw, now)
        if name not in self._names_of(signed.profile):
            raise MisKeyedRecord(f"{signed.profile.peer_id} does not belong under this name")
        self._keep(signed, name, now)
        return signed

    def put(self, name: bytes, raw: bytes, now: Moment) -> SignedProfile:
        """Keep a profile as the value `/formation/<peer id>`. Raises BadRecord."""
        signed = self.check(raw, now)
        if name != value_name(signed.profile.peer_id):
            raise MisKeyedRecord(f"{signed.profile.peer_id} signed it, but the name is another's")
        self._keep(signed, name, now)
        return signed

    def value(self, name: bytes, now: Moment) -> bytes | None:
        """The signed profile under `/formation/<peer id>`, if any that is fresh."""
        for author in self._by_name.get(name, ()):
            signed = self._entries[author].signed
            if name == value_name(author) and _is_live(signed, now):
                return signed.raw
        return None

    def providers(
        self,
        name: bytes,
        query: ProviderQuery,
        suits: Callable[[Profile], bool],
        now: Moment,
    ) -> tuple[SignedProfile, ...]:
        """The fresh providers of a name that suit, nearest to the query's target first."""
        fresh = (self._entries[author].signed for author in self._by_name.get(name, ()))
        suitable = (s for s in fresh if _is_live(s, now) and suits(s.profile))
        return tuple(
            heapq.nsmallest(
                query.limit,
                suitable,
                key=lambda s: distance(key_of_peer(s.profile.peer_id), query.target),
            )
        )

    def expire(self, now: Moment) -> None:
        """Drop what has expired. Tombstones stay until their own expiry: they bar replays."""
        for author, entry in list(self._entries.items()):
            if entry.signed.profile.expires_unix_s <= now.unix_s:
                self._drop(author)

    def __len__(self) -> int:
        return len(self._entries)

    def _keep(self, signed: SignedProfile, name: bytes, now: Moment) -> None:
        author = signed.profile.peer_id
        entry = self._entries.get(author)
        if entry is None:
            if len(self._entries) >= MAX_AUTHORS:
                self._make_room(now)
            entry = self._entries[author] = _Entry(signed)
        elif supersedes(signed.profile, entry.signed.profile):
            self._opened.pop(entry.signed.raw, None)
            entry.signed = signed
            for stale in entry.names - self._names_of(signed.profile):
                self._unname(author, stale)
        self._opened[entry.signed.raw] = entry.signed
        if signed.profile.withdrawn:
            for old in list(entry.names):
                self._unname(author, old)
        elif len(entry.names) < MAX_NAMES_PER_AUTHOR:
            entry.names.add(name)
            self._by_name.setdefault(name, set()).add(author)

    def _make_room(self, now: Moment) -> None:
        self.expire(now)
        while len(self._entries) >= MAX_AUTHORS:
            first = min(self._entries.values(), key=lambda e: e.signed.profile.expires_unix_s)
            self._drop(first.signed.profile.peer_id)

    def _drop(self, author: PeerId) -> None:
        for name in list(self._entries[author].names):
            self._unname(author, name)
        self._opened.pop(self._entries.pop(author).signed.raw, None)

    def _unname(self, author: PeerId, name: bytes) -> None:
        self._entries[author].names.discard(name)
        authors = self._by_name[name]
        authors.discard(author)
        if not authors:
            del self._by_name[name]


def value_name(peer_id: PeerId) -> bytes:
    """The DHT name of a peer's own profile."""
    return b"/formation/" + peer_id.encode()


def _is_live(signed: SignedProfile, now: Moment) -> bool:
    return not signed.profile.withdrawn and signed.profile.expires_unix_s > now.unix_s
