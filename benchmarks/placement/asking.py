"""One table, asked for the nearest workers that can run a task, and told of changes."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.placement.columns import AtLeast, Condition
from benchmarks.placement.machines import NOW_UNIX_S, RARE_LABEL, workers
from benchmarks.placement.question import Question
from benchmarks.placement.table import Table
from formation_p2p.core.keyspace import KEY_BITS, Key
from formation_p2p.machine.core.requirements import parse_requirements
from formation_p2p.records.core.profile import Profile

TOP: Final = 20
QUERIES: Final = 100
CHANGES: Final = 20_000
# By name: what is asked of a worker. From what nearly all can do to what nobody can.
SHAPES: Final = {
    "anything": "",
    "8 cores": "cpu=8,memory=32GiB",
    "a GPU": "gpu=1,gpu.memory=24GB,gpu.cc=8.0",
    "label and driver": "label.region=south,driver=container",
    "large, few places": "label.region=africa,driver=container,cpu=24,memory=128GiB",
    "eight H100": "gpu=8,gpu.model=h100",
    "one of four models": "gpu.model=t4|h100|a100|l40s,gpu.memory=79GB,cpu=100,label.region=asia",
    "half of an L40S": "gpu.share=0.5,gpu.model=l40s,cpu=60,memory=256GiB,driver=container",
    "rare label": f"label.{RARE_LABEL[0]}={RARE_LABEL[1]}",
    "a bit of everything": "gpu=2,gpu.model=a100,gpu.memory=80GB,gpu.cc=8.0,cpu=16,memory=64GiB,"
    "storage=1TiB,network=1000,label.region=africa,driver=container",
    "nobody": "cpu=1000",
}


def measure(count: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Times are of one thread; `topk` is for the slowest shape, and so is the memory pass."""
    say(f"making {count:,} workers …")
    table, profiles, put_us = _filled(count, seed)
    rng = random.Random(seed)
    shapes = {}
    for name, text in SHAPES.items():
        for free_now in (False, True):
            shown = f"{name}, free now" if free_now else name
            needs = parse_requirements(text)
            shapes[shown] = _asked(table, Question(needs, NOW_UNIX_S, free_now), rng)
            say(f"{shown:30} {shapes[shown]}")
    slowest = max(shapes.values(), key=lambda shape: shape["p50_ms"])
    changes = _changed(table, profiles, rng)
    return {
        "workers": count,
        "topk_1m_p50_ms": slowest["p50_ms"],
        "memory_pass_ms": slowest["memory_pass_ms"],
        "update_us": changes["replaced"]["p50"],
        "worst_of_passes": max(shape["passes"] for shape in shapes.values()),
        "shapes": shapes,
        "changes_us": {**changes, "filling": put_us},
    }


def _filled(count: int, seed: int) -> tuple[Table, list[Profile], dict[str, float]]:
    table, profiles, took_s = Table(), [], []
    # The collector would look through all of them again and again.
    gc.disable()
    for profile in workers(count, seed):
        began = time.perf_counter()
        table.put(profile)
        took_s.append(time.perf_counter() - began)
        profiles.append(profile)
    gc.enable()
    return table, profiles, _percentiles_us(took_s)


def _asked(table: Table, question: Question, rng: random.Random) -> dict[str, Any]:
    """Queries and memory passes take turns, so that what else the machine does slows both."""
    needs, free_now = question.needs, question.free_now
    columns = [_column(table, condition) for condition in question.conditions()]
    took_s, pass_s, found = [], [], []
    for _ in range(QUERIES):
        target = Key(rng.getrandbits(KEY_BITS))
        began = time.perf_counter()
        nearest = table.nearest(needs, target, TOP, NOW_UNIX_S, free_now=free_now)
        asked = time.perf_counter()
        for column in columns:
            column.sum()
        passed = time.perf_counter()
        took_s.append(asked - began)
        pass_s.append(passed - asked)
        found.append(len(nearest))
    p50_s, p50_pass_s = float(np.median(took_s)), float(np.median(pass_s))
    return {
        "p50_ms": round(p50_s * 1e3, 3),
        "p99_ms": round(float(np.percentile(took_s, 99)) * 1e3, 3),
        "memory_pass_ms": round(p50_pass_s * 1e3, 3),
        "passes": round(p50_s / p50_pass_s, 2),
        "columns": len(columns),
        "meet": len(table.match(needs, NOW_UNIX_S, free_now=free_now)),
        "found": max(found),
    }


def _column(table: Table, condition: Condition) -> npt.NDArray[np.uint64]:
    """All bytes of the column that a condition asks, in the words that numpy sums fastest."""
    columns, count = table.columns, len(table) // 2 * 2
    if isinstance(condition, AtLeast):
        words: npt.NDArray[np.uint64] = columns.amounts[condition.column, :count].view(np.uint64)
    else:
        words = columns.names[condition.column, :count]
    return words


def _changed(
    table: Table, profiles: Sequence[Profile], rng: random.Random
) -> dict[str, dict[str, float]]:
    """A worker says that other parts of it are free; one leaves; one comes."""
    took_s: dict[str, list[float]] = {"replaced": [], "removed": [], "added": []}

    for _ in range(CHANGES):
        profile = rng.choice(profiles)
        has = profile.capability
        free = replace(profile.capacity, cpu_milli=rng.randint(0, has.cpu_milli))
        newer = replace(profile, sequence=2, capacity=free)
        began = time.perf_counter()
        table.put(newer)
        replaced = time.perf_counter()
        table.remove(newer.peer_id)
        removed = time.perf_counter()
        table.put(newer)
        added = time.perf_counter()
        took_s["replaced"].append(replaced - began)
        took_s["removed"].append(removed - replaced)
        took_s["added"].append(added - removed)
    return {what: _percentiles_us(times_s) for what, times_s in took_s.items()}


def _percentiles_us(times_s: Sequence[float]) -> dict[str, float]:
    shares = {"p50": 50.0, "p99": 99.0, "max": 100.0}
    return {
        name: round(float(np.percentile(times_s, share)) * 1e6, 1) for name, share in shares.items()
    }
