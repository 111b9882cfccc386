"""What ranks the workers that may run a task: the protocol, and how policies are put together.

    trusted(milli=300) & (0.7 * scored + 0.3 * spread)

A policy sees all candidates at once, and gives each a score in [0, 1]. It draws on what workers
have signed and this node itself has seen, never on what a worker says of its own score. Where
scores are equal, the XOR distance decides: every policy is total, and the same facts give the
same answer on every node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from formation_p2p.errors import InvalidInput
from formation_p2p.identity import PeerId
from formation_p2p.keyspace import Key
from formation_p2p.placement.candidate import Asked, Candidate
from formation_p2p.placement.nearest import Peers
from formation_p2p.refusals import Refusal

# A sum of more is no policy that anybody could explain.
MAX_TERMS: Final = 32


@dataclass(frozen=True, slots=True)
class Term:
    """One reason for a score: `value` times `weight` is what it adds."""

    name: str
    value: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Score:
    """`value` is finite, in [0, 1], and the sum of its terms where that lies within."""

    value: float
    terms: tuple[Term, ...] = ()


NO_SCORE: Final = Score(0.0)


def added(terms: Sequence[Term]) -> float:
    """One after the other, so that the same terms give the same sum in any Python."""
    total = 0.0
    for term in terms:
        total += term.value * term.weight
    return total


def scored(terms: Sequence[Term]) -> Score:
    """The sum of the terms, kept in [0, 1]."""
    return Score(min(max(added(terms), 0.0), 1.0), tuple(terms))


class PlacementPolicy(Protocol):
    """What `Node.submit(policy=…)` takes. `str()` of those built in is read by `parse_policy`."""

    def admit(self, task: Asked, candidate: Candidate) -> Refusal | None:
        """Why a worker is out of the question; None where it is not."""

    def scores(self, task: Asked, candidates: Sequence[Candidate]) -> Sequence[Score]:
        """One for each candidate, in their order; higher is better."""

    def home(self, key: Key, workers: Peers) -> PeerId | None:
        """Which of many workers a task with this key is to wait for, where the policy spreads
        tasks over workers by their keys; None where it ranks workers when they are asked."""

    @property
    def seeks_room(self) -> bool:
        """Whether what is free now decides, so that discovery is to name those with room first."""


class Policy:
    """A base for policies, with the operators. By itself: everybody, nearest first. One of your
    own is a frozen dataclass below it, so that equal ones share leases."""

    __slots__ = ()

    def admit(self, task: Asked, candidate: Candidate) -> Refusal | None:
        return None

    def scores(self, task: Asked, candidates: Sequence[Candidate]) -> Sequence[Score]:
        return [NO_SCORE] * len(candidates)

    def home(self, key: Key, workers: Peers) -> PeerId | None:
        return None

    @property
    def seeks_room(self) -> bool:
        return False

    def __and__(self, other: PlacementPolicy) -> Gated:
        """Whom both admit, ranked as the second says."""
        return Gated(self, other)

    def __rmul__(self, weight: float) -> Sum:
        return Sum(((weight, self),))

    def __add__(self, other: PlacementPolicy) -> Sum:
        return Sum((*_parts(self), *_parts(other)))


@dataclass(frozen=True, slots=True)
class Gated(Policy):
    gate: PlacementPolicy
    policy: PlacementPolicy

    def admit(self, task: Asked, candidate: Candidate) -> Refusal | None:
        return self.gate.admit(task, candidate) or self.policy.admit(task, candidate)

    def scores(self, task: Asked, candidates: Sequence[Candidate]) -> Sequence[Score]:
        return self.policy.scores(task, candidates)

    def home(self, key: Key, workers: Peers) -> PeerId | None:
        return self.policy.home(key, workers)

    @property
    def seeks_room(self) -> bool:
        return self.policy.seeks_room

    def __str__(self) -> str:
        behind = f"({self.policy})" if isinstance(self.policy, Gated) else str(self.policy)
        return f"{self.gate} & {behind}"


@dataclass(frozen=True, slots=True)
class Sum(Policy):
    """The mean of several policies by weight. All of them have to admit a worker."""

    parts: tuple[tuple[float, PlacementPolicy], ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= MAX_TERMS:
            raise InvalidInput("policy", f"a sum has 1 to {MAX_TERMS} parts")
        if not all(0 < weight < float("inf") for weight, _ in self.parts):
            raise InvalidInput("policy", "a weight is a number above 0")
        if sum(weight for weight, _ in self.parts) == float("inf"):
            raise InvalidInput("policy", "the weights are too large to add up; write smaller ones")

    def admit(self, task: Asked, candidate: Candidate) -> Refusal | None:
        refusals = (policy.admit(task, candidate) for _, policy in self.parts)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def scores(self, task: Asked, candidates: Sequence[Candidate]) -> Sequence[Score]:
        total = sum(weight for weight, _ in self.parts)
        parts = [
            [_weighed(score, weight / total, policy) for score in policy.scores(task, candidates)]
            for weight, policy in self.parts
        ]
        return [
            scored([term for score in each for term in score]) for each in zip(*parts, strict=True)
        ]

    @property
    def seeks_room(self) -> bool:
        return any(policy.seeks_room for _, policy in self.parts)

    def __str__(self) -> str:
        alone = len(self.parts) == 1
        return " + ".join(
            f"{'' if weight == 1 and not alone else f'{weight!r}*'}{_in_brackets(policy)}"
            for weight, policy in self.parts
        )


def _in_brackets(policy: PlacementPolicy) -> str:
    return f"({policy})" if isinstance(policy, Gated | Sum) else str(policy)


def _parts(policy: PlacementPolicy) -> tuple[tuple[float, PlacementPolicy], ...]:
    return policy.parts if isinstance(policy, Sum) else ((1.0, policy),)


def _weighed(score: Score, weight: float, policy: PlacementPolicy) -> tuple[Term, ...]:
    """The terms of a part of a sum; the score itself where they do not add up to it."""
    if scored(score.terms) != score:
        return (Term(str(policy), score.value, weight),)
    return tuple(replace(term, weight=term.weight * weight) for term in score.terms)
