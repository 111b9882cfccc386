"""A town in which everybody is announced already, in shards as deep as a settled town has them.

For sizes at which founding a town message by message takes hours: the profiles are signed by
their authors, and kept by the shipped stores of the peers nearest to each name, as if they had
been sent there. Nobody republishes them, so a run must end before they expire.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from formation_p2p.capability.buckets import buckets_of
from formation_p2p.capability.shards import SPLIT, places_of
from formation_p2p.dht.messages import AddProvider, Provider
from formation_p2p.effects import Moment
from formation_p2p.identity import PeerId, key_of_peer
from formation_p2p.keyspace import KEY_BITS, Key, Span, key_of
from formation_p2p.peer.events import Serve
from formation_p2p.peer.peer import Peer
from formation_p2p.records.profile import MAX_TTL_S, Profile, seal_profile
from formation_p2p.resources.capability import idle
from formation_p2p.sim.liars import Liar
from formation_p2p.sim.node import SimNode
from formation_p2p.sim.world import EPOCH_UNIX_S
from simulations.register import Register

# Within which a run must end.
LIFE_S: Final = float(MAX_TTL_S)


def place(
    workers: Sequence[tuple[SimNode, Serve]], peers: Iterable[SimNode], replicas: int
) -> None:
    """Have every worker announced with `peers`, as of the beginning of the world."""
    by_key = {node.identity.key: node for node in peers}
    register = Register(by_key)
    depths = _depths(workers)
    for node, serve in workers:
        names, raw = _announced(node, serve, depths)
        held: dict[Key, list[bytes]] = {}
        for name, full in names:
            for key in register.nearest(key_of(name), replicas if full else max(1, replicas // 2)):
                held.setdefault(key, []).append(name)
        provider = Provider(node.contact, raw)
        for key, (first, *more) in held.items():
            write = AddProvider(first, provider, tuple(more))
            by_key[key].peer.dht.records.keep(node.contact, write, Moment(0.0, EPOCH_UNIX_S))


def _announced(
    node: SimNode, serve: Serve, depths: dict[tuple[str, PeerId], int]
) -> tuple[list[tuple[bytes, bool]], bytes]:
    """The names that a worker is announced under, whether as a member, and its profile."""
    peer = node.peer.peer if isinstance(node.peer, Liar) else node.peer
    assert isinstance(peer, Peer)
    peer_id = node.identity.peer_id
    spans = {
        bucket: Span(depths[bucket, peer_id], depths[bucket, peer_id])
        for bucket in buckets_of(serve.capability, dict(serve.labels), serve.drivers)
    }
    profile = Profile(
        peer_id=peer_id,
        sequence=1,
        issued_unix_s=int(EPOCH_UNIX_S),
        expires_unix_s=int(EPOCH_UNIX_S + LIFE_S),
        capability=serve.capability,
        capacity=idle(serve.capability),
        labels=serve.labels,
        drivers=serve.drivers,
        addresses=node.contact.addresses,
        grant=peer._network.grant,
        spans=tuple(spans.values()),
    )
    places = places_of(peer._network_id, peer_id, spans)
    names = [(name, depth in span) for name, (depth, span) in places.items()]
    return names, seal_profile(node.identity, profile)


def _depths(workers: Sequence[tuple[SimNode, Serve]]) -> dict[tuple[str, PeerId], int]:
    """How deep the shard of each worker is in each of its buckets, where each that is full has
    split."""
    members: dict[str, list[PeerId]] = {}
    for node, serve in workers:
        for bucket in buckets_of(serve.capability, dict(serve.labels), serve.drivers):
            members.setdefault(bucket, []).append(node.identity.peer_id)
    found: dict[tuple[str, PeerId], int] = {}
    for bucket, everyone in members.items():
        shards = [(0, everyone)]
        while shards:
            depth, shard = shards.pop()
            if len(shard) <= SPLIT:
                found.update({(bucket, peer_id): depth for peer_id in shard})
                continue
            bit = KEY_BITS - 1 - depth
            for side in (0, 1):
                half = [each for each in shard if key_of_peer(each) >> bit & 1 == side]
                shards.append((depth + 1, half))
    return found
