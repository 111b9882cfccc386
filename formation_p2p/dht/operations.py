"""What a node does in the DHT on its own behalf, each as a lookup with a purpose.

A `Search` asks the peers nearest to a name what they hold; a `Publish` finds the peers nearest
to a name and writes to them. Both are driven by `Kademlia`, which owns the asking.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NewType

from formation_p2p.dht.lookup import Lookup
from formation_p2p.dht.messages import AddProvider, FindNode, GetProviders, GetValue, PutValue
from formation_p2p.effects import Contact
from formation_p2p.identity import PeerId
from formation_p2p.records.profile import SignedProfile

OperationId = NewType("OperationId", int)

# How many of the peers nearest to a name must have answered before a search ends. Every record
# is written to the k = 20 nearest, so that three of them agree even while peers come and go
# (specification: beta = 3).
BETA: Final = 3


@dataclass(frozen=True, slots=True)
class Searched:
    """A search ended. `profiles` are verified and fresh, one per author, the newest of each;
    `closest` are the peers nearest to the name that answered; `asked` is what it cost."""

    operation: OperationId
    profiles: tuple[SignedProfile, ...]
    closest: tuple[Contact, ...]
    asked: int


@dataclass(frozen=True, slots=True)
class Published:
    """A publish ended: `stored_at` took the write (this node itself may be among them)."""

    operation: OperationId
    stored_at: tuple[Contact, ...]
    asked: int


Completed = Searched | Published

Query = FindNode | GetProviders | GetValue
Write = AddProvider | PutValue


@dataclass(slots=True)
class Search:
    operation: OperationId
    lookup: Lookup
    request: Query
    cause: str
    found: dict[PeerId, SignedProfile] = field(default_factory=dict)

    def gather(self, profiles: Iterable[SignedProfile]) -> None:
        for signed in profiles:
            known = self.found.get(signed.profile.peer_id)
            if known is None or known.profile.sequence < signed.profile.sequence:
                self.found[signed.profile.peer_id] = signed

    def completed(self) -> Searched:
        live = tuple(s for s in self.found.values() if not s.profile.withdrawn)
        return Searched(self.operation, live, self.lookup.closest(), self.lookup.asked)


@dataclass(slots=True)
class Publish:
    """First the lookup, with `request`; then `write` to each of the nearest."""

    operation: OperationId
    lookup: Lookup
    request: FindNode
    write: Write
    cause: str
    writing: dict[PeerId, Contact] | None = None
    stored_at: list[Contact] = field(default_factory=list)

    def completed(self) -> Published:
        return Published(self.operation, tuple(self.stored_at), self.lookup.asked)
