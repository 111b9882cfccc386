"""What is divided among the members of a gang, and what the division depends on."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol, assert_never

from formation_p2p.core.errors import InvalidInput, Unplaceable
from formation_p2p.core.refusals import Infeasible
from formation_p2p.features.gangs.core.roster import MAX_MEMBERS
from formation_p2p.machine.core.bounds import MAX_MEMORY_BYTES, check_amount, shown

# Of one partition. Hashed, so many take a quarter of a second for the largest gang.
MAX_PARTS: Final = 4096
MAX_NAME_CHARS: Final = 128
# Past what any machine computes in a year, in any unit; sums of MAX_PARTS stay exact as floats.
MAX_WORK: Final = 1 << 40
# A link that was not measured: what a small office has, and the way to it across a continent. All
# links are alike then, so that it matters how much is cut, and not where.
ASSUMED_BYTES_S: Final = 12_500_000
ASSUMED_RTT_US: Final = 20_000
# Between two members on one machine: a copy in memory, through the node of both.
LOCAL_BYTES_S: Final = 500_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """`work` is how much it has to compute, in any unit that is the same for all parts, as speeds
    are in it. `data` are the sizes in bytes of the content that it reads, by name, such as a CID.
    `sends` says how many bytes it sends to other parts in one step, by their names.

    Raises InvalidInput for a field out of its range.
    """

    name: str
    work: int = 1
    memory_bytes: int = 0
    data: Mapping[str, int] = field(default_factory=dict)
    sends: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= MAX_NAME_CHARS:
            problem = f"{shown(self.name)} is not a name of 1 to {MAX_NAME_CHARS} characters"
            raise InvalidInput("part", problem)
        check_amount("part.work", self.work, 0, MAX_WORK)
        check_amount("part.memory", self.memory_bytes, 0, MAX_MEMORY_BYTES)
        for size_bytes in (*self.data.values(), *self.sends.values()):
            check_amount("part.bytes", size_bytes, 0, MAX_MEMORY_BYTES)


@dataclass(frozen=True, slots=True)
class MemberCapacity:
    """What a member has for parts. `speed` is in units of work a second, `has` names content that
    is on its machine. Raises InvalidInput."""

    rank: int
    speed: int = 1000
    memory_bytes: int = MAX_MEMORY_BYTES
    has: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_amount("rank", self.rank, 0, MAX_MEMBERS - 1)
        check_amount("member.speed", self.speed, 1, MAX_WORK)
        check_amount("member.memory", self.memory_bytes, 0, MAX_MEMORY_BYTES)


@dataclass(frozen=True, slots=True)
class Links:
    """Measured rates and round trips between ranks, from one to the other. Of what both ends
    report, the slower counts; what none reports is assumed."""

    bytes_s: Mapping[tuple[int, int], int] = field(default_factory=dict)
    rtt_us: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def between(self, one: int, other: int) -> tuple[int, int]:
        """The rate, in bytes a second, and the round trip, in microseconds; 0 and 0 for itself."""
        if one == other:
            return 0, 0
        rates, trips = self.known(one, other)
        return max(min(rates, default=ASSUMED_BYTES_S), 1), max(trips, default=ASSUMED_RTT_US)

    def known(self, one: int, other: int) -> tuple[list[int], list[int]]:
        """Of each end, where it has measured: rates, and round trips."""
        ends = ((one, other), (other, one))
        rates = [self.bytes_s[each] for each in ends if each in self.bytes_s]
        return rates, [self.rtt_us[each] for each in ends if each in self.rtt_us]

    def seconds(self, one: int, other: int, size_bytes: int) -> float:
        """That it takes to hand so much over once; 0 where nothing travels."""
        return seconds_over(self.between(one, other), size_bytes)


def seconds_over(link: tuple[int, int], size_bytes: int) -> float:
    """Of a rate, in bytes a second, and a round trip, in microseconds."""
    bytes_s, rtt_us = link
    return size_bytes / bytes_s + rtt_us / 1e6 if size_bytes and bytes_s else 0.0


@dataclass(frozen=True, slots=True)
class Problem:
    """Parts in their order, which is that of a pipeline, and members by rank. `kept` says where
    parts are already: to leave them there costs nothing. Raises InvalidInput."""

    parts: tuple[Part, ...]
    members: tuple[MemberCapacity, ...]
    links: Links = Links()
    kept: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = {part.name for part in self.parts}
        if not 0 < len(self.parts) <= MAX_PARTS:
            raise InvalidInput("parts", f"there are {len(self.parts)}; give 1 to {MAX_PARTS}")
        if len(names) < len(self.parts):
            raise InvalidInput("parts", "two have the same name; name each differently")
        if not 0 < len(self.members) <= MAX_MEMBERS:
            raise InvalidInput("members", f"there are {len(self.members)}; give 1 to {MAX_MEMBERS}")
        if len({each.rank for each in self.members}) < len(self.members):
            raise InvalidInput("members", "two have the same rank; give each of them once")
        for part in self.parts:
            for name in part.sends:
                if name not in names or name == part.name:
                    problem = f"{part.name} sends to {shown(name)}, which is not another part"
                    raise InvalidInput("part.sends", problem)

    def exchanged(self) -> dict[str, dict[str, int]]:
        """Bytes in one step between each part and others, both ways together."""
        found: dict[str, dict[str, int]] = {part.name: {} for part in self.parts}
        for part in self.parts:
            for name, size_bytes in part.sends.items():
                for one, other in ((part.name, name), (name, part.name)):
                    found[one][other] = found[one].get(other, 0) + size_bytes
        return found


class Strategy(Protocol):
    """Decides which rank has which part. The result names each part once, and keeps within the
    memory of each member; where that cannot be, it raises Unplaceable. Deterministic, and pure."""

    def assign(self, problem: Problem) -> Mapping[str, int]: ...


# Made of what is written in brackets after a strategy's name, each stripped.
StrategyFactory = Callable[..., Strategy]
Strategies = Mapping[str, StrategyFactory]


def free_memory(problem: Problem, assigned: Mapping[str, int]) -> dict[int, int]:
    """What is left on each rank, below zero where too much is there."""
    free = {member.rank: member.memory_bytes for member in problem.members}
    for part in problem.parts:
        free[assigned[part.name]] -= part.memory_bytes
    return free


def in_order(members: Sequence[MemberCapacity]) -> tuple[MemberCapacity, ...]:
    """By rank."""
    return tuple(sorted(members, key=lambda each: each.rank))


class Loads:
    """`place` and `remove` cost as much as the part has others that it exchanges bytes with."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.assigned: dict[str, int] = {}
        self.members = {member.rank: member for member in problem.members}
        self._exchanged = problem.exchanged()
        self._work = dict.fromkeys(self.members, 0)
        self._memory_bytes = dict.fromkeys(self.members, 0)
        self._bytes: dict[int, defaultdict[int, int]] = {
            rank: defaultdict(int) for rank in self.members
        }

    def has_room(self, part: Part, rank: int) -> bool:
        held = self._memory_bytes[rank] + part.memory_bytes
        return held <= self.members[rank].memory_bytes

    def place(self, part: Part, rank: int) -> None:
        self._count(part, rank, +1)
        self.assigned[part.name] = rank

    def remove(self, part: Part) -> int:
        """Returns where it was."""
        rank = self.assigned.pop(part.name)
        self._count(part, rank, -1)
        return rank

    def _count(self, part: Part, rank: int, sign: int) -> None:
        self._work[rank] += sign * part.work
        self._memory_bytes[rank] += sign * part.memory_bytes
        for name, size_bytes in self._exchanged[part.name].items():
            other = self.assigned.get(name)
            if other is not None and other != rank:
                self._bytes[rank][other] += sign * size_bytes
                self._bytes[other][rank] += sign * size_bytes

    def compute_s(self, rank: int) -> float:
        return self._work[rank] / self.members[rank].speed

    def work(self, rank: int) -> int:
        return self._work[rank]

    def memory_bytes(self, rank: int) -> int:
        return self._memory_bytes[rank]

    def memory_part(self, rank: int) -> float:
        """From 0 to 1."""
        return self._memory_bytes[rank] / max(self.members[rank].memory_bytes, 1)

    def sent_bytes(self, rank: int) -> Mapping[int, int]:
        """In one step, to and from each other rank."""
        return {other: size for other, size in sorted(self._bytes[rank].items()) if size}

    def traffic_s(self, rank: int) -> float:
        sent, seconds = self._bytes[rank], self.problem.links.seconds
        return sum(seconds(rank, other, size_bytes) for other, size_bytes in sent.items())

    def step_s(self, rank: int) -> float:
        """What one step takes here: to compute, and to hand over what others need."""
        return self.compute_s(rank) + self.traffic_s(rank)

    def missing_bytes(self, part: Part, rank: int) -> int:
        """Of the content that the part reads, what is not on the machine."""
        has = self.members[rank].has
        return sum(size_bytes for name, size_bytes in part.data.items() if name not in has)

    def no_room(self, part: Part) -> Unplaceable:
        reasons = {
            f"rank {rank}": str(
                Infeasible(
                    "memory", part.memory_bytes, member.memory_bytes - self._memory_bytes[rank]
                )
            )
            for rank, member in sorted(self.members.items())
        }
        problem = f"part {part.name} does not fit into the memory that is left on any member"
        return Unplaceable(f"{problem}; make parts smaller, or the gang larger", reasons)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.members))


# Which member has which part, where parts need no order: in proportion, by hash, to the data.

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
