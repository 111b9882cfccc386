"""What a node does in the DHT on its own behalf.

A `Search` asks the peers nearest to a name what they hold; a `Publish` writes, to the peers
nearest to a name or to those that it is given. Both are driven by `Kademlia`, which owns the
asking.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, NewType

from formation_p2p.core.dht.lookup import Lookup
from formation_p2p.core.dht.messages import (
    Added,
    FindNode,
    GetProviders,
    GetValue,
    PutValue,
    Reply,
    ShardCount,
    Stored,
)
from formation_p2p.core.dht.records import R, Records, Write
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId

OperationId = NewType("OperationId", int)

# How many of the peers nearest to a name must have answered before a search ends. Every record
# is written to 8. The specification has beta = 3 and alpha = 10; among liars a search that is
# wider at its end and narrower on its way finds more for the same requests, and does not wait
# for one that is slow (docs/decisions, 6).
BETA: Final = 5
SEARCH_ALPHA: Final = 4
SEARCH_SPARE: Final = 1
# Records that one search gathers: a full name's (core/dht/store.py), and as many again.
MAX_FOUND: Final = 1024

Query = FindNode | GetProviders | GetValue


@dataclass(frozen=True, slots=True)
class Searched(Generic[R]):
    """A search ended. `found` is verified and fresh, one record per author, the newest of each;
    `closest` are the peers nearest to the name that answered, nearest first, and `counts` what
    those of them said that they hold under it; `asked` is what it cost."""

    operation: OperationId
    found: tuple[R, ...]
    closest: tuple[Contact, ...]
    counts: tuple[ShardCount, ...]
    asked: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """One write to one peer (this node itself may be it). `added` is what it said of itself,
    where the write was an acknowledged ADD_PROVIDER."""

    to: Contact
    write: Write
    taken: bool
    added: Added | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """A publish ended; `asked` is what looking up the peers took."""

    operation: OperationId
    deliveries: tuple[Delivery, ...]
    asked: int

    @property
    def stored_at(self) -> tuple[Contact, ...]:
        return tuple(delivery.to for delivery in self.deliveries if delivery.taken)


@dataclass(slots=True)
class Search(Generic[R]):
    operation: OperationId
    lookup: Lookup
    request: Query
    cause: str
    found: dict[Hashable, R] = field(default_factory=dict)
    counts: dict[PeerId, ShardCount] = field(default_factory=dict)

    def gather(self, records: Records[R], found: Iterable[tuple[Hashable, R]]) -> None:
        for author, record in found:
            known = self.found.get(author)
            if known is None and len(self.found) >= MAX_FOUND:
                continue
            if known is None or records.supersedes(record, known):
                self.found[author] = record

    def completed(self, records: Records[R]) -> Searched[R]:
        live = tuple(record for record in self.found.values() if records.is_live(record))
        closest = self.lookup.closest()
        counts = tuple(self.counts[c.peer_id] for c in closest if c.peer_id in self.counts)
        return Searched(self.operation, live, closest, counts, self.lookup.asked)


@dataclass(slots=True)
class Publish:
    """Where it has a `lookup`, that comes first, with `request`, and then `write` to each of the
    nearest. `pending` are the writes under way, by the number of the asking."""

    operation: OperationId
    cause: str
    lookup: Lookup | None = None
    request: FindNode | None = None
    write: Write | None = None
    pending: dict[int, tuple[Contact, Write]] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)

    def completed(self) -> Published:
        asked = 0 if self.lookup is None else self.lookup.asked
        return Published(self.operation, tuple(self.deliveries), asked)


def delivery(to: Contact, write: Write, answered: bool, reply: Reply | None) -> Delivery:
    """How a write went: a value is echoed, and a provider record has no reply, or `Added`."""
    taken = answered
    if isinstance(write, PutValue):
        taken = reply == Stored(write.name, write.value)
    return Delivery(to, write, taken, reply if isinstance(reply, Added) else None)
