"""The workers for a task in the order to ask them, and why not the others.

    authorised -> trusted -> in scope -> wanted -> capable -> affordable -> fresh -> has capacity
        -> rank -> select

The policy's gate is one of these stages, and its scores are the rank. Two refusals are not final:
free capacity changes by the moment, and may be announced a minute late, so workers without room are
ranked last, with the reason. After them come those where our grant is not valid now: their clock
decides, and they may be permissive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from formation_p2p.core import refusals
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import Key
from formation_p2p.core.placement.as_text import as_text
from formation_p2p.core.placement.candidate import Candidate, TaskView
from formation_p2p.core.placement.guarded import name_of, refusal_of, scores_of
from formation_p2p.core.placement.hinted import unwanted, welcome
from formation_p2p.core.placement.policy import NO_SCORE, PlacementPolicy, Score, Term, added
from formation_p2p.core.records.profile import Profile
from formation_p2p.core.resources.fits import fits


@dataclass(frozen=True, slots=True)
class Ranked:
    """A worker that may run the task. `distance` is between its key and the task's; `hints` says
    how far it meets each soft hint, `lacking` why it could not begin now."""

    profile: Profile
    distance: int
    score: Score = NO_SCORE
    hints: tuple[Term, ...] = ()
    lacking: refusals.Denied | refusals.Infeasible | None = None

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
    rejected: tuple[tuple[PeerId, refusals.Refusal], ...]

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
    authorised: Callable[[Profile], refusals.Denied | None],
    now_unix_s: float,
) -> Decision:
    """`authorised` says whether a worker may work in this network, and we may have it run this."""
    feasible: list[Candidate] = []
    rejected: list[tuple[PeerId, refusals.Refusal]] = []
    for candidate in candidates:
        refusal = authorised(candidate.profile) or _refusal(task, candidate, policy, now_unix_s)
        if refusal is None:
            feasible.append(candidate)
        else:
            rejected.append((candidate.peer_id, refusal))
    ranked = rank(task, feasible, policy)
    if isinstance(ranked, refusals.Unwanted):
        rejected += [(candidate.peer_id, ranked) for candidate in feasible]
        ranked = ()
    return Decision(task.key, name_of(policy), ranked, tuple(rejected))


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
    # Stable: equals stay in the order of their distance.
    ranked.sort(key=_rank)
    return tuple(ranked)


def _rank(each: Ranked) -> tuple[bool, bool, float, float]:
    forbidden, lacking = isinstance(each.lacking, refusals.Denied), each.lacking is not None
    return forbidden, lacking, -added(each.hints), -each.score.value


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
