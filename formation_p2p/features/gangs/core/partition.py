"""Parts over the members of a gang: which rank has which, why, and what moves when members change.

>>> parts = [Part(f"layer{n}", work=100) for n in range(6)]
>>> members = [MemberCapacity(0, speed=200), MemberCapacity(1, speed=100)]
>>> partition(parts, members, strategy="pipeline").of(0)
('layer0', 'layer1', 'layer2', 'layer3')
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from formation_p2p.core.errors import InvalidInput, Unplaceable
from formation_p2p.core.units import format_bytes
from formation_p2p.features.gangs.core.part import (
    Hashed,
    Links,
    Loads,
    Local,
    MemberCapacity,
    Part,
    Problem,
    Strategies,
    Strategy,
    free_memory,
    in_order,
    proportional,
)
from formation_p2p.features.gangs.core.pipeline import Pipeline, cut_bytes
from formation_p2p.machine.core.bounds import shown

BUILT_IN: Final[Strategies] = {
    "proportional": proportional,
    "pipeline": Pipeline,
    "hashed": Hashed,
    "local": Local,
}
"""By name. What is written in brackets after the name are the arguments."""

_NAMED: Final = re.compile(r"\s*([a-z][a-z0-9_-]{0,31})\s*(?:\(([^()]{0,200})\))?\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class MemberTerms:
    """What a partition means for one rank: the terms of its step, in one step."""

    rank: int
    parts: int
    work: int
    compute_s: float
    memory_bytes: int
    memory_free_bytes: int
    missing_bytes: int
    traffic_s: float

    def __str__(self) -> str:
        memory = f"{format_bytes(self.memory_bytes)} ({format_bytes(self.memory_free_bytes)} left)"
        fetched = f", {format_bytes(self.missing_bytes)} to fetch" if self.missing_bytes else ""
        return (
            f"rank {self.rank}: {self.parts} parts, work {self.work} in {self.compute_s:.3g} s, "
            f"{memory}, traffic {self.traffic_s:.3g} s{fetched}"
        )


@dataclass(frozen=True, slots=True)
class LinkTerms:
    """What two ranks exchange in one step, and how long it takes: by the rate and the round trip
    of their link, which are assumed where they have not been measured."""

    ranks: tuple[int, int]
    size_bytes: int
    seconds: float
    bytes_s: int
    rtt_us: int
    rate_is_measured: bool
    rtt_is_measured: bool

    def __str__(self) -> str:
        one, other = self.ranks
        rate = f"{self.bytes_s / 1e6:.3g} MB/s {_source(self.rate_is_measured)}"
        rtt = f"{self.rtt_us / 1000:.3g} ms {_source(self.rtt_is_measured)}"
        took = f"{format_bytes(self.size_bytes)} in {self.seconds:.3g} s"
        return f"rank {one} with rank {other}: {took} ({rate}, {rtt})"


def _source(is_measured: bool) -> str:
    return "measured" if is_measured else "assumed"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every term of a partition. `bottleneck_s` is the slowest stage or link of a pipeline, else
    the slowest member with its traffic."""

    strategy: str
    members: tuple[MemberTerms, ...]
    links: tuple[LinkTerms, ...]
    bottleneck_s: float

    @property
    def cut_bytes(self) -> int:
        """Bytes that cross between members in one step."""
        return sum(link.size_bytes for link in self.links)

    def __str__(self) -> str:
        cut = f"{format_bytes(self.cut_bytes)} cut"
        head = f"{self.strategy}: a step takes {self.bottleneck_s:.3g} s, {cut}"
        return "\n".join([head, *map(str, self.members), *map(str, self.links)])


@dataclass(frozen=True, slots=True)
class Partition:
    """`assigned` has the rank of each part, by name."""

    problem: Problem
    strategy: Strategy
    assigned: Mapping[str, int]

    def of(self, rank: int) -> tuple[str, ...]:
        """The parts of this rank, in their order."""
        return tuple(x.name for x in self.problem.parts if self.assigned[x.name] == rank)

    def content(self) -> Mapping[int, frozenset[str]]:
        """What was on the machine of each rank."""
        return {member.rank: member.has for member in self.problem.members}

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that have a part, in the order of the parts."""
        return tuple(dict.fromkeys(self.assigned[part.name] for part in self.problem.parts))

    def explain(self) -> Explanation:
        loads = Loads(self.problem)
        for part in self.problem.parts:
            loads.place(part, self.assigned[part.name])
        parts = {rank: self._parts_of(rank) for rank in loads}
        links = tuple(self._links(loads))
        terms = tuple(
            MemberTerms(
                rank,
                len(parts[rank]),
                loads.work(rank),
                loads.compute_s(rank),
                loads.memory_bytes(rank),
                loads.members[rank].memory_bytes - loads.memory_bytes(rank),
                sum(loads.missing_bytes(part, rank) for part in parts[rank]),
                loads.traffic_s(rank),
            )
            for rank in loads
        )
        steps = [each.compute_s + each.traffic_s for each in terms]
        if isinstance(self.strategy, Pipeline):
            steps = [*(each.compute_s for each in terms), *(link.seconds for link in links)]
        return Explanation(str(self.strategy), terms, links, max(steps))

    def _links(self, loads: Loads) -> Iterator[LinkTerms]:
        """What is for a later stage of a pipeline goes through all between."""
        crossing: dict[tuple[int, int], int] = {}
        if isinstance(self.strategy, Pipeline):
            ranks = [self.assigned[part.name] for part in self.problem.parts]
            cuts = cut_bytes(self.problem)
            for place, pair in enumerate(pairwise(ranks), 1):
                if pair[0] != pair[1]:
                    crossing[pair] = cuts[place]
        else:
            for rank in loads:
                for other, size_bytes in loads.sent_bytes(rank).items():
                    if rank < other:
                        crossing[rank, other] = size_bytes
        for (one, other), size_bytes in crossing.items():
            links = self.problem.links
            took_s, link = links.seconds(one, other, size_bytes), links.between(one, other)
            known = map(bool, links.known(one, other))
            yield LinkTerms((one, other), size_bytes, took_s, *link, *known)

    def _parts_of(self, rank: int) -> list[Part]:
        return [part for part in self.problem.parts if self.assigned[part.name] == rank]


@dataclass(frozen=True, slots=True)
class Move:
    """A part goes elsewhere. `source` is None where its member is gone."""

    part: str
    source: int | None
    target: int
    size_bytes: int

    def __str__(self) -> str:
        source = "a lost rank" if self.source is None else f"rank {self.source}"
        return f"{self.part}: from {source} to rank {self.target}, {format_bytes(self.size_bytes)}"


@dataclass(frozen=True, slots=True)
class Repartition:
    partition: Partition
    moves: tuple[Move, ...]

    def __str__(self) -> str:
        head = f"{len(self.moves)} of {len(self.partition.assigned)} parts move"
        return "\n".join([head, *map(str, self.moves)])


def parse_strategy(text: str | Strategy, strategies: Strategies = BUILT_IN) -> Strategy:
    """Raises InvalidInput, which says what may be written."""
    if not isinstance(text, str):
        return text
    match = _NAMED.fullmatch(text)
    if match is None or match[1] not in strategies:
        known = ", ".join(strategies)
        raise InvalidInput("strategy", f"{shown(text)} is not one of {known}")
    arguments = [each.strip() for each in match[2].split(",")] if match[2] else []
    try:
        return strategies[match[1]](*arguments)
    except TypeError as error:
        raise InvalidInput("strategy", f"{match[1]} does not take {arguments}: {error}") from error


def partition(
    parts: Iterable[Part],
    members: Sequence[MemberCapacity],
    strategy: str | Strategy = "proportional",
    *,
    links: Links | None = None,
    strategies: Strategies = BUILT_IN,
) -> Partition:
    """Raises InvalidInput; Unplaceable where the parts do not fit into the members' memory."""
    problem = Problem(tuple(parts), in_order(members), links or Links())
    return _assigned(problem, parse_strategy(strategy, strategies))


def repartition(
    old: Partition, members: Sequence[MemberCapacity], links: Links | None = None
) -> Repartition:
    """After members have come or gone: as little moves as the strategy can do with. What moves, and
    from where. Raises as `partition` does."""
    problem = replace(
        old.problem,
        members=in_order(members),
        links=old.problem.links if links is None else links,
        kept=old.assigned,
    )
    new = _assigned(problem, old.strategy)
    living = {member.rank for member in members}
    moves = tuple(
        Move(part.name, was if was in living else None, target, part.memory_bytes)
        for part in problem.parts
        if (was := old.assigned[part.name]) != (target := new.assigned[part.name])
    )
    return Repartition(new, moves)


def _assigned(problem: Problem, strategy: Strategy) -> Partition:
    """What a strategy says, which may be anybody's, once it is checked."""
    assigned = dict(strategy.assign(problem))
    ranks = {member.rank for member in problem.members}
    names = {part.name for part in problem.parts}
    if assigned.keys() != names or not ranks.issuperset(assigned.values()):
        wrong = "does not give each part to one of the members"
        raise InvalidInput("strategy", f"{strategy} {wrong}; mend it")
    for rank, left in sorted(free_memory(problem, assigned).items()):
        if left < 0:
            over = f"{strategy} gives rank {rank} {-left} bytes more than it has"
            raise Unplaceable(f"{over}; mend the strategy, or make parts smaller")
    return Partition(problem, strategy, assigned)
