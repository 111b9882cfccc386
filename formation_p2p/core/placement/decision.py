"""The workers for a task in the order to ask them, and why not the others.

    authorised -> trusted -> in scope -> wanted -> capable -> affordable -> fresh -> has capacity
        -> rank -> select

Each stage is a function from a task and a candidate to the refusal, or None. The policy's gate is
one of them, and its scores are the rank. Two refusals are not final: free capacity changes by the
moment, and may be announced a minute late, so workers without room are ranked last, with the
reason. After them come those where our grant is not valid now: their clock decides, and they may be
permissive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import Key
from formation_p2p.core.placement.as_text import as_text
from formation_p2p.core.placement.candidate import Candidate, TaskView
from formation_p2p.core.placement.guarded import name_of, refusal_of, scores_of
from formation_p2p.core.placement.hinted import unwanted, welcome
from formation_p2p.core.placement.policy import NO_SCORE, PlacementPolicy, Score, Term, added
from formation_p2p.core.records.profile import Profile
from formation_p2p.core.refusals import (
    Denied,
    Gone,
    Infeasible,
    OutOfScope,
    Refusal,
    TooDear,
    Unwanted,
)
from formation_p2p.core.resources.fits import fits


@dataclass(frozen=True, slots=True)
class Ranked:
    """A worker that may run the task. `distance` is between its key and the task's; `hints` says
    how far it meets each soft hint, `lacking` why it could not begin now."""

    profile: Profile
    distance: int
    score: Score = NO_SCORE
    hints: tuple[Term, ...] = ()
    lacking: Denied | Infeasible | None = None

    @property
    def contact(self) -> Contact:
        return Contact(self.profile.peer_id, self.profile.addresses)


@dataclass(frozen=True, slots=True)
class Decision:
    """`ranked`: best first. `rejected`: every other candidate, with the first reason. `str()` is
    a table of both."""

    target: Key
    policy: str
    ranked: tuple[Ranked, ...]
    rejected: tuple[tuple[PeerId, Refusal], ...]

    def select(self, count: int) -> tuple[Ranked, ...]:
        """The best of those that have room, at most `count`."""
        return tuple(islice((each for each in self.ranked if each.lacking is None), count))

    def __str__(self) -> str:
        return as_text(self)


def decide(
    task: TaskView,
    candidates: Iterable[Candidate],
    policy: PlacementPolicy,
    *,
    authorised: Callable[[Profile], Denied | None],
    now_unix_s: float,
) -> Decision:
    """`authorised` says whether a worker may work in this network, and we may have it run this."""
    feasible: list[Candidate] = []
    rejected: list[tuple[PeerId, Refusal]] = []
    for candidate in candidates:
        refusal = authorised(candidate.profile) or _refusal(task, candidate, policy, now_unix_s)
        if refusal is None:
            feasible.append(candidate)
        else:
            rejected.append((candidate.peer_id, refusal))
    ranked = rank(task, feasible, policy)
    if isinstance(ranked, Unwanted):
        rejected += [(candidate.peer_id, ranked) for candidate in feasible]
        ranked = ()
    return Decision(task.key, name_of(policy), ranked, tuple(rejected))


def rank(
    task: TaskView, candidates: Iterable[Candidate], policy: PlacementPolicy
) -> tuple[Ranked, ...] | Unwanted:
    """The candidates that passed every gate, best first: where our grant is valid, with room,
    preferred by hints, with the highest score, nearest. Or what is wrong with the policy."""
    # In the same order on every node, so that a policy which draws lots draws the same ones.
    everyone = sorted(candidates, key=lambda each: (each.distance(task), each.peer_id))
    scores = scores_of(policy, task, everyone)
    if isinstance(scores, Unwanted):
        return scores
    ranked = [
        Ranked(
            candidate.profile,
            candidate.distance(task),
            score,
            welcome(task, candidate),
            candidate.lacks(task),
        )
        for candidate, score in zip(everyone, scores, strict=True)
    ]
    # Stable: equals stay in the order of their distance.
    ranked.sort(key=_rank)
    return tuple(ranked)


def _rank(each: Ranked) -> tuple[bool, bool, float, float]:
    forbidden, lacking = isinstance(each.lacking, Denied), each.lacking is not None
    return forbidden, lacking, -added(each.hints), -each.score.value


def _refusal(
    task: TaskView, candidate: Candidate, policy: PlacementPolicy, now_unix_s: float
) -> Refusal | None:
    return (
        refusal_of(policy, task, candidate)
        or _out_of_scope(task, candidate)
        or unwanted(task, candidate)
        or _incapable(task, candidate)
        or _too_dear(task, candidate)
        or _stale(candidate, now_unix_s)
    )


def _out_of_scope(task: TaskView, candidate: Candidate) -> OutOfScope | None:
    if candidate.scope <= task.scope:
        return None
    return OutOfScope(candidate.scope.name.lower(), task.scope.name.lower())


def _incapable(task: TaskView, candidate: Candidate) -> Infeasible | None:
    profile = candidate.profile
    return fits(task.needs, profile.capability, dict(profile.labels), profile.drivers)


def _too_dear(task: TaskView, candidate: Candidate) -> TooDear | None:
    price_micro, most = candidate.profile.price_micro, task.max_price_micro
    return None if most is None or price_micro <= most else TooDear(price_micro, most)


def _stale(candidate: Candidate, now_unix_s: float) -> Gone | None:
    if candidate.profile.expires_unix_s > now_unix_s:
        return None
    return Gone("its profile", "it expired and was not published again")
