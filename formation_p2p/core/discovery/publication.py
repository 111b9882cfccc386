"""The names that a profile is announced under, the replicas of each, and the messages to them.

The peers nearest to each name are written to directly, in one message to each peer whatever the
number of names. One peer of each name's, another one each time, is asked how full the shard is
and which peers are nearer by now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from formation_p2p.core.dht import messages as kad
from formation_p2p.core.dht.records import Write
from formation_p2p.core.discovery.shard_membership import ShardMembership
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId


@dataclass(slots=True)
class Publication:
    """A name that we are announced under, and its replicas: the nearest peers that we know of.
    `membership` and `depth` are None for the name of our own value record."""

    name: bytes
    membership: ShardMembership | None = None
    depth: int = 0
    replicas: tuple[Contact, ...] = ()

    @property
    def is_full(self) -> bool:
        return self.membership is not None and self.depth in self.membership.span


def writes_of(
    ready: Mapping[bytes, tuple[Contact, ...]],
    publications: Mapping[bytes, Publication],
    provider: kad.Provider,
    *,
    turn: int,
    acknowledged: bool,
    max_names: int,
) -> Iterator[tuple[Contact, Write]]:
    """The writes of a profile to the peers in `ready`, by name. The peer of a name whose `turn` it
    is gets that name first, and reports on it where the writes are `acknowledged`."""
    to: dict[PeerId, Contact] = {}
    names: dict[PeerId, list[bytes]] = {}
    asked: set[PeerId] = set()
    for name, replicas in ready.items():
        if publications[name].membership is None:
            for replica in replicas:
                yield replica, kad.PutValue(name, provider.profile)
            continue
        others = [each for each in replicas if each.peer_id != provider.contact.peer_id]
        first_of = others[turn % len(others)].peer_id if others else None
        for replica in replicas:
            to[replica.peer_id] = replica
            listed = names.setdefault(replica.peer_id, [])
            # Closer peers come for the first name alone.
            listed.insert(0 if replica.peer_id == first_of else len(listed), name)
        if first_of is not None and acknowledged:
            asked.add(first_of)
    for peer_id, stored in names.items():
        for some in range(0, len(stored), max_names):
            first, *more = stored[some : some + max_names]
            yield to[peer_id], kad.AddProvider(first, provider, tuple(more), peer_id in asked)
