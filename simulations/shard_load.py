"""How evenly shards lie on the peers that store them, for other sizes than the shipped ones.

    python -m simulations.shard_load --workers 100000

A sketch in numpy, without peers: every worker is a peer as well, each of the buckets holds half
as many workers as the one before, shards that are full split, and each shard is held by the
peers nearest to its name. What the shipped code does is `simulations.discovery`.
"""

from __future__ import annotations

import argparse
import json
from typing import Final

import numpy as np
import numpy.typing as npt

from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.records.core.buckets import ShardParameters

Keys = npt.NDArray[np.int64]

KEY_BITS: Final = 62
SHIPPED: Final = ShardParameters()
CHOICES: Final = ((64, 20), (64, 8), (32, 20), (32, 8), (32, 5), (16, 8), (16, 5))


def nearest(peers: Keys, key: int, count: int) -> Keys:
    """The places, in the sorted keys of the peers, of those nearest to a key."""
    low, high, prefix = 0, len(peers), 0
    for bit in range(KEY_BITS - 1, -1, -1):
        middle = low + int(np.searchsorted(peers[low:high], prefix | 1 << bit))
        ahead = (middle, high) if key >> bit & 1 else (low, middle)
        if ahead[1] - ahead[0] < count:
            break
        low, high = ahead
        prefix |= key & 1 << bit
    return low + np.argsort(peers[low:high] ^ key)[:count]


def load(workers: int, buckets: int, split: int, replicas: int, seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    top = 1 << KEY_BITS
    peers = np.sort(rng.integers(0, top, workers))
    held = np.zeros(workers, dtype=np.int64)
    members: list[int] = []
    for bucket in range(buckets):
        keys = np.sort(rng.choice(peers, max(1, workers >> bucket), replace=False))
        chances = rng.random(len(keys))
        homes = np.zeros(len(keys), dtype=np.int64)
        shards = [(0, 0, 0, len(keys))]  # depth, prefix, and which of the keys are in it
        full: list[tuple[int, int, int]] = []
        while shards:
            depth, prefix, low, high = shards.pop()
            if high - low <= split:
                homes[low:high] = depth
                members.append(high - low)
                held[nearest(peers, int(rng.integers(0, top)), replicas)] += high - low
                continue
            full.append((depth, low, high))
            ones = (prefix << 1 | 1) << (KEY_BITS - 1 - depth)
            middle = low + int(np.searchsorted(keys[low:high], ones))
            shards.append((depth + 1, prefix << 1, low, middle))
            shards.append((depth + 1, prefix << 1 | 1, middle, high))
        for depth, low, high in full:
            samples = int(
                (chances[low:high] < SHIPPED.sample * 0.5 ** (homes[low:high] - 1 - depth)).sum()
            )
            held[nearest(peers, int(rng.integers(0, top)), max(1, replicas // 2))] += samples
    return {
        "split": split,
        "replicas": replicas,
        "busiest_over_mean": round(float(held.max() / held.mean()), 1),
        "busiest": int(held.max()),
        "mean": round(float(held.mean()), 1),
        "shards_below_8_share": round(float(np.mean(np.array(members) < 8)), 4),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--workers", type=int, default=100_000)
    options.add_argument("--buckets", type=int, default=12)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    shipped = (SHIPPED.split, DiscoveryParameters().replicas)
    rows = [
        load(given.workers, given.buckets, split, replicas, given.seed)
        for split, replicas in sorted({*CHOICES, shipped}, reverse=True)
    ]
    if given.json:
        print(json.dumps({"seed": given.seed, "workers": given.workers, "rows": rows}))
        return
    print(f"seed {given.seed}, {given.workers} workers, {given.buckets} buckets")
    for row in rows:
        mark = "  <- shipped" if (row["split"], row["replicas"]) == shipped else ""
        print(*(f"{name}={value}" for name, value in row.items()), mark)


if __name__ == "__main__":
    main()
