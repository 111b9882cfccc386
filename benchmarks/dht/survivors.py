"""What the others notice when a third of the network is killed at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from benchmarks.dht.sides import BenchmarkError, PythonSide
from formation_p2p.dht.core.messages import MAX_PROVIDERS
from formation_p2p.discovery.core.parameters import DiscoveryParameters

TTL_S: Final = DiscoveryParameters().ttl_s
# So many queries right after the kill, from nodes drawn by chance.
QUERIES: Final = 20
ANNOUNCED_S: Final = 30.0
AGAIN_S: Final = 0.5
# While the dead ones expire, somebody asks this often.
WATCH_S: Final = 10.0


async def kill_a_third(counts: Sequence[int], say: Callable[[str], None]) -> dict[str, Any]:
    """All work; the last process is killed; the others ask for whoever works, nearest to a key
    drawn by chance. Times in seconds."""
    async with PythonSide("formation", "formation_nodes", "this checkout", counts) as network:
        await network.start()
        alive = sum(counts[:-1])
        dead = set(network.ids[alive:])
        await asyncio.gather(*(process.tell(do="serve") for process in network.processes))
        async with asyncio.timeout(ANNOUNCED_S):
            await _announced(network, min(MAX_PROVIDERS, sum(counts)))
        network.processes[-1].kill()
        killed_s = time.monotonic()
        say(f"killed {len(dead)} of {len(network.ids)}")
        times: list[float] = []
        named_s = 0.0
        while (after_s := time.monotonic() - killed_s) < 2 * TTL_S or len(times) < QUERIES:
            line = await network.tell(random.randrange(alive), do="workers")
            if dead & set(line["found"]):
                named_s = time.monotonic() - killed_s
            if len(times) < QUERIES:
                times.append(line["s"])
                if len(times) == QUERIES:
                    say(f"the next {QUERIES} queries: {max(times):.3f} s at the most")
            else:
                await asyncio.sleep(min(WATCH_S, max(0.0, 2 * TTL_S - after_s)))
        named = 0
        for node in range(alive):
            line = await network.tell(node, do="workers")
            named += bool(dead & set(line["found"]))
            if not line["found"]:
                raise BenchmarkError("a query after two lifetimes found nobody at all")
        say(f"a dead worker was last named after {named_s:.0f} s")
        say(f"after two lifetimes, {named} of {alive} answers name one")
        return {
            "killed": len(dead),
            "queries_max_s": round(max(times), 3),
            "ttl_s": TTL_S,
            "dead_last_named_s": round(named_s, 1),
            "answers_with_dead_after_2_ttl": named,
        }


async def _announced(network: PythonSide, count: int) -> None:
    """Returns once a node finds so many workers."""
    while True:
        line = await network.tell(0, do="workers")
        if len(line["found"]) >= count:
            return
        await asyncio.sleep(AGAIN_S)
