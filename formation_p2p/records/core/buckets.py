"""Capability buckets: under which names a worker announces itself, and which one to ask.

A bucket is one attribute at one level: `gpu/memory/80GB` holds every worker with a device of at
least 80 GB. A worker is in the bucket of every level that it reaches, so one bucket answers a
question whole, and a scheduler asks a single one: the most selective that its requirements
imply. The one law is that **every worker that fits is in the bucket asked**; the rest is filtered
where the records are stored, so a bucket need not be exact, only small.

Each name that a worker announces costs it a lookup and k messages twice in each lifetime of its
profile. So levels are geometric and few, start where an ordinary machine ends (below that, `any`
serves as well), and exist only for what requirements can ask: no bucket has an architecture or a
price, and none the vendor of nearly all GPUs. A large machine (128 cores, 1 TiB, 8 x H100) with two
drivers and two labels is in 26, a laptop in 4; none can be in more than 24 and one for each of its
GPU models and vendors, labels and drivers.

GPU memory is in decimal gigabytes, just below the sizes that cards are sold in: one of 24 GB
reports 25.7e9 bytes or 23.99 GiB, and would miss a level of 24 GiB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import Key, Span, prefix
from formation_p2p.core.units import GIB, TIB
from formation_p2p.machine.core.capability import Capability
from formation_p2p.machine.core.python import ANY_PYTHON
from formation_p2p.machine.core.requirements import Requirements

ANY: Final = "any"

_GB: Final = 10**9
# Each: the bucket's name and its level, ascending. A need below the first level implies none.
_CPU: Final = tuple((f"cpu/{cores}", cores * 1000) for cores in (8, 32, 128))
_MEMORY: Final = (
    ("memory/16GiB", 16 * GIB),
    ("memory/64GiB", 64 * GIB),
    ("memory/256GiB", 256 * GIB),
    ("memory/1TiB", TIB),
)
_STORAGE: Final = (("storage/1TiB", TIB), ("storage/16TiB", 16 * TIB))
_NETWORK: Final = (("network/10000", 10_000),)
_GPU: Final = tuple((f"gpu/{count}", count) for count in (1, 2, 4, 8))
_GPU_MEMORY: Final = tuple((f"gpu/memory/{size}GB", size * _GB) for size in (10, 20, 40, 80, 160))
# The generations from Ampere on; what is older is told apart by its memory well enough.
_GPU_CC: Final = tuple((f"gpu/cc/{cc}", cc) for cc in (80, 90, 100, 120))

# Nearly all machines with a GPU have one by it, so that `gpu/1` serves as well.
_USUAL_VENDOR: Final = "nvidia"

_Levels = tuple[tuple[str, int], ...]


def buckets_of(
    capability: Capability, labels: Mapping[str, str], drivers: Collection[str]
) -> tuple[str, ...]:
    """Every bucket that the worker belongs to, without repeats, in a fixed order."""
    gpus = capability.gpus
    return (
        ANY,
        *(f"driver/{driver}" for driver in sorted(set(drivers))),
        *(f"label/{key}/{value}" for key, value in sorted(labels.items())),
        *(f"python/{python.name}" for python in capability.pythons),
        *_reached(_CPU, capability.cpu_milli),
        *_reached(_MEMORY, capability.memory_bytes),
        *_reached(_STORAGE, capability.storage_bytes),
        *_reached(_NETWORK, capability.network_mbps),
        *_reached(_GPU, len(gpus)),
        *_reached(_GPU_MEMORY, max((gpu.memory_bytes for gpu in gpus), default=0)),
        *_reached(_GPU_CC, max((gpu.compute_capability for gpu in gpus), default=0)),
        *(f"gpu/model/{model}" for model in sorted({gpu.model for gpu in gpus})),
        *(f"gpu/vendor/{x}" for x in sorted({gpu.vendor for gpu in gpus} - {_USUAL_VENDOR})),
    )


def widening(needs: Requirements) -> tuple[str, ...]:
    """Every bucket that the requirements imply, from the most to the least selective, to `any`.

    Each holds every worker that `fits`; the first is asked, and the later ones are for when it
    cannot be read.
    The order is a rule of thumb (GPUs are rarer than what a person labels, and that rarer than
    cores; within these, more steps up a geometric scale are rarer than fewer). Where it is wrong
    it costs traffic, never an answer.
    """
    return tuple(_implied(needs))


def bucket_key(network_id: bytes, bucket: str) -> bytes:
    """The multihash (sha2-256) under which a bucket's records are in the DHT, 34 bytes."""
    digest = hashlib.sha256(b"/formation/" + network_id + b"/" + bucket.encode()).digest()
    return b"\x12\x20" + digest


def _implied(needs: Requirements) -> Iterator[str]:
    # A choice of several models implies none of them.
    if len(needs.gpu_models) == 1:
        yield f"gpu/model/{needs.gpu_models[0]}"
    if needs.gpu_vendor not in ("", _USUAL_VENDOR):
        yield f"gpu/vendor/{needs.gpu_vendor}"
    yield from _highest_first(
        (_GPU_MEMORY, needs.gpu_memory_bytes),
        (_GPU_CC, needs.gpu_compute_capability),
        (_GPU, needs.gpu_count),
    )
    yield from (f"label/{key}/{value}" for key, value in needs.labels)
    yield from _highest_first(
        (_MEMORY, needs.memory_bytes),
        (_CPU, needs.cpu_milli),
        (_STORAGE, needs.storage_bytes),
        (_NETWORK, needs.network_mbps),
    )
    if needs.python not in ("", ANY_PYTHON):
        yield f"python/{needs.python}"
    if needs.driver:
        yield f"driver/{needs.driver}"
    yield ANY


def _highest_first(*attributes: tuple[_Levels, int]) -> list[str]:
    """Of each attribute the highest level that is implied; of them, the most steps up first."""
    reached = [list(_reached(levels, needed)) for levels, needed in attributes]
    return [names[-1] for names in sorted(reached, key=len, reverse=True) if names]


def _reached(levels: _Levels, has: int) -> Iterator[str]:
    return (name for name, level in levels if has >= level)


# Prefix shards: how a bucket of any size stays exact to read and cool to keep.
#
# A bucket with few workers is one shard, at depth 0, under the bucket's own name. Where it is full
# it splits: a worker whose key starts with the bits p then announces itself in shard `bucket#p`.
# All members of a shard are nearer to a key with that prefix than any other worker of the bucket,
# so the nearest workers to a task's key are in the shard of that key's prefix: one question.
#
# How deep the workers of a region are is not agreed upon but announced: each signs its `Span`. In
# the shards above its own a worker leaves a sample of itself, so that each keeps about equally
# many of them, whatever the number of workers below: a search from the top learns how deep to go.


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardParameters:
    """When shards split and merge. All nodes of a network agree on it."""

    # A shard with more members splits. Half as many, in each of the two, are twice what a query
    # asks for (`DiscoveryParameters.wanted`), and with 32 the busiest of 100,000 peers that store
    # shards holds 7 times the mean, where 64 would make it 11 (docs/explanation/performance.md).
    split: int = 32
    # A shard with fewer members goes up into the one above, if that has room for them and as many
    # again: well below `split`, so that workers who come and go do not move up and down for ever.
    merge: int = 8
    # The share of a shard's workers that leave a sample one level above theirs; each level further
    # up half of that. Of 33 workers or more, 8 are expected: that none is there is one case in
    # 3,000.
    sample: float = 0.25


def shard_key(network_id: bytes, bucket: str, key: Key, depth: int) -> bytes:
    """The DHT name (a multihash) of the shard at `depth` that `key` falls into."""
    if depth == 0:
        return bucket_key(network_id, bucket)
    return bucket_key(network_id, f"{bucket}#{prefix(key, depth)}")


def depths_of(
    bucket: str, peer_id: PeerId, span: Span, shards: ShardParameters = ShardParameters()
) -> Iterator[int]:
    """Every depth at which a worker is announced in a bucket, the deepest first."""
    yield from sorted(set(span), reverse=True)
    if span.low == 0:
        return
    # A number in [0, 1) that is the same for all who ask, and not the worker's to choose for each
    # bucket.
    digest = hashlib.sha256(b"sample/" + bucket.encode() + b"/" + peer_id.encode()).digest()
    chance = int.from_bytes(digest[:6], "big") / (1 << 48)
    for depth in range(span.low - 1, -1, -1):
        if chance >= shards.sample * 0.5 ** (span.low - 1 - depth):
            return  # nor in any above: a sample of a shard is one of those above as well
        yield depth


def places_of(
    network_id: bytes,
    peer_id: PeerId,
    spans: Mapping[str, Span],
    shards: ShardParameters = ShardParameters(),
) -> dict[bytes, tuple[int, Span]]:
    """Every DHT name that a worker with these spans, by bucket, belongs under: at what depth
    each is, and the span there."""
    key = key_of_peer(peer_id)
    return {
        shard_key(network_id, bucket, key, depth): (depth, span)
        for bucket, span in spans.items()
        for depth in depths_of(bucket, peer_id, span, shards)
    }
