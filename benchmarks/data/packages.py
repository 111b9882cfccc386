"""A call of a function in a package of a hundred modules, beside one of a builtin: the first call
of a node, for which workers get the package, and those that follow.

Each time the node is a new one, and the package another, which no worker has seen; the node has
met both workers. The two kinds of calls take turns.
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
from typing import Any, Final

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


async def calls(node: Node, function: Callable[[int], int], warm: int) -> tuple[float, list[float]]:
    """In ms: the first call, and those that follow."""
    times_ms: list[float] = []
    for number in range(1 + warm):
        began_s = time.perf_counter()
        (result,) = await node.map(function, [-number], needs=NEEDS)
        times_ms.append((time.perf_counter() - began_s) * 1000)
        assert result == number
    return times_ms[0], times_ms[1:]


async def main(rounds: int, warm: int) -> None:
    importlib.import_module("formation_p2p.host.net.stack")  # which the node imports late
    first_ms: dict[str, list[float]] = {"package": [], "none": []}
    warm_ms: dict[str, list[float]] = {"package": [], "none": []}
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        async with Workers(2) as workers:
            for number in range(-1, rounds):
                for kind in first_ms:
                    function = abs if kind == "none" else package(Path(folder), f"own_{number + 1}")
                    async with workers.newcomer() as node:
                        first, following = await calls(node, function, warm)
                    if number >= 0:  # the first round is of workers that have just started
                        first_ms[kind].append(first)
                        warm_ms[kind] += following[warm // 4 :]
                    await asyncio.sleep(SETTLE_S)
    put({"first_ms": _medians(first_ms), "warm_ms": _medians(warm_ms)})


def _medians(times_ms: dict[str, list[float]]) -> dict[str, Any]:
    return {kind: round(statistics.median(times), 2) for kind, times in times_ms.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=200, help="calls after each first one")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.rounds, arguments.warm))
