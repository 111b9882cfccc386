"""How long it takes to find a free worker, in each way: 50 nodes here; `simulations.announce` has
more."""

from __future__ import annotations

from collections.abc import Mapping

from formation_p2p.workload.core.scope import Find
from simulations.announce import compare
from simulations.latency import Latencies

NODES = 50
LOOKS = 10


def run(seed: int) -> Mapping[str, object]:
    """Over latencies made up by the seed."""
    latencies = Latencies.made_up(seed)
    return {
        f"{NODES} nodes, {free:.0%} free": compare(
            NODES, free, list(Find), LOOKS, latencies, seed, "xor"
        )
        for free in (0.5, 0.1, 0.01)
    }
