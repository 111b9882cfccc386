"""Four DHTs on loopback, one after the other in one run: ours, go-libp2p's, and two of Python.

    make bench-dht             or: python -m benchmarks.dht [--json] [--kill] [--only NAME …]

Forty nodes each; the Python ones in four processes, go-libp2p's in forty. Join is the time from
the start of the first process until every node has found every other: by its table, or else by a
lookup of the other's id. Then, one operation at a time, each at a node drawn by chance:

              announce                    find                          closest
    ours      a signed profile, stored    its lookup, all answers       FIND_NODE lookup
              at the nearest of a lookup  verified
    p2pd      PROVIDE                     FIND_PROVIDERS, count 1       GET_CLOSEST_PEERS
    kademlia  set, 460 bytes              get                           NodeSpiderCrawl
    py-libp2p provide                     find_providers                find_closest_peers_network

Find looks for what was just announced, from a node that is far from the name, so that it does
not have the record itself. `--kill` goes on with ours alone: all nodes work, a third of them is
killed, and the others ask who is there.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from benchmarks.command import run_and_exit
from benchmarks.dht.p2pd_side import P2pdSide
from benchmarks.dht.sides import BenchmarkError, NotFound, PythonSide, Side
from benchmarks.dht.survivors import kill_a_third

# In four processes, one of which holds about a third: it is the one that `--kill` kills.
COUNTS: Final = (9, 9, 9, 13)
ROUNDS: Final = 40
# A side that is slower makes as many rounds as it can in this time, and at least MIN_ROUNDS.
MEASURE_S: Final = 60.0
MIN_ROUNDS: Final = 5
# py-libp2p's needs two minutes; whoever is not there by then is given up.
JOIN_S: Final = 240.0
OPERATION_S: Final = 60.0
SIDES: Final = ("formation", "p2pd", "kademlia", "py_libp2p")
# ADD_PROVIDER has no answer: after an announcement the storing peers have this long to act on it.
SETTLE_S: Final = 0.1
# Of the nodes farthest from a name, as many as surely do not hold it: with 40 nodes and k = 20,
# half of them do.
FAR_SHARE: Final = 0.25


def side(name: str, counts: Sequence[int]) -> Side:
    match name:
        case "formation":
            return PythonSide(name, "formation_nodes", "this checkout", counts)
        case "p2pd":
            return P2pdSide(name, sum(counts))
        case "kademlia":
            version = importlib.metadata.version("kademlia")
            return PythonSide(name, "kademlia_nodes", version, counts)
        case _:
            version = importlib.metadata.version("libp2p")
            return PythonSide(name, "py_libp2p_nodes", version, counts)


async def measure(network: Side, rounds: int) -> dict[str, Any]:
    """Joins, then measures. The figures are medians; `samples` is of how many, and `missed` how
    many searches ended without what had been announced."""
    began_s = time.perf_counter()
    try:
        async with asyncio.timeout(JOIN_S):
            await network.start()
    except TimeoutError:
        return {"failed": f"not joined within {JOIN_S:.0f} s"}
    join_s = time.perf_counter() - began_s
    times: dict[str, list[float]] = {"announce": [], "find": [], "closest": []}
    searches = {"find": network.find}
    if isinstance(network, P2pdSide):
        searches["find_all"] = network.find_all
        times["find_all"] = []
    missed = 0
    until_s = time.monotonic() + MEASURE_S
    for n in range(rounds):
        if n >= MIN_ROUNDS and time.monotonic() > until_s:
            break
        async with asyncio.timeout(OPERATION_S * 3):
            author = random.randrange(len(network.keys))
            name = f"{n}-{os.urandom(4).hex()}"
            announced = await network.announce(author, name)
            times["announce"].append(announced.s)
            await asyncio.sleep(SETTLE_S)
            for what, search in searches.items():
                finder = far_from(announced.key, network.keys, author)
                try:
                    times[what].append(await search(finder, name, author))
                except NotFound:
                    missed += 1
            times["closest"].append(await network.closest(random.randrange(len(network.keys))))
    p50_ms = {
        what: round(statistics.median(all_s) * 1000, 2) for what, all_s in times.items() if all_s
    }
    samples = len(times["announce"])
    return {**p50_ms, "join_s": round(join_s, 2), "samples": samples, "missed": missed}


def far_from(key: int, keys: list[int], author: int) -> int:
    far = sorted(range(len(keys)), key=lambda node: keys[node] ^ key, reverse=True)
    return random.choice([n for n in far[: max(2, int(len(keys) * FAR_SHARE))] if n != author])


async def run(
    names: Sequence[str], counts: Sequence[int], rounds: int, kill: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    p50_ms, versions = {}, {}
    for name in names:
        say(f"{name} …")
        async with side(name, counts) as network:
            figures = await measure(network, rounds)
            p50_ms[name], versions[name] = figures, network.version
            say(f"{name:10} " + "  ".join(f"{what} {value}" for what, value in figures.items()))
    result: dict[str, Any] = {
        "nodes": sum(counts),
        "processes": len(counts),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "p50_ms": p50_ms,
    }
    if kill:
        say("a third is killed …")
        result["kill"] = await kill_a_third(counts, say)
    return result


async def main(arguments: argparse.Namespace) -> int:

    def say(line: str) -> None:
        print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    counts = COUNTS if arguments.nodes is None else _shared_out(arguments.nodes)
    try:
        result = await run(arguments.only, counts, arguments.rounds, arguments.kill, say)
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(result))
    return 0


def _shared_out(nodes: int) -> tuple[int, ...]:
    """Over four processes, as many in each as can be."""
    return tuple(nodes // 4 + (n < nodes % 4) for n in range(4) if nodes // 4 + (n < nodes % 4))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--kill", action="store_true", help="then kill a third; four minutes")
    parser.add_argument("--only", nargs="+", choices=SIDES, default=SIDES, metavar="NAME")
    parser.add_argument("--nodes", type=int, help=f"in place of {sum(COUNTS)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    run_and_exit(main(parser.parse_args()))
