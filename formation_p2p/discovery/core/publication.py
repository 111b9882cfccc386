"""The names that a worker's profile belongs under, and the replicas of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import WHOLE, Span
from formation_p2p.dht.core.store import value_name
from formation_p2p.discovery.core.shard_membership import ShardMembership
from formation_p2p.machine.core.capability import Capability
from formation_p2p.records.core.buckets import buckets_of
from formation_p2p.records.core.profile import Profile
from formation_p2p.records.core.shards import ShardParameters, places_of


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


def names_of(
    profile: Profile, network_id: bytes, shards: ShardParameters = ShardParameters()
) -> Mapping[bytes, tuple[int, Span]]:
    """Those of its shards, and its own. Of each the depth, and the author's span there."""
    machine = profile.capability, profile.labels, profile.drivers
    return _names_of(network_id, profile.peer_id, machine, profile.spans, shards)


# Two to four names for each of some dozen buckets: 60 us, and every profile of a worker has the
# same until it moves. At 10 KiB for the most that there can be, 40 MiB at the worst.
@lru_cache(maxsize=4096)
def _names_of(
    network_id: bytes,
    peer_id: PeerId,
    machine: tuple[Capability, tuple[tuple[str, str], ...], tuple[str, ...]],
    spans: tuple[Span, ...],
    shards: ShardParameters,
) -> Mapping[bytes, tuple[int, Span]]:
    capability, labels, drivers = machine
    buckets = buckets_of(capability, dict(labels), drivers)
    by_bucket = dict.fromkeys(buckets, WHOLE)
    by_bucket.update(zip(buckets, spans, strict=False))
    names = places_of(network_id, peer_id, by_bucket, shards)
    names[value_name(peer_id)] = (0, WHOLE)
    return names
