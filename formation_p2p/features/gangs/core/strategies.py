"""Which member has which part, where parts need no order: in proportion, by hash, to the data."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

from formation_p2p.core.errors import InvalidInput
from formation_p2p.features.gangs.core.part import Loads, Part, Problem

# Parts that are moved one by one until nothing improves: a pass costs the square of their number.
MAX_REFINED: Final = 256
MAX_PASSES: Final = 8
# What a member may have to compute over its share, so that less is cut: graph partitioners allow
# 3 to 100 % (Karypis and Kumar, "A fast and high quality multilevel scheme", 1998).
IMBALANCE: Final = 1.5
# A move that gains less is not worth what it moves.
LEAST_GAIN: Final = 0.05

Cost = tuple[float, float]


class Bound(Enum):
    """What holds the parts up, as one of them says."""

    COMPUTE = "compute"
    MEMORY = "memory"
    TRAFFIC = "traffic"


@dataclass(frozen=True, slots=True)
class Proportional:
    """As much to each member as it has of what the parts are bound by.

    `compute`: the slowest member's step is as short as can be found; what is exchanged counts as
    time. `memory`: the fullest has as much left as can be. `traffic`: as little as possible is
    handed over, while none computes more than IMBALANCE times its share. The longest first, each to
    where it ends first (Graham, "Bounds on multiprocessing timing anomalies", 1969), then single
    moves while they help. A partition that is there already keeps all that need not move.
    """

    by: Bound = Bound.COMPUTE

    def assign(self, problem: Problem) -> Mapping[str, int]:
        loads = Loads(problem)
        left = _keep(loads)
        by_work = sorted(left, key=lambda part: (-part.work, -part.memory_bytes, part.name))
        if not all(self._placed(loads, part) for part in by_work):
            # The largest first fit where the longest first did not, and what was kept may move.
            loads = Loads(problem)
            for part in sorted(problem.parts, key=lambda x: (-x.memory_bytes, -x.work, x.name)):
                if not self._placed(loads, part):
                    raise loads.no_room(part)
        if len(problem.parts) <= MAX_REFINED:
            _refine(loads, self)
        return loads.assigned

    def _placed(self, loads: Loads, part: Part) -> bool:
        best = None
        for rank in loads:
            if loads.has_room(part, rank):
                loads.place(part, rank)
                cost = self.rank_cost(loads, rank), rank
                loads.remove(part)
                best = cost if best is None else min(best, cost)
        if best is not None:
            loads.place(part, best[1])
        return best is not None

    def rank_cost(self, loads: Loads, rank: int) -> Cost:
        match self.by:
            case Bound.COMPUTE:
                return loads.step_s(rank), 0.0
            case Bound.MEMORY:
                return loads.memory_part(rank), loads.step_s(rank)
            case Bound.TRAFFIC:
                return self._excess(loads, rank) + loads.traffic_s(rank), loads.step_s(rank)
            case _:
                assert_never(self.by)

    def cost(self, loads: Loads) -> Cost:
        """Of all: what is to be small first, and then. Squares tell an even share from another."""
        steps = [loads.step_s(rank) for rank in loads]
        match self.by:
            case Bound.COMPUTE:
                return max(steps), sum(step * step for step in steps)
            case Bound.MEMORY:
                parts = [loads.memory_part(rank) for rank in loads]
                return max(parts), sum(part * part for part in parts)
            case Bound.TRAFFIC:
                cut_s = sum(map(loads.traffic_s, loads))
                return cut_s + sum(self._excess(loads, rank) for rank in loads), max(steps)
            case _:
                assert_never(self.by)

    @staticmethod
    def _excess(loads: Loads, rank: int) -> float:
        """By how many seconds, a thousandfold, it computes more than it may; a single part is
        always allowed."""
        speeds = sum(member.speed for member in loads.members.values())
        works = [part.work for part in loads.problem.parts]
        speed = loads.members[rank].speed
        most = max(IMBALANCE * sum(works) * speed / speeds, max(works))
        return 1000 * max(loads.work(rank) - most, 0) / speed

    def __str__(self) -> str:
        return "proportional" if self.by is Bound.COMPUTE else f"proportional({self.by.value})"


def proportional(by: str = "compute") -> Proportional:
    """Raises InvalidInput."""
    try:
        return Proportional(Bound(by))
    except ValueError:
        known = ", ".join(each.value for each in Bound)
        raise InvalidInput("strategy", f"{by!r} is not one of {known}") from None


@dataclass(frozen=True, slots=True)
class Hashed:
    """By weighted rendezvous hashing of the part's name and the rank: when a member leaves, its
    parts alone move; when one joins, only to it. Members have as much as they are fast. Where the
    first has no room, the next of the part's own order.

    Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998; the
    weights as in Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005.
    """

    def assign(self, problem: Problem) -> Mapping[str, int]:
        loads = Loads(problem)
        # Those that need much first: small ones fit into what is left, and keep their order.
        for part in sorted(problem.parts, key=lambda part: (-part.memory_bytes, part.name)):
            ranked = sorted(loads, key=lambda rank: self._height(part, rank, loads))
            rank = next((each for each in ranked if loads.has_room(part, each)), None)
            if rank is None:
                raise loads.no_room(part)
            loads.place(part, rank)
        return loads.assigned

    @staticmethod
    def _height(part: Part, rank: int, loads: Loads) -> float:
        digest = hashlib.sha256(f"{rank}/{part.name}".encode()).digest()
        drawn = (int.from_bytes(digest[:8]) + 1) / (1 << 64)
        return -math.log(drawn) / loads.members[rank].speed

    def __str__(self) -> str:
        return "hashed"


@dataclass(frozen=True, slots=True)
class Local:
    """To the member that has most of the bytes that the part reads; among equals to where it ends
    first. The parts that read most are placed first."""

    def assign(self, problem: Problem) -> Mapping[str, int]:
        loads = Loads(problem)
        left = _keep(loads)
        for part in sorted(left, key=lambda x: (-sum(x.data.values()), -x.work, x.name)):
            roomy = [rank for rank in loads if loads.has_room(part, rank)]
            if not roomy:
                raise loads.no_room(part)
            loads.place(part, min(roomy, key=lambda rank: _way(loads, part, rank)))
        return loads.assigned

    def __str__(self) -> str:
        return "local"


def _way(loads: Loads, part: Part, rank: int) -> tuple[int, float, int]:
    ends_s = (loads.work(rank) + part.work) / loads.members[rank].speed
    return loads.missing_bytes(part, rank), ends_s, rank


def _keep(loads: Loads) -> list[Part]:
    """Leave parts where they are, as long as there is room. Returns the others."""
    left = []
    for part in loads.problem.parts:
        rank = loads.problem.kept.get(part.name)
        if rank in loads.members and loads.has_room(part, rank):
            loads.place(part, rank)
        else:
            left.append(part)
    return left


def _refine(loads: Loads, strategy: Proportional) -> None:
    """Moves one part at a time. One that was kept moves only from where most is, and for a gain of
    LEAST_GAIN: so a member that joins gets some, and balance costs no more than it brings."""
    parts = loads.problem.parts
    moved = (sum(_improved(loads, strategy, x) for x in parts) for _ in range(MAX_PASSES))
    all(moved)  # ends with the first pass that moves none


def _improved(loads: Loads, strategy: Proportional, part: Part) -> bool:
    was = loads.assigned[part.name]
    before, height = strategy.cost(loads), strategy.rank_cost(loads, was)[0]
    stays = loads.problem.kept.get(part.name) == was
    highest = max(strategy.rank_cost(loads, rank)[0] for rank in loads)
    if stays and height < highest * (1 - LEAST_GAIN):
        return False
    loads.remove(part)
    best, best_cost = was, before
    for rank in loads:
        if rank != was and loads.has_room(part, rank):
            loads.place(part, rank)
            cost = strategy.cost(loads)
            enough = strategy.rank_cost(loads, rank)[0] < height * (1 - LEAST_GAIN)
            loads.remove(part)
            if cost < best_cost and (enough or not stays):
                best, best_cost = rank, cost
    loads.place(part, best)
    return best != was
