"""The workers for a task in the order to ask them, and why not the others.

    authorised -> trusted -> in scope -> wanted -> capable -> affordable -> fresh -> has capacity
        -> rank -> select

The policy's gate is one of these stages, and its scores are the rank. Two refusals are not final:
free capacity changes by the moment, and may be announced a minute late, so workers without room are
ranked last, with the reason. After them come those where our grant is not valid now: their clock
decides, and they may be permissive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from formation_p2p.core import refusals
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, shown_peer
from formation_p2p.core.keyspace import Key
from formation_p2p.discovery.core.trace import Trace
from formation_p2p.machine.core.environment import packages_of
from formation_p2p.machine.core.fits import fits
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.candidate import Candidate, TaskView
from formation_p2p.placement.core.guarded import name_of, refusal_of, scores_of
from formation_p2p.placement.core.hinted import unwanted, welcome
from formation_p2p.placement.core.policy import NO_SCORE, PlacementPolicy, Score, Term, added
from formation_p2p.records.core.profile import Profile
from formation_p2p.workload.core.code_bundle import Code

_NO_NEEDS: Final = Requirements()
# Of the higher of two scores. They are sums of a few products: rounding makes less than 1e-15 of
# it, and what means something more than 1e-9.
EQUAL: Final = 1e-9
# Of the workers that have the packages of a task, so many are named.
_MAX_NAMED: Final = 4


@dataclass(frozen=True, slots=True)
class Ranked:
    """A worker that may run the task. `distance` is between its key and the task's; `hints` says
    how far it meets each soft hint, `lacking` why it could not begin now."""

    profile: Profile
    distance: int
    score: Score = NO_SCORE
    hints: tuple[Term, ...] = ()
    lacking: refusals.Denied | refusals.Infeasible | refusals.GivingWay | None = None

    @property
    def contact(self) -> Contact:
        return Contact(self.profile.peer_id, self.profile.addresses)


@dataclass(frozen=True, slots=True)
class Decision:
    """`ranked`: best first. `rejected`: every other candidate, with the first reason. `needs`
    are the task's. `names` are those of the rejected. `code` goes along with its calls,
    where it is known."""

    target: Key
    policy: str
    ranked: tuple[Ranked, ...]
    rejected: tuple[tuple[PeerId, refusals.Refusal], ...]
    needs: Requirements = _NO_NEEDS
    names: tuple[tuple[PeerId, str], ...] = field(
        default=(), compare=False, metadata={"carried": True}
    )
    code: Code | None = None

    def select(self, count: int) -> tuple[Ranked, ...]:
        """The best of those that have room, at most `count`."""
        return tuple(islice((each for each in self.ranked if each.lacking is None), count))

    def is_warm(self, worker: Ranked) -> bool:
        """Whether it has the packages that the task brings, so that it installs none."""
        packages = packages_of(self.needs.environment)
        return not packages or packages in worker.profile.environments

    @property
    def packages(self) -> str:
        """Who has the packages of the task, for people; empty where it brings none."""
        name = packages_of(self.needs.environment)
        if not name or not self.ranked:
            return ""
        warm = [_named(each.profile) for each in self.ranked if self.is_warm(each)]
        cold = len(self.ranked) - len(warm)
        there = f"installed on {', '.join(warm[:_MAX_NAMED])}" if warm else "installed on none"
        more = f" and {len(warm) - _MAX_NAMED} more" if len(warm) > _MAX_NAMED else ""
        build = f"; {cold} of {len(self.ranked)} workers would install them" if cold else ""
        return f"packages {name}: {there}{more}{build}"

    @property
    def why_first(self) -> str:
        """Why the first worker comes before the second, for people; empty without one."""
        if len(self.ranked) < 2:
            return ""
        first, second = self.ranked[:2]
        return f"{_named(first.profile)} is first: {self._before(first, second)}"

    def _before(self, first: Ranked, second: Ranked) -> str:
        if second.lacking is not None and first.lacking is None:
            return "the others have no room, or may refuse"
        met = [x.name for x, y in zip(first.hints, second.hints, strict=True) if x.value > y.value]
        if added(first.hints) > added(second.hints):
            return f"hints come before the policy, and it meets {', '.join(met)} better"
        if math.isclose(first.score.value, second.score.value, rel_tol=EQUAL):
            return "all else is equal, and it is nearest to the key of the task"
        terms = zip(first.score.terms, second.score.terms, strict=False)
        gains = [(x.value * x.weight - y.value * y.weight, x, y) for x, y in terms]
        most, ours, theirs = max(gains, default=(0.0, None, None), key=lambda each: each[0])
        if most <= 0 or ours is None or theirs is None:
            return "the policy gives it the highest score"
        return (
            f"the policy gives it the highest score, most of all for {ours.name}: "
            f"{_shown(ours)}, and {_shown(theirs)} for {_named(second.profile)}"
        )

    def __str__(self) -> str:
        """A table: the ranked workers with all terms of their scores; then the rejected ones."""
        lines = [f"policy {self.policy}"]
        if self.ranked:
            terms = terms_of(self.ranked)
            shown = terms.columns
            rows = [("rank", "worker", *(each.name for each in shown), "distance", "")]
            if any(each.weight for each in shown):
                rows.append(("", "", *(each.weight for each in shown), "", ""))
            for place, each in enumerate(self.ranked):
                cells = (column.cells[place] for column in shown)
                far = f"{each.distance:064x}"[:DISTANCE_DIGITS]
                worker = _named(each.profile)
                rows.append((str(place + 1), worker, *cells, far, _lacking(each)))
            lines += _aligned(rows)
            lines += [each for each in (terms.alike, self.why_first) if each]
        names = dict(self.names)
        lines += _aligned([(shown_peer(i, names.get(i)), str(why)) for i, why in self.rejected])
        if self.packages:
            lines.append(self.packages)
        if self.code is not None:
            lines.append(f"goes along: {self.code}")
        return "\n".join(lines)


def decide(
    task: TaskView,
    candidates: Iterable[Candidate],
    policy: PlacementPolicy,
    *,
    authorised: Callable[[Profile], refusals.Denied | None],
    now_unix_s: float,
) -> Decision:
    """`authorised` says whether a worker may work in this network, and we may have it run this."""
    feasible: list[Candidate] = []
    rejected: list[tuple[PeerId, refusals.Refusal]] = []
    names: dict[PeerId, str] = {}
    for candidate in candidates:
        refusal = authorised(candidate.profile) or _refusal(task, candidate, policy, now_unix_s)
        if refusal is None:
            feasible.append(candidate)
        else:
            rejected.append((candidate.peer_id, refusal))
            names[candidate.peer_id] = candidate.profile.name
    ranked = rank(task, feasible, policy)
    if isinstance(ranked, refusals.Unwanted):
        rejected += [(candidate.peer_id, ranked) for candidate in feasible]
        names |= {candidate.peer_id: candidate.profile.name for candidate in feasible}
        ranked = ()
    policy_name = name_of(policy)
    return Decision(
        task.key, policy_name, ranked, tuple(rejected), task.needs, tuple(names.items())
    )


def rank(
    task: TaskView, candidates: Iterable[Candidate], policy: PlacementPolicy
) -> tuple[Ranked, ...] | refusals.Unwanted:
    """The candidates that passed every gate, best first: where our grant is valid, with room,
    preferred by hints, with the highest score, nearest. Or what is wrong with the policy."""
    # In the same order on every node, so that a policy which draws lots draws the same ones.
    everyone = sorted(candidates, key=lambda each: (each.distance(task), each.peer_id))
    scores = scores_of(policy, task, everyone)
    if isinstance(scores, refusals.Unwanted):
        return scores
    ranked = [
        Ranked(each.profile, each.distance(task), score, welcome(task, each), each.lacks(task))
        for each, score in zip(everyone, scores, strict=True)
    ]
    hints = _even(added(each.hints) for each in ranked)
    scores_even = _even(each.score.value for each in ranked)

    def place(each: Ranked) -> tuple[bool, bool, float, float]:
        forbidden, lacking = isinstance(each.lacking, refusals.Denied), each.lacking is not None
        return forbidden, lacking, -hints[added(each.hints)], -scores_even[each.score.value]

    # Stable: equals stay in the order of their distance.
    ranked.sort(key=place)
    return tuple(ranked)


def _even(values: Iterable[float]) -> dict[float, float]:
    """Of scores that are equal but for rounding, the highest stands for all: else a policy's
    arithmetic would decide in place of the distance."""
    even: dict[float, float] = {}
    highest = math.inf
    for value in sorted(set(values), reverse=True):
        if not math.isclose(value, highest, rel_tol=EQUAL):
            highest = value
        even[value] = highest
    return even


def _refusal(
    task: TaskView, candidate: Candidate, policy: PlacementPolicy, now_unix_s: float
) -> refusals.Refusal | None:
    """Of the stages between the grant and the free capacity, that of the first which refuses."""
    if (by_policy := refusal_of(policy, task, candidate)) is not None:
        return by_policy
    if candidate.scope > task.scope:
        return refusals.OutOfScope(str(candidate.scope), str(task.scope))
    if (by_hint := unwanted(task, candidate)) is not None:
        return by_hint
    profile, most = candidate.profile, task.max_price_micro
    lacking = fits(task.needs, profile.capability, dict(profile.labels), profile.drivers)
    if lacking is None and most is not None and profile.price_micro > most:
        return refusals.TooDear(profile.price_micro, most)
    if lacking is None and profile.expires_unix_s <= now_unix_s:
        return refusals.Gone("its profile", "it expired and was not published again")
    return lacking


# -- as a table of plain text ----------------------------------------------------------------------

# Of an XOR distance of 64 hexadecimal digits: what differs between a few thousand workers.
DISTANCE_DIGITS: Final = 12
# What rounds to nothing in three decimals, and is not nothing, is written as 5e-05.
_LEAST_IN_DECIMALS: Final = 0.0005


@dataclass(frozen=True, slots=True)
class Column:
    """`weight` is that of all cells; empty where it is 1, or differs and is said in each."""

    name: str
    weight: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TermTable:
    """What decided, in this order: hints, the score, and the terms of the score.

    `alike` is a line of text with the terms that are the same for all workers: no column has them.
    """

    hints: tuple[Column, ...]
    score: tuple[Column, ...]
    alike: str

    @property
    def columns(self) -> tuple[Column, ...]:
        return *self.hints, *self.score


def _named(profile: Profile) -> str:
    return shown_peer(profile.peer_id, profile.name)


def _lacking(ranked: Ranked) -> str:
    why = ranked.lacking
    if isinstance(why, refusals.Infeasible):
        return f"no room: {why}"
    return "" if why is None else str(why)


def terms_of(ranked: Sequence[Ranked]) -> TermTable:
    """As columns, whose cells are in the order of the workers."""
    hints, hints_alike = _columns([_by_name(each.hints, "hint ") for each in ranked])
    terms, terms_alike = _columns([_by_name(each.score.terms) for each in ranked])
    if any(each.score.terms for each in ranked):
        terms.insert(0, Column("score", "", tuple(_number(each.score.value) for each in ranked)))
    alike = [*hints_alike, *terms_alike]
    note = f"alike for all: {', '.join(alike)}" if alike else ""
    return TermTable(tuple(hints), tuple(terms), note)


def _columns(workers: Sequence[dict[str, Term]]) -> tuple[list[Column], list[str]]:
    columns, alike = [], []
    for name in dict.fromkeys(name for terms in workers for name in terms):
        terms = [each.get(name) for each in workers]
        first, weights = terms[0], {each.weight for each in terms if each is not None}
        if first is not None and len(terms) > 1 and terms.count(first) == len(terms):
            alike.append(f"{name} {_weighed(first)}")
        elif len(weights) == 1:
            numbers = tuple("-" if each is None else _shown(each) for each in terms)
            columns.append(Column(name, _times(*weights), numbers))
        else:
            cells = tuple("-" if each is None else _weighed(each) for each in terms)
            columns.append(Column(name, "", cells))
    return columns, alike


def _by_name(terms: Sequence[Term], prefix: str = "") -> dict[str, Term]:
    """By a name of its own: the parts of a sum may have terms of the same name."""
    named: dict[str, Term] = {}
    for term in terms:
        number = 1
        while (name := prefix + term.name + (f" {number}" if number > 1 else "")) in named:
            number += 1
        named[name] = term
    return named


def _number(value: float) -> str:
    return f"{value:.0e}" if 0 < value < _LEAST_IN_DECIMALS else f"{value:.3f}"


def _shown(term: Term) -> str:
    return term.shown or _number(term.value)


def _weighed(term: Term) -> str:
    return f"{_shown(term)} {_times(term.weight)}".rstrip()


def _times(weight: float) -> str:
    return "" if weight == 1 else f"* {weight:.3g}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class Discovery:
    """The workers that could run a task, how they were found, and what the node finds wrong with
    itself, where that was asked."""

    decision: Decision
    trace: Trace
    troubles: tuple[str, ...] = ()
