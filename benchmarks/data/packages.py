"""A call of a function in a package of a hundred modules, beside one of a builtin: the first call
of a node, for which workers get the package, and warm ones.

For each first call the node is a new one, and the package another, which no worker has seen; the
node has met both workers. The two kinds of calls take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.dispatch.nodes import NEEDS, Workers
from benchmarks.dispatch.timing import put
from formation_p2p import Node

MODULES: Final = 100
# Of each module, which has a hundred lines of code.
FUNCTIONS: Final = 25
_FUNCTION: Final = '''
def function_{number}(value: int) -> int:
    """One of many."""
    return value + {number}
'''
# A worker has its capacity back, and what it does after a lease is done.
SETTLE_S: Final = 0.5
# A warm lease stays warm while other programs have the processors.
LINGER_S: Final = 10.0

Times = dict[str, list[float]]


def package(folder: Path, name: str) -> Callable[[int], int]:
    """The function of a new package: it imports all others of its modules."""
    root = folder / name
    root.mkdir()
    body = "".join(_FUNCTION.format(number=number) for number in range(FUNCTIONS))
    (root / "__init__.py").write_text("")
    for number in range(1, MODULES - 1):
        (root / f"part_{number}.py").write_text(f'"""Part {number} of {name}."""\n{body}')
    imports = "".join(f"from {name} import part_{number}\n" for number in range(1, MODULES - 1))
    last = f"def negative(value: int) -> int:\n    return -part_{MODULES - 2}.function_0(value)\n"
    (root / "parts.py").write_text(f"{imports}\n{last}")
    importlib.invalidate_caches()
    found: Callable[[int], int] = importlib.import_module(f"{name}.parts").negative
    return found


async def call(node: Node, function: Callable[[int], int], number: int) -> float:
    """In ms, until its result is here."""
    began_s = time.perf_counter()
    (result,) = await node.map(function, [-number], needs=NEEDS, linger_s=LINGER_S)
    assert result == number
    return (time.perf_counter() - began_s) * 1000


async def first_calls(workers: Workers, folder: Path, rounds: int) -> Times:
    times_ms: Times = {"package": [], "none": []}
    for number in range(-1, rounds):
        for kind in times_ms:
            function = abs if kind == "none" else package(folder, f"own_{number + 1}")
            async with workers.newcomer() as node:
                took_ms = await call(node, function, 1)
            if number >= 0:  # the first round is of workers that have just started
                times_ms[kind].append(took_ms)
            await asyncio.sleep(SETTLE_S)
    return times_ms


async def warm_calls(workers: Workers, folder: Path, calls: int) -> Times:
    """Of two nodes, each with a worker to itself. They take turns, so that both meet the same
    machine. A quarter is not counted."""
    functions: dict[str, Callable[[int], int]] = {
        "package": package(folder, "own_warm"),
        "none": abs,
    }
    times_ms: Times = {"package": [], "none": []}
    async with workers.scheduler() as one, workers.scheduler() as other:
        for number in range(calls + calls // 4):
            for node, kind in zip((one, other), functions, strict=True):
                times_ms[kind].append(await call(node, functions[kind], number))
    return {kind: times[calls // 4 :] for kind, times in times_ms.items()}


async def main(rounds: int, calls: int) -> None:
    importlib.import_module("formation_p2p.reach.stack")  # which the node imports late
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        async with Workers(2) as workers:
            first_ms = await first_calls(workers, Path(folder), rounds)
            warm_ms = await warm_calls(workers, Path(folder), calls)
    put({"first_ms": _medians(first_ms), "warm_ms": _medians(warm_ms)})


def _medians(times_ms: Times) -> dict[str, float]:
    return {kind: round(statistics.median(times), 2) for kind, times in times_ms.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=400, help="of each kind, warm")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.rounds, arguments.calls))
