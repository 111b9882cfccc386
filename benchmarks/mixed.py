"""Calls on workers with several versions of Python: how many crash, and how many end wrong.

    python -m benchmarks.mixed [--json] [--calls 10000] [--python 3.12 --python 3.13]
                               [--node PATH]

The workers are one with this Python, one with each `--python`, one with all of them, and one that
each `--node`, another interpreter that has this package, runs. So many calls go by `map`, and so
many by the executor: of a lambda, which only this Python can run, and of a builtin by its name, by
each version and by any. Each call has one attempt, and says which version has run it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.dispatch.nodes import Workers
from formation_p2p import Node, TaskFailed
from formation_p2p.machine.core.python import ANY_PYTHON, python_name
from formation_p2p.machine.pythons import own_name

NEEDS: Final = "cpu=0.5,memory=64MiB"
# Which Python runs it, and a value to compare. The builtin `eval` reads it: no code travels.
BY_NAME: Final = (
    "(lambda sys: ('%s-%d.%d' % (sys.implementation.name, *sys.version_info[:2]), {0} * {0}))"
    "(__import__('sys'))"
)
# Nothing here takes longer, for 10,000 calls on two cores.
DEADLINE_S: Final = 600.0


@dataclass
class Tally:
    """`wrong`: another version than the one asked for, or another value."""

    crashes: int = 0
    wrong: int = 0
    ran: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)

    def count(self, results: Iterable[object], allowed: set[str]) -> None:
        for number, result in enumerate(results):
            match result:
                case (str(name), int(value)) if name in allowed and value == number * number:
                    self.ran[name] += 1
                case BaseException():
                    self.crashes += 1
                    self.said.append(f"{type(result).__name__}: {result}"[:300])
                case _:
                    self.wrong += 1
                    self.said.append(f"{result} of {number}"[:300])


@dataclass(frozen=True)
class Kind:
    """A sort of calls: the function, what it gets for a number, and who may run it."""

    python: str
    function: Callable[[Any], Any]
    argument: Callable[[int], Any]
    allowed: set[str]


def kinds(versions: list[str]) -> list[Kind]:
    own, text = own_name(), BY_NAME.format
    code = BY_NAME.replace("{0}", "number")

    def by_value(number: int) -> Any:
        return eval(code, {"number": number})

    names = {own, *versions}
    return [
        Kind("", by_value, int, {own}),
        *(Kind(name, eval, text, {name}) for name in sorted(names)),
        Kind(ANY_PYTHON, eval, text, names),
    ]


async def by_map(node: Node, kind: Kind, count: int, tally: Tally) -> None:
    items = [kind.argument(number) for number in range(count)]
    try:
        results = await node.map(kind.function, items, **options(kind))
    except TaskFailed as failure:
        results = [failure]
    tally.count(results, kind.allowed)


async def by_executor(node: Node, kind: Kind, count: int, tally: Tally) -> None:
    with node.executor(**options(kind)) as pool:
        futures = [pool.submit(kind.function, kind.argument(number)) for number in range(count)]
        ended = await asyncio.gather(*map(_ended, futures), return_exceptions=True)
    tally.count(ended, kind.allowed)


def _ended(future: Future[Any]) -> asyncio.Future[Any]:
    return asyncio.wrap_future(future)


def options(kind: Kind) -> Any:
    return {"needs": NEEDS, "attempts": 1} | ({"python": kind.python} if kind.python else {})


async def measure(calls: int, pythons: list[str], nodes: list[str]) -> dict[str, Any]:
    """`calls` by `map`, and as many by the executor."""
    versions = [python_name(python) for python in pythons]
    line: dict[str, Any] = {"calls": 0, "submitter": own_name(), "nodes": len(nodes)}
    tally = Tally()
    async with asyncio.timeout(DEADLINE_S), Workers(1) as workers:
        offers = [*([each] for each in versions), [own_name(), *versions]]
        workers.all += await asyncio.gather(
            *(workers.add(*offered) for offered in offers),
            *(workers.add(interpreter=interpreter) for interpreter in nodes),
        )
        async with workers.scheduler() as node:
            every = kinds(versions)
            # Half of them hold code: those are what another version must not get.
            counts = [calls // 2, *[calls // 2 // (len(every) - 1)] * (len(every) - 1)]
            began_s = time.monotonic()
            for way in (by_map, by_executor):
                for kind, count in zip(every, counts, strict=True):
                    await way(node, kind, count, tally)
                    line["calls"] += count
            line["mixed_s"] = round(time.monotonic() - began_s, 2)
    missing = line["calls"] - tally.crashes - tally.wrong - sum(tally.ran.values())
    line |= {"crashes": tally.crashes, "wrong": tally.wrong, "missing": missing}
    return line | {"ran": dict(tally.ran), "said": tally.said[:5]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--calls", type=int, default=10_000, help="by each way")
    parser.add_argument("--python", action="append", metavar="VERSION", help="offered beside")
    parser.add_argument("--node", action="append", metavar="PATH", help="runs a worker too")
    given = parser.parse_args()
    line = asyncio.run(measure(given.calls, given.python or ["3.12", "3.13"], given.node or []))
    if given.json:
        print(json.dumps(line))
    else:
        for name, value in line.items():
            print(f"{name:10} {value}")
    return 1 if line["crashes"] or line["wrong"] or line["missing"] else 0


if __name__ == "__main__":
    sys.exit(main())
