"""Stages of a pipeline beside the best there are: `partition_optimal`, `over_memory`."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any, Final

from formation_p2p.core.errors import Unplaceable
from formation_p2p.features.gangs.core.part import Links, MemberCapacity, Part, Problem
from formation_p2p.features.gangs.core.partition import partition
from formation_p2p.features.gangs.core.pipeline import cut_bytes

INSTANCES: Final = 1000
MAX_PARTS: Final = 8
MAX_MEMBERS: Final = 4


def fastest_s(problem: Problem) -> float | None:
    """Of the slowest stage or link, by trying all cuts with all members in all orders; None where
    no way fits into the memory."""
    count, cuts, best = len(problem.parts), cut_bytes(problem), None
    for stages in range(1, min(count, len(problem.members)) + 1):
        for inner in itertools.combinations(range(1, count), stages - 1):
            bounds = [*itertools.pairwise((0, *inner, count))]
            for members in itertools.permutations(problem.members, stages):
                pace_s = _pace_s(problem, bounds, members, cuts)
                if pace_s is not None and (best is None or pace_s < best):
                    best = pace_s
    return best


def _pace_s(
    problem: Problem,
    bounds: list[tuple[int, int]],
    members: tuple[MemberCapacity, ...],
    cuts: list[int],
) -> float | None:
    pace_s = 0.0
    for place, ((first, end), member) in enumerate(zip(bounds, members, strict=True)):
        parts = problem.parts[first:end]
        if sum(part.memory_bytes for part in parts) > member.memory_bytes:
            return None
        pace_s = max(pace_s, sum(part.work for part in parts) / member.speed)
        if place:
            before = members[place - 1].rank
            pace_s = max(pace_s, problem.links.seconds(before, member.rank, cuts[first]))
    return pace_s


def drawn(seed: int, most_parts: int = MAX_PARTS) -> Problem:
    """With skips, bounds of memory that some do not keep, and unequal links, some not measured."""
    rng = random.Random(seed)
    count, members = rng.randint(1, most_parts), rng.randint(1, MAX_MEMBERS)
    parts = (
        Part(
            f"layer{n}",
            rng.randint(0, 50),
            rng.randint(0, 20),
            sends={f"layer{m}": rng.randint(0, 10**8) for m in range(n + 1, min(n + 3, count))},
        )
        for n in range(count)
    )
    pairs = [*itertools.permutations(range(members), 2)]
    links = Links(
        {pair: rng.randint(10**6, 10**9) for pair in pairs if rng.random() < 0.7},
        {pair: rng.randint(1, 10**5) for pair in pairs if rng.random() < 0.7},
    )
    capacities = (MemberCapacity(n, rng.randint(1, 40), rng.randint(5, 80)) for n in range(members))
    return Problem(tuple(parts), tuple(capacities), links)


def figures(seed: int = 42, instances: int = INSTANCES) -> dict[str, Any]:
    """`partition_optimal` counts those that are as fast as the best, and those that are refused
    where nothing fits."""
    optimal = over = refused = 0
    took_s: list[float] = []
    for each in range(instances):
        problem = drawn(seed * instances + each)
        best_s = fastest_s(problem)
        began_s = time.perf_counter()
        try:
            found = partition(problem.parts, problem.members, "pipeline", links=problem.links)
        except Unplaceable:
            refused += 1
            optimal += best_s is None
        else:
            terms = found.explain()
            optimal += terms.bottleneck_s == best_s
            over += any(member.memory_free_bytes < 0 for member in terms.members)
        took_s.append(time.perf_counter() - began_s)
    return {
        "partitions": instances,
        "partition_optimal": optimal,
        "partition_refused": refused,
        "over_memory": over,
        "partition_p50_ms": round(sorted(took_s)[len(took_s) // 2] * 1000, 2),
        "partition_max_ms": round(max(took_s) * 1000, 2),
    }
