"""A town in which everybody is announced already, in shards as deep as a settled town has them.

For sizes at which founding a town message by message takes hours. Each profile is signed by its
author and kept by the shipped stores of the peers nearest to each of its names, as if it had been
sent there. What a peer keeps is put there when the peer wakes.

Where nobody republishes, a run must end before the profiles expire. Workers that are resumed do:
their announcers know their shards and their holders, as after a long run, and how long it is
since they published, which is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from formation_p2p.capability.buckets import buckets_of
from formation_p2p.capability.shards import SPLIT, depths_of, shard_key
from formation_p2p.dht.store import RecordStore, _Checked, value_name
from formation_p2p.discovery.announcer import JITTER, Announcer, _Shelf, names_of
from formation_p2p.discovery.terms import Terms
from formation_p2p.effects import Contact, Moment
from formation_p2p.keyspace import KEY_BITS, Key, Span, key_of
from formation_p2p.peer.events import Serve
from formation_p2p.peer.peer import Peer
from formation_p2p.records.profile import MAX_TTL_S, Profile, SignedProfile, seal_profile
from formation_p2p.resources.capability import idle
from formation_p2p.sim.liars import Liar
from formation_p2p.sim.node import SimNode
from formation_p2p.sim.world import EPOCH_UNIX_S, World
from simulations.register import Register

# Within which a run must end in which nobody republishes.
LIFE_S: Final = float(MAX_TTL_S)
# An announcer that has published so often does so at its full period.
_ROUNDS: Final = 10


@dataclass(slots=True, eq=False)
class _Worker:
    """`depths` are those of its homes, bucket by bucket. What it says was said `age_s` ago."""

    node: SimNode
    serve: Serve
    depths: list[int]
    age_s: float = 0.0
    checked: _Checked | None = None


class _Shelf_(NamedTuple):
    """Who is announced under a name, and with how many peers. `bucket` is None for a value."""

    workers: list[_Worker]
    replicas: int


class Placed:
    """Everybody announced with `peers`, as of the beginning of the world. Hand `furnish` every
    node that wakes."""

    def __init__(
        self,
        world: World,
        workers: Sequence[tuple[SimNode, Serve]],
        peers: Iterable[SimNode],
        terms: Terms,
        *,
        resumed: bool = False,
    ) -> None:
        self._world = world
        self._terms = terms
        self._ttl_s = terms.ttl_s if resumed else LIFE_S
        rng = random.Random(f"{world.seed}/placed")
        self._workers = {
            node.identity.peer_id: _Worker(
                node,
                serve,
                [0] * len(_buckets(serve)),
                rng.random() * terms.republish_s if resumed else 0.0,
            )
            for node, serve in workers
        }
