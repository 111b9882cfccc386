"""Which few machines a decision sees: those in the shards around the task's key.

Machines get made-up peer ids, and are in the buckets and shards that the library puts them in.
As discovery does, a decision asks the most selective bucket of the requirements, first in the
shard of the key's prefix, then in its neighbours by XOR distance. The storing peers answer with
members that have room now, which a profile says; announcements are taken to be up to date.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from formation_p2p.core.identity import PeerId, key_of_peer, peer_id_of
from formation_p2p.core.keyspace import KEY_BITS, Key
from formation_p2p.core.units import MIB
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.machine.core.capability import Capability
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI, Gpu
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.buckets import buckets_of, widening
from simulations.openb.cluster import Bools, Cluster, Ints
from simulations.openb.trace import Machine, Pod

DISCOVERY: Final = DiscoveryParameters()
# Decimal gigabytes a device. The trace does not tell what G2 and G3 are; no pod asks for memory.
_GPU_GB: Final = {"a10": 24, "v100m32": 32}
_ANY_GPU_GB: Final = 16
# Prefixes are at most 24 bits; that two of 2,000 keys share 64 is one case in 10**13.
_BITS: Final = 64
# Levels of buckets that tell what is free: thousandths of one device, and whole devices.
SHARES: Final = (200, 400, 600, 800)
WHOLE: Final = (1, 2, 4, 8)

_Keys = npt.NDArray[np.uint64]


class Found(NamedTuple):
    """Machines, nearest first, and how many shards were read."""

    machines: Ints
    shards: int


class Shards:
    """The members of a bucket, by key."""

    def __init__(self, keys: _Keys) -> None:
        self._keys = keys

    def around(self, target: int) -> Iterator[tuple[int, int]]:
        """The members of each shard, from place to place: the target's own shard, then those as
        deep as it, in the order of their distance."""
        depth = 0
        low, high = 0, len(self._keys)
        while high - low > DISCOVERY.shards.split:
            depth += 1
            low, high = self._span(target >> (_BITS - depth), depth)
        own = target >> (_BITS - depth)
        for ahead in range(1 << depth):
            yield self._span(own ^ ahead, depth)

    def _span(self, prefix: int, depth: int) -> tuple[int, int]:
        ends = (prefix << (_BITS - depth), (prefix + 1) << (_BITS - depth))
        low, high = (
            len(self._keys) if end >> _BITS else int(self._keys.searchsorted(np.uint64(end)))
            for end in ends
        )
        return low, high


class Network:
    """`by_capacity`: beside the buckets of the library there are some of what is free."""

    def __init__(self, cluster: Cluster, seed: int, *, by_capacity: bool = False) -> None:
        self._cluster = cluster
        self._by_capacity = by_capacity
        self.peers = tuple(peer_of(seed, number) for number in range(len(cluster.machines)))
        self._keys: _Keys = np.array([_short(key_of_peer(peer)) for peer in self.peers], np.uint64)
        self._order: Ints = self._keys.argsort()
        self._members: dict[str, Ints] = {}
        for place in self._order:
            able = capability(cluster.machines[place])
            for bucket in buckets_of(able, {}, ()):
                members = self._members.get(bucket, np.empty(0, np.int64))
                self._members[bucket] = np.append(members, place)

    def find(self, pod: Pod, key: Key, room: Bools, wanted: int) -> Found:
        """The `wanted` nearest that have room, in as many shards as a search may read."""
        members = self._bucket(pod)
        target = _short(key)
        nearest: list[int] = []
        read = 0
        for low, high in Shards(self._keys[members]).around(target):
            read += 1
            inside = members[low:high]
            inside = inside[room[inside]]
            distances = self._keys[inside] ^ np.uint64(target)
            nearest += inside[distances.argsort()].tolist()
            most = DISCOVERY.max_steps if nearest else DISCOVERY.max_steps_to_room
            if len(nearest) >= wanted or read >= most:
                break
        return Found(np.array(nearest[:wanted], np.int64), read)

    def levels(self, machine: int) -> int:
        """In how many buckets of what is free a machine is."""
        free = self._cluster.free[machine]
        most, idle = int(free.max()), int((free == WHOLE_GPU_MILLI).sum())
        return sum(most >= share for share in SHARES) + sum(idle >= count for count in WHOLE)

    def _bucket(self, pod: Pod) -> Ints:
        needs = requirements(pod)
        if self._by_capacity and len(pod.models) != 1 and pod.share_milli >= min(SHARES):
            return self._order[self._has_level(pod)[self._order]]
        return self._members.get(widening(needs)[0], np.empty(0, np.int64))

    def _has_level(self, pod: Pod) -> Bools:
        free = self._cluster.free
        has: Bools
        if pod.is_part:
            has = free.max(axis=1) >= max(share for share in SHARES if share <= pod.share_milli)
        else:
            has = (free == WHOLE_GPU_MILLI).sum(axis=1) >= max(n for n in WHOLE if n <= pod.gpus)
        return has


@cache
def capability(machine: Machine) -> Capability:
    memory = _GPU_GB.get(machine.model, _ANY_GPU_GB) * 10**9
    return Capability(
        machine.cpu_milli,
        machine.memory_mib * MIB,
        gpus=tuple(Gpu(f"G{n}", "nvidia", machine.model, memory) for n in range(machine.gpus)),
    )


@cache
def requirements(pod: Pod) -> Requirements:
    return Requirements(
        cpu_milli=max(pod.cpu_milli, 1),
        memory_bytes=max(pod.memory_mib * MIB, 1),
        gpu_count=pod.gpus,
        gpu_share_milli=pod.share_milli or WHOLE_GPU_MILLI,
        gpu_models=pod.models,
    )


def peer_of(seed: int, number: int) -> PeerId:
    return peer_id_of(hashlib.sha256(f"{seed}/{number}".encode()).digest())


def _short(key: Key) -> int:
    return key >> (KEY_BITS - _BITS)
