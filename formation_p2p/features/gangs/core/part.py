"""What is divided among the members of a gang, and what the division depends on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from formation_p2p.core.errors import InvalidInput, Unplaceable
from formation_p2p.core.refusals import Infeasible
from formation_p2p.leases.core.roster import MAX_MEMBERS
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
