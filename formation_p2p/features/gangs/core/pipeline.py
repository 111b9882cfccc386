"""Stages of a pipeline: consecutive parts to each member, so that the slowest stage or link is as
fast as can be.

One step of a pipeline takes as long as its slowest stage or hand-over, since all go on at once
(Narayanan et al., "PipeDream", 2019). Which member has which stage matters as much as where it is
cut: the search is over all subsets of the members (Held and Karp, 1962), each in all orders. Up to
EXACT_MEMBERS the result is optimal under the bounds of memory; of more, the members are taken in
few orders, and the best of those counts.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from formation_p2p.core.errors import InvalidInput, Unplaceable
from formation_p2p.features.gangs.core.part import MemberCapacity, Problem, seconds_over

# 256 subsets; with 80 parts that is about a second, with 20 some milliseconds.
EXACT_MEMBERS: Final = 8
MAX_STAGED: Final = 256
# How much slower a pipeline may be that is there already, so that less of it moves.
SLACK: Final = 0.1

# How far a chain has come: the members taken, as bits or as a count in a fixed order.
_Taken = int
_Chosen = tuple[tuple[int, int], "_Step | None"]


@dataclass(frozen=True, slots=True)
class _Step:
    """The member at `place` has the parts from `first` on; `before` is how it came to that."""

    place: int
    first: int
    before: _Step | None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Raises Unplaceable where the parts do not fit, InvalidInput for more than MAX_STAGED."""

    def assign(self, problem: Problem) -> Mapping[str, int]:
        if len(problem.parts) > MAX_STAGED:
            few = f"there are {len(problem.parts)}; join neighbours to at most {MAX_STAGED}"
            raise InvalidInput("parts", few)
        members = problem.members
        if len(members) <= EXACT_MEMBERS:
            chains = [_Chain(problem, members, exact=True)]
        else:
            orders = [
                sorted(members, key=lambda each: (-each.speed, each.rank)),
                sorted(members, key=lambda each: (-each.memory_bytes, each.rank)),
                _by_links(problem),
                _as_kept(problem),
            ]
            chains = [_Chain(problem, order, exact=False) for order in orders]
        found = [(pace, chain) for chain in chains if (pace := chain.fastest_s()) is not None]
        if not found:
            raise _too_large(problem)
        pace_s = min(pace for pace, _ in found) * (1 + SLACK if problem.kept else 1)
        _, ranks = min(chain.ranks(pace_s) for pace, chain in found if pace <= pace_s)
        return {part.name: rank for part, rank in zip(problem.parts, ranks, strict=True)}

    def __str__(self) -> str:
        return "pipeline"


class _Chain:
    """Parts in their order over members: any subset in any order where `exact`, else each that is
    taken after the ones before it."""

    def __init__(self, problem: Problem, order: Sequence[MemberCapacity], *, exact: bool) -> None:
        self._problem = problem
        self._order = order
        self._exact = exact
        self._count = len(problem.parts)
        self._work, self._memory = [0], [0]
        for part in problem.parts:
            self._work.append(self._work[-1] + part.work)
            self._memory.append(self._memory[-1] + part.memory_bytes)
        self._cuts = cut_bytes(problem)
        # Most links are alike, where few were measured: each kind is computed once.
        kinds: dict[tuple[int, int], _HandOver] = {}
        self._links: list[list[_HandOver]] = []
        for one in order:
            row = [problem.links.between(one.rank, other.rank) for other in order]
            for link in {*row}.difference(kinds):
                kinds[link] = _HandOver(link, self._cuts)
            self._links.append([kinds[link] for link in row])
        self._kinds = tuple(kinds.values())

    def fastest_s(self) -> float | None:
        """Of the slowest stage or link; None where the parts do not fit."""
        paces = sorted(self._paces())
        if not self._reaches(paces[-1]):
            return None
        return paces[bisect.bisect_left(paces, True, key=self._reaches)]

    def _paces(self) -> set[float]:
        """All that the slowest stage or link could take."""
        work = self._work
        amounts = {b - a for n, b in enumerate(work) for a in work[:n]}
        found = {amount / each.speed for each in self._order for amount in amounts}
        for kind in self._kinds:
            found.update(kind.seconds)
        return found

    def _ends(self, pace_s: float) -> list[list[int]]:
        """For each member and first part: behind which part its stage must end."""
        found = []
        for member in self._order:
            ends, end = [], 0
            for first in range(self._count):
                end = max(end, first)
                while (
                    end < self._count
                    and (self._work[end + 1] - self._work[first]) / member.speed <= pace_s
                    and self._memory[end + 1] - self._memory[first] <= member.memory_bytes
                ):
                    end += 1
                ends.append(end)
            found.append(ends)
        return found

    def _next(self, taken: _Taken) -> Iterator[tuple[int, _Taken]]:
        for place in range(len(self._order)):
            if self._exact and not taken >> place & 1:
                yield place, taken | 1 << place
            elif not self._exact and place >= taken:
                yield place, place + 1

    def _all_taken(self) -> range:
        """In an order in which none comes before those that lead to it."""
        members = len(self._order)
        return range(1 << members if self._exact else members + 1)

    def _reaches(self, pace_s: float) -> bool:
        """Whether all parts find a place at this pace. A set of cuts is the bits of one number."""
        ends, last_bit = self._ends(pace_s), self._count
        # By what is taken, and by which member was last: where its stage may begin.
        firsts_of: dict[_Taken, dict[int, int]] = {}
        self._lead_on(firsts_of, 0, -1, 1, pace_s)
        for taken in self._all_taken():
            for place, firsts in firsts_of.pop(taken, {}).items():
                cuts = 0
                while firsts:
                    first = (firsts & -firsts).bit_length() - 1
                    firsts &= firsts - 1
                    cuts |= (2 << ends[place][first]) - (2 << first)
                if cuts >> last_bit & 1:
                    return True
                self._lead_on(firsts_of, taken, place, cuts, pace_s)
        return False

    def _lead_on(
        self,
        firsts_of: dict[_Taken, dict[int, int]],
        taken: _Taken,
        last: int,
        cuts: int,
        pace_s: float,
    ) -> None:
        for place, then in self._next(taken) if cuts else ():
            firsts = cuts if last < 0 else cuts & self._links[last][place].open(pace_s)
            if firsts:
                into = firsts_of.setdefault(then, {})
                into[place] = into.get(place, 0) | firsts

    def ranks(self, pace_s: float) -> tuple[tuple[int, int], list[int]]:
        """Of the parts, at this pace: as few bytes and parts as can be away from where they are,
        on as few members as can be. And what of both."""
        ends = self._ends(pace_s)
        away = [self._away(member.rank) for member in self._order]
        begun: dict[_Taken, dict[int, dict[int, _Chosen]]] = {}
        self._go_on(begun, 0, -1, {0: ((0, 0), None)}, pace_s)
        best: _Chosen | None = None
        for taken in self._all_taken():
            for place, firsts in begun.pop(taken, {}).items():
                found: dict[int, _Chosen] = {}
                for first, (cost, steps) in firsts.items():
                    step = _Step(place, first, steps)
                    for end in range(first + 1, ends[place][first] + 1):
                        moved = cost[0] + away[place][end] - away[place][first]
                        _keep_best(found, end, ((moved, cost[1] + 1), step))
                whole = found.pop(self._count, None)
                if whole is not None and (best is None or whole[0] < best[0]):
                    best = whole
                self._go_on(begun, taken, place, found, pace_s)
        assert best is not None, "the pace is one that can be had"
        return best[0], self._followed(best[1])

    def _go_on(
        self,
        begun: dict[_Taken, dict[int, dict[int, _Chosen]]],
        taken: _Taken,
        last: int,
        found: dict[int, _Chosen],
        pace_s: float,
    ) -> None:
        for place, then in self._next(taken) if found else ():
            open_ = 1 if last < 0 else self._links[last][place].open(pace_s)
            into = begun.setdefault(then, {}).setdefault(place, {})
            for first, chosen in found.items():
                if open_ >> first & 1:
                    _keep_best(into, first, chosen)

    def _away(self, rank: int) -> list[int]:
        """Sums over the parts that are elsewhere, were they here: bytes, and one for each."""
        kept, sums = self._problem.kept, [0]
        for part in self._problem.parts:
            is_away = part.name in kept and kept[part.name] != rank
            sums.append(sums[-1] + (part.memory_bytes + 1 if is_away else 0))
        return sums

    def _followed(self, step: _Step | None) -> list[int]:
        ranks: list[int] = []
        end = self._count
        while step is not None:
            ranks[:0] = [self._order[step.place].rank] * (end - step.first)
            end, step = step.first, step.before
        return ranks


class _HandOver:
    """What it takes to hand over at each cut, on links of one kind."""

    def __init__(self, link: tuple[int, int], cuts: Sequence[int]) -> None:
        self.seconds = [seconds_over(link, size_bytes) for size_bytes in cuts]
        by_time = sorted(range(len(cuts)), key=self.seconds.__getitem__)
        self._times = [self.seconds[cut] for cut in by_time]
        self._bits = list(accumulate((1 << cut for cut in by_time), initial=0))

    def open(self, pace_s: float) -> int:
        """Bits of the cuts at which it takes no longer."""
        return self._bits[bisect.bisect_right(self._times, pace_s)]


def _keep_best(found: dict[int, _Chosen], at: int, chosen: _Chosen) -> None:
    if at not in found or chosen[0] < found[at][0]:
        found[at] = chosen


def cut_bytes(problem: Problem) -> list[int]:
    """What is handed over in one step where the pipeline is cut before each part, and at its end:
    from all parts before to all behind, and back."""
    places = {part.name: place for place, part in enumerate(problem.parts)}
    changes = [0] * (len(problem.parts) + 2)
    for part in problem.parts:
        for name, size_bytes in part.sends.items():
            first, last = sorted((places[part.name], places[name]))
            changes[first + 1] += size_bytes
            changes[last + 1] -= size_bytes
    return list(accumulate(changes[:-1]))


def _by_links(problem: Problem) -> list[MemberCapacity]:
    """Each next one is that which the last hands over to fastest; the fastest member is first."""
    largest = max(cut_bytes(problem))
    left = sorted(problem.members, key=lambda each: (-each.speed, each.rank))
    order = [left.pop(0)]
    while left:
        rank = order[-1].rank
        left.sort(key=lambda each: problem.links.seconds(rank, each.rank, largest))
        order.append(left.pop(0))
    return order


def _as_kept(problem: Problem) -> list[MemberCapacity]:
    """As the parts are now; members without any where parts of no member are, else at the end."""
    members = {each.rank: each for each in problem.members}
    was = [problem.kept.get(part.name, -1) for part in problem.parts]
    idle = [each for rank, each in sorted(members.items()) if rank not in was]
    order: list[MemberCapacity] = []
    for rank in dict.fromkeys(was):
        order += [members[rank]] if rank in members else idle
        idle = idle if rank in members else []
    return [*order, *idle]


def _too_large(problem: Problem) -> Unplaceable:
    needed = sum(part.memory_bytes for part in problem.parts)
    reasons = {
        f"rank {each.rank}": f"has {each.memory_bytes} bytes of memory" for each in problem.members
    }
    problem_text = f"the stages need {needed} bytes, and no order of the members holds them all"
    return Unplaceable(f"{problem_text}; make parts smaller, or the gang larger", reasons)
