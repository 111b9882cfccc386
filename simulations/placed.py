"""A town in which everybody is announced already, in shards as deep as a settled town has them.

For sizes at which founding a town message by message takes hours. Each profile is signed by its
author and kept by the shipped stores of the peers nearest to each of its names, as if it had been
sent there. What a peer keeps is put there when the peer wakes.

Where nobody republishes, a run must end before the profiles expire. Workers that are resumed do:
their announcers know their shards and their replicas, as after a long run.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from formation_p2p.assembly import Peer
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.keyspace import KEY_BITS, Key, Span, key_of
from formation_p2p.dht.core.store import CheckedProfile, RecordStore, value_name
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.discovery.core.shard_membership import Publication, ShardMembership, names_of
from formation_p2p.machine.core.capability import Capacity, idle
from formation_p2p.peer.core.events import Serve
from formation_p2p.records.core.buckets import buckets_of, depths_of, shard_key
from formation_p2p.records.core.profile import MAX_TTL_S, Profile, SignedProfile, seal_profile
from simulations.liars import Liar
from simulations.register import Register
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S

# Within which a run must end in which nobody republishes.
LIFE_S: Final = float(MAX_TTL_S)
NO_ROOM: Final = Capacity(0, 0, 0)
# An announcer that has published so often does so at its full period.
_ROUNDS: Final = 10


@dataclass(slots=True, eq=False)
class _Worker:
    """`depths` are those of its shards, bucket by bucket; its profile was published at
    `published_s`, and is again at `due_s`."""

    node: SimNode
    serve: Serve
    depths: list[int]
    published_s: float = 0.0
    due_s: float = float("inf")
    checked: CheckedProfile | None = None


class _Name(NamedTuple):
    """The workers announced under a DHT name, and with how many peers."""

    workers: list[_Worker]
    replicas: int


class Placed:
    """Everybody announced with `peers`, as of the beginning of the world. Call `furnish` for
    every peer that wakes, and, where all are to republish, `resume` for every worker first. Those
    named `full` have announced that they have no room."""

    def __init__(
        self,
        workers: Sequence[tuple[SimNode, Serve]],
        peers: Iterable[SimNode],
        parameters: DiscoveryParameters,
        seed: int,
        *,
        resumed: bool = False,
        full: Collection[str] = (),
    ) -> None:
        self._full = full
        self._parameters = parameters
        self._ttl_s = parameters.ttl_s if resumed else LIFE_S
        self._workers = [_Worker(node, serve, []) for node, serve in workers]
        self._network_id = workers[0][0].network().network_id
        self._peers = {node.identity.key: node for node in peers}
        self._register = Register(self._peers)
        self._names: dict[bytes, _Name] = {}
        self._of = {worker.node.name: worker for worker in self._workers}
        if resumed:
            rng = random.Random(f"{seed}/placed")
            for worker in self._workers:
                spread = 1 + parameters.jitter * (rng.random() - 0.5)
                period_s = parameters.republish_s * spread
                worker.due_s = rng.random() * period_s
                worker.published_s = worker.due_s - period_s
        self._settle()
        self._held: dict[Key, list[bytes]] = {}
        for name in self._names:
            for key in self._replicas(name):
                self._held.setdefault(key, []).append(name)

    def furnish(self, node: SimNode) -> None:
        """Put what a peer keeps into its store."""
        records = node.peer.dht.records
        assert isinstance(records, RecordStore)
        kept: dict[str, tuple[_Worker, list[bytes]]] = {}
        for name in self._held.pop(node.identity.key, ()):
            for worker in self._names[name].workers:
                kept.setdefault(worker.node.name, (worker, []))[1].append(name)
        for worker, names in kept.values():
            # Verifying millions of signatures takes hours; readers verify what they read.
            records.keep_checked(self._checked(worker), names)

    def load(self, node: SimNode) -> int:
        """How many entries wait for a peer to wake."""
        return sum(len(self._names[n].workers) for n in self._held.get(node.identity.key, ()))

    def serve(self, node: SimNode) -> Serve | None:
        """What a node is told before it knows a peer, for `resume`."""
        worker = self._of.get(node.name)
        return None if worker is None else worker.serve

    def resume(self, node: SimNode) -> None:
        """Have the announcer of a worker that started alone go on as after a long run."""
        worker, peer = self._of[node.name], _shipped(node)
        assert peer.worker is not None, "it was told to serve"
        announcer = peer.worker.announcer
        records = peer.dht.records
        assert isinstance(records, RecordStore)
        records.drop(node.identity.peer_id)  # it has announced itself to itself
        at = Moment(worker.published_s, EPOCH_UNIX_S + worker.published_s)
        spans = _spans(worker)
        publications = [Publication(value_name(node.identity.peer_id))]
        for bucket, span in zip(list(announcer._memberships), spans, strict=True):
            membership = ShardMembership(bucket, self._parameters)
            announcer._memberships[bucket] = membership
            membership.settle(span, at.mono_s)
            for depth in depths_of(bucket, node.identity.peer_id, span):
                name = shard_key(self._network_id, bucket, node.identity.key, depth)
                publications.append(Publication(name, membership, depth))
        for publication in publications:
            publication.replicas = tuple(
                Contact(node.identity.peer_id) if key == node.identity.key else other.contact
                for key, other in (
                    (key, self._peers[key]) for key in self._replicas(publication.name)
                )
            )
            announcer._note_written(publication.replicas, at)
        announcer.publications = {each.name: each for each in publications}
        signed = announcer._issue(at, spans if any(high for _, high in spans) else (), False)
        worker.checked = CheckedProfile(signed, names_of(signed.profile, self._network_id))
        announcer._signed, announcer._announced = signed, signed.profile.capacity
        announcer._round, announcer._stored, announcer._acknowledged = _ROUNDS, True, False
        announcer._pace.published(at)
        announcer._due_s = worker.due_s

    def _replicas(self, name: bytes) -> list[Key]:
        return self._register.nearest(key_of(name), self._names[name].replicas)

    def _checked(self, worker: _Worker) -> CheckedProfile:
        if worker.checked is None:
            node = worker.node
            issued_unix_s = int(EPOCH_UNIX_S + worker.published_s)
            profile = Profile(
                peer_id=node.identity.peer_id,
                sequence=1,
                issued_unix_s=issued_unix_s,
                expires_unix_s=issued_unix_s + int(self._ttl_s),
                capability=worker.serve.capability,
                capacity=NO_ROOM if node.name in self._full else idle(worker.serve.capability),
                labels=worker.serve.labels,
                drivers=worker.serve.drivers,
                addresses=node.contact.addresses,
                grant=node.network().grant,
                spans=_spans(worker),
            )
            signed = SignedProfile(profile, seal_profile(node.identity, profile))
            worker.checked = CheckedProfile(signed, names_of(profile, self._network_id))
        return worker.checked

    def _settle(self) -> None:
        """Have every shard that is full split, and everybody announced under all of its names."""
        replicas, half = self._parameters.replicas, max(1, self._parameters.replicas // 2)
        members: dict[str, list[_Worker]] = {}
        for worker in sorted(self._workers, key=lambda worker: worker.node.identity.key):
            self._names[value_name(worker.node.identity.peer_id)] = _Name([worker], replicas)
            for bucket in _buckets(worker.serve):
                members.setdefault(bucket, []).append(worker)
        depths: dict[tuple[str, str], int] = {}
        for bucket, everyone in members.items():
            for depth, shard in _shards(everyone, self._parameters.shards.split):
                key = shard[0].node.identity.key
                self._names[shard_key(self._network_id, bucket, key, depth)] = _Name(
                    shard, replicas
                )
                for worker in shard:
                    depths[bucket, worker.node.name] = depth
                    peer_id, key = worker.node.identity.peer_id, worker.node.identity.key
                    for above in depths_of(bucket, peer_id, Span(depth, depth)):
                        if above < depth:
                            name = shard_key(self._network_id, bucket, key, above)
                            sampled = self._names.setdefault(name, _Name([], half))
                            sampled.workers.append(worker)
        for worker in self._workers:
            worker.depths = [depths[b, worker.node.name] for b in _buckets(worker.serve)]


def _shards(everyone: list[_Worker], most: int) -> Iterator[tuple[int, list[_Worker]]]:
    """The settled ones that are not empty, and how deep they are: of at most so many members.
    `everyone` is sorted by key."""
    split = [(0, everyone)]
    while split:
        depth, shard = split.pop()
        if len(shard) <= most:
            if shard:
                yield depth, shard
            continue
        bit = KEY_BITS - 1 - depth
        for side in (0, 1):
            half = [worker for worker in shard if worker.node.identity.key >> bit & 1 == side]
            split.append((depth + 1, half))


def _spans(worker: _Worker) -> tuple[Span, ...]:
    return tuple(Span(depth, depth) for depth in worker.depths)


@cache  # there are two dozen kinds of machine
def _buckets(serve: Serve) -> tuple[str, ...]:
    return buckets_of(serve.capability, dict(serve.labels), serve.drivers)


def _shipped(node: SimNode) -> Peer:
    peer = node.peer.peer if isinstance(node.peer, Liar) else node.peer
    assert isinstance(peer, Peer)
    return peer
