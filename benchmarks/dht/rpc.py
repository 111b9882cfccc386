"""What one request of the DHT costs both sides together: all the nodes in this one process.

    python -m benchmarks.dht.rpc [--nodes 40] [--lookups 100] [--profile FILE]

Lookups of random keys, one after the other, over the shipped stack on loopback; the time that
they took, over the number of requests that they made. With FILE the time is cProfile's, and what
it saw is written there.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import statistics
import tempfile
import time
from pathlib import Path

import trio

from benchmarks.dht.formation_nodes import Nodes
from formation_p2p.core.identity import Identity, peer_id_of

# Nothing here takes longer, on two cores.
DEADLINE_S = 120.0


async def main(count: int, lookups: int, profile: str | None) -> None:
    profiler = cProfile.Profile() if profile else None
    with tempfile.TemporaryDirectory() as scratch, trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nodes = Nodes(nursery, Path(scratch))
            began_s = time.perf_counter()
            await nodes.start(Identity.from_seed(os.urandom(32)), count, ())
            await nodes.find_all([node.identity.peer_id for node in nodes.all])
            print(f"join     {time.perf_counter() - began_s:8.2f} s for {count} nodes")
            for node in nodes.all:  # connections, of which a lookup opens some
                await node.closest(peer_id_of(os.urandom(32)))
                node.rpcs = 0
            times = []
            if profiler is not None:
                profiler.enable()
            began_cpu_s = time.process_time()
            for n in range(lookups):
                node = nodes.all[n % count]
                times.append((await node.closest(peer_id_of(os.urandom(32))))[0])
            cpu_s = time.process_time() - began_cpu_s
            if profiler is not None:
                profiler.disable()
            requests = sum(node.rpcs for node in nodes.all)
            print(f"lookup   {statistics.median(times) * 1000:8.2f} ms p50 of {lookups}")
            print(f"requests {requests / lookups:8.1f} for each lookup")
            print(f"request  {sum(times) / requests * 1e6:8.0f} us, both sides")
            print(f"         {cpu_s / requests * 1e6:8.0f} us of CPU, both sides")
            nursery.cancel_scope.cancel()
    if profiler is not None and profile is not None:
        profiler.dump_stats(profile)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=40)
    parser.add_argument("--lookups", type=int, default=100)
    parser.add_argument("--profile", metavar="FILE")
    arguments = parser.parse_args()
    trio.run(main, arguments.nodes, arguments.lookups, arguments.profile)
