"""What each member has to compute, hold and hand over, as parts come and go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from formation_p2p.core.errors import Unplaceable
from formation_p2p.core.gang.part import Part, Problem
from formation_p2p.core.refusals import Infeasible


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
