"""Prefix shards: how a bucket of any size stays exact to read and cool to keep.

A bucket with few workers is one shard, at depth 0, under the bucket's own name. Where it is full
it splits: a worker whose key starts with the bits p then announces itself in shard `bucket#p`.
All members of a shard are nearer to a key with that prefix than any other worker of the bucket,
so the nearest workers to a task's key are in the shard of that key's prefix: one question.

How deep the workers of a region are is not agreed upon but announced: each signs its `Span`. In
the shards above its own a worker leaves a sample of itself, so that each keeps about equally
many of them, whatever the number of workers below: a search from the top learns how deep to go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import Key, Span, prefix
from formation_p2p.records.core.buckets import bucket_key


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardParameters:
    """When shards split and merge. All nodes of a network agree on it."""

    # A shard with more members splits. Half as many, in each of the two, are twice what a query
    # asks for (`DiscoveryParameters.wanted`), and with 32 the busiest of 100,000 peers that store
    # shards holds 7 times the mean, where 64 would make it 11 (docs/performance.md).
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
