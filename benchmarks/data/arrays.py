"""Large arrays to functions and back: the same measurement for every side.

Rates are of the bytes that go in. Each round has arrays of its own, made before the clock starts:
no side can use again what it has sent.

This file imports numpy and the standard library alone: the environment of Ray and joblib has
nothing of ours.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np

from benchmarks.cpu import spent

MB: Final = 1_000_000
ITEM_BYTES: Final = 8

Array = Any


class Engine(Protocol):
    async def totals(self, arrays: Sequence[Array]) -> Sequence[float]:
        """`total` of each, all submitted together."""

    async def doubles(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """`double` of each, all submitted together."""


def total(array: Array) -> float:
    """Reads all of it."""
    return float(array.sum())


def double(array: Array) -> Array:
    """Reads all of it, and writes as much."""
    return array * 2


def make(count: int, size_mb: int, first: int) -> list[Array]:
    """Arrays that differ from each other, and from those of another `first`."""
    items = size_mb * MB // ITEM_BYTES
    base = np.arange(items, dtype=np.float64)
    return [base + (first + number) for number in range(count)]


async def measure(engine: Engine, arguments: argparse.Namespace) -> dict[str, Any]:
    """After a warm-up of two arrays, which starts and imports what comes late."""
    is_in = arguments.way == "in"
    rates: list[float] = []
    cpu_s: list[float] = []
    for number in range(-1, arguments.rounds):
        count = 2 if number < 0 else arguments.arrays
        arrays = make(count, arguments.mb, 1000 * (number + 1))
        with spent() as took:
            results = await (engine.totals(arrays) if is_in else engine.doubles(arrays))
        _check(arrays, results, is_in)
        if number >= 0:
            rates.append(count * arguments.mb / took.wall_s)
            cpu_s.append(took.cpu_s)
        del arrays, results
    return {
        "mb_s": round(statistics.median(rates), 1),
        "cpu_s": round(statistics.median(cpu_s), 2),
        "rounds_mb_s": [round(rate, 1) for rate in rates],
    }


def _check(arrays: Sequence[Array], results: Sequence[Any], is_in: bool) -> None:
    ends = [0, -1]
    for array, result in zip(arrays, results, strict=True):
        right = result == total(array) if is_in else (result[ends] == array[ends] * 2).all()
        if not right:
            raise RuntimeError("an array came back wrong")


def arguments_of(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--way", choices=("in", "inout"), default="in")
    parser.add_argument("--arrays", type=int, default=10)
    parser.add_argument("--mb", type=int, default=50, help="of each array")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--apart", action="store_true", help="ours: as if on other machines")
    return parser.parse_args()
