"""What a table would do for a peer that stores profiles: of those under one name, 512 at the most
(dht/core/store.py), it answers with the nearest that suit, and it keeps each newer one."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from benchmarks.placement.machines import NOW_UNIX_S, workers
from benchmarks.placement.table import Table
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, Key, distance
from formation_p2p.dht.core.messages import MAX_PROVIDERS
from formation_p2p.machine.core.fits import fits
from formation_p2p.machine.core.requirements import Requirements, parse_requirements
from formation_p2p.records.core.profile import Profile

# A full shard, one that is about to split, and the most that are stored under a name.
UNDER_A_NAME: Final = (32, 128, 512)
QUERIES: Final = 300
SHAPES: Final = {"anything": "", "a GPU": "gpu=1,gpu.memory=24GB,gpu.cc=8.0", "nobody": "cpu=1000"}


def measure(seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """By the number of profiles under the name: medians in us of CPU of an answer, both ways in
    turns, and of filing a newer profile in a table, where the store changes an entry of a dict."""
    rng = random.Random(seed)
    result = {}
    for count in UNDER_A_NAME:
        profiles = {profile.peer_id: profile for profile in workers(count, seed)}
        keys = {peer_id: key_of_peer(peer_id) for peer_id in profiles}
        table = Table()
        for profile in profiles.values():
            table.put(profile)
        put_us = [_timed_us(table.put, replace(p, sequence=2))[0] for p in profiles.values()]
        line: dict[str, Any] = {"put_us": round(float(np.median(put_us)), 1)}
        for name, text in SHAPES.items():
            line[name] = _answered(table, profiles, keys, parse_requirements(text), rng)
        say(f"{count} under a name: {line}")
        result[str(count)] = line
    return {"storing": result}


def _answered(
    table: Table,
    profiles: Mapping[PeerId, Profile],
    keys: Mapping[PeerId, Key],
    needs: Requirements,
    rng: random.Random,
) -> dict[str, float]:
    by_heap, by_table = [], []
    for _ in range(QUERIES):
        target = Key(rng.getrandbits(KEY_BITS))
        took_us, found = _timed_us(_nearest, profiles, keys, needs, target)
        by_heap.append(took_us)
        took_us, same = _timed_us(table.nearest, needs, target, MAX_PROVIDERS, NOW_UNIX_S)
        by_table.append(took_us)
        assert [each.peer_id for each in found] == [each.peer_id for each in same]
    return {
        "store_us": round(float(np.median(by_heap)), 1),
        "table_us": round(float(np.median(by_table)), 1),
    }


def _nearest(
    profiles: Mapping[PeerId, Profile],
    keys: Mapping[PeerId, Key],
    needs: Requirements,
    target: Key,
) -> Sequence[Profile]:
    """As `RecordStore` looks for them."""
    nearest = [(distance(keys[peer_id], target), peer_id) for peer_id in profiles]
    heapq.heapify(nearest)
    found: list[Profile] = []
    while nearest and len(found) < MAX_PROVIDERS:
        profile = profiles[heapq.heappop(nearest)[1]]
        fresh = profile.expires_unix_s > NOW_UNIX_S
        if fresh and not fits(needs, profile.capability, dict(profile.labels), profile.drivers):
            found.append(profile)
    return found


def _timed_us(function: Callable[..., Any], *arguments: object) -> tuple[float, Any]:
    began = time.process_time()
    result = function(*arguments)
    return (time.process_time() - began) * 1e6, result
