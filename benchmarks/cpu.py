"""Processor time of processes: on a busy machine it says more than a clock."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil


def used_s(processes: Iterable[psutil.Process]) -> float:
    """What these have used themselves."""
    total_s = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # one that ended a moment ago
            times = process.cpu_times()
            total_s += times.user + times.system
    return total_s


def tree_s() -> float:
    """Of this process and all below it, with those that ended and were waited for."""
    own = psutil.Process()
    total_s = 0.0
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


@dataclass
class Spent:
    """`cpu_s` is that of this process and all below it."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


@contextmanager
def spent() -> Iterator[Spent]:
    """Measures its block."""
    measured = Spent()
    cpu_s, began_s = tree_s(), time.perf_counter()
    yield measured
    measured.wall_s = time.perf_counter() - began_s
    measured.cpu_s = tree_s() - cpu_s
