"""What ranks the workers that may run a task: the protocol, and how policies are combined.

    Trusted(300) & (0.7 * Scored(trust=1) + 0.3 * Spread())

A policy sees all candidates at once, and gives each a score in [0, 1], from what workers have
signed and what this node has seen itself. Where scores are equal, the XOR distance decides: the
same facts give the same answer on every node.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import isfinite, nan
from typing import Final, Protocol, SupportsFloat, TypeAlias

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, Key
from formation_p2p.core.refusals import Refusal
from formation_p2p.machine.core.bounds import shown
from formation_p2p.placement.core.candidate import Candidate, TaskView


class Peers:
    """A fixed set of peers, in the order of their keys.

    Sorted keys are a binary trie: those that share a prefix stand side by side. A search takes
    about log n steps; a job of 100,000 tasks and 1,000 workers would otherwise measure 100 million
    distances for each new worker.
    """

    def __init__(self, peers: Iterable[PeerId]) -> None:
        self._peers = {key_of_peer(peer_id): peer_id for peer_id in peers}
        self._keys = sorted(self._peers)
        self._named = frozenset(self._peers.values())

    def __contains__(self, peer_id: object) -> bool:
        return peer_id in self._named

    def nearest(self, target: Key) -> PeerId | None:
        """The peer at the least XOR distance; None where there is none at all."""
        low, high = self._around(target, 1)
        return self._peers[self._keys[low]] if high else None

    def nearest_few(self, target: Key, count: int) -> list[PeerId]:
        """The `count` peers at the least XOR distances, nearest first; or all of fewer."""
        if count < 1:
            return []
        low, high = self._around(target, count)
        near = sorted(self._keys[low:high], key=target.__xor__)
        return [self._peers[Key(key)] for key in near[:count]]

    def _around(self, target: Key, count: int) -> tuple[int, int]:
        """From where to where the keys stand that share the most bits with `target` of all sets
        of so many, at least 1: no other is nearer than one of these."""
        low, high, prefix, bit = 0, len(self._keys), 0, 1 << (KEY_BITS - 1)
        while high - low > count:
            ones = bisect_left(self._keys, prefix | bit, low, high)
            near = high - ones if target & bit else ones - low
            if 0 < near < count:
                break
            if bool(target & bit) == (near > 0):
                low, prefix = ones, prefix | bit
            else:
                high = ones
            bit >>= 1
        return low, high


# A sum of more cannot be explained.
MAX_TERMS: Final = 32
# Room for a sum of as many terms as there may be, each with weights of its own.
MAX_TEXT: Final = 4096

# As a union it would be built each time.
_NUMBERS: Final = (int, float)
# A weight, as it is written.
NUMBER: Final = re.compile(r"\d{1,20}(?:\.\d{1,25})?(?:e[+-]?\d{1,3})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Term:
    """One reason for a score: `value` times `weight` is what it adds. `shown` is what it stands
    for, in its unit, where people are to see that in place of the value."""

    name: str
    value: float
    weight: float = 1.0
    shown: str = field(default="", compare=False, metadata={"carried": True})


@dataclass(frozen=True, slots=True)
class Score:
    """`value` is finite, in [0, 1], and the sum of its terms where that lies within."""

    value: float
    terms: tuple[Term, ...] = ()


NO_SCORE: Final = Score(0.0)


def summed(numbers: Iterable[float]) -> float:
    """One after the other, so that the same numbers give the same sum in any Python: from 3.12 on
    its own `sum` corrects rounding."""
    total = 0.0
    for number in numbers:
        total += number
    return total


def added(terms: Sequence[Term]) -> float:
    return summed(term.value * term.weight for term in terms)


def scored(terms: Sequence[Term]) -> Score:
    """The sum of the terms, kept in [0, 1]."""
    return Score(min(max(added(terms), 0.0), 1.0), tuple(terms))


def as_weight(number: object) -> float:
    """The float that the text of a number is read back as; NaN for anything else."""
    try:
        return float(number) if isinstance(number, SupportsFloat) else nan
    except (OverflowError, TypeError, ValueError):
        return nan


class PlacementPolicy(Protocol):
    """What `Node.submit(policy=…)` takes. `str()` of those built in is read by `parse_policy`."""

    __slots__ = ()

    def admit(self, task: TaskView, candidate: Candidate) -> Refusal | None:
        """None admits the worker; else why it may not run the task."""
        return None

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        """One for each candidate, in their order; higher is better."""
        return [NO_SCORE] * len(candidates)

    def home(self, key: Key, workers: Peers) -> PeerId | None:
        """The worker that a task with this key waits for, where the policy spreads tasks over
        workers by their keys; None where it ranks workers when they are asked."""
        return None

    @property
    def seeks_room(self) -> bool:
        """Whether free capacity decides, so that discovery names workers with room first."""
        return False


PolicyFactory: TypeAlias = Callable[..., PlacementPolicy]
"""Makes a policy of the texts that are written in brackets after its name. Raises InvalidInput."""


def check_policy(policy: object) -> None:
    """Raises InvalidInput for anything but a policy."""
    if isinstance(policy, type):
        raise InvalidInput("policy", f"{policy.__name__} is a class; write {policy.__name__}()")
    if isinstance(policy, str):
        text = shown(policy)
        raise InvalidInput("policy", f"{text} is a text; write parse_policy({text})")
    if not all(callable(getattr(policy, name, None)) for name in ("admit", "scores", "home")):
        hint = "write it as a frozen dataclass below Policy"
        raise InvalidInput("policy", f"{shown(policy)} is not a policy; {hint}")


class BadScores(ValueError):
    """A policy gave anything but one score for each candidate."""


def checked_scores(
    policy: PlacementPolicy, task: TaskView, candidates: Sequence[Candidate]
) -> Sequence[Score]:
    """One score in [0, 1] for each candidate. Raises BadScores."""
    name, scores = type(policy).__name__, list(policy.scores(task, candidates))
    if len(scores) != len(candidates):
        raise BadScores(f"{name} gave {len(scores)} scores for {len(candidates)} workers")
    for score in scores:
        if not isinstance(score, Score):
            raise BadScores(f"{name} gave {score!r}, which is not a Score")
        if not _is_finite(score.value) or not 0 <= score.value <= 1:
            wrong = f"a score of {score.value!r}, which is not a float from 0 to 1"
            raise BadScores(f"{name} gave {wrong}")
        if not _are_terms(score.terms):
            hint = "write a tuple of Term(name, value), which are finite floats"
            raise BadScores(f"{name} gave terms that are none; {hint}: {score.terms!r}")
    return scores


def _are_terms(terms: object) -> bool:
    return isinstance(terms, tuple) and all(
        isinstance(each, Term)
        and isinstance(each.name, str)
        and _is_finite(each.value)
        and _is_finite(each.weight)
        for each in terms
    )


def _is_finite(number: object) -> bool:
    return isinstance(number, _NUMBERS) and isfinite(number)


class Policy(PlacementPolicy):
    """A base for policies, with the operators. By itself it admits all, nearest first. Write a
    custom policy as a frozen dataclass below it, so that equal ones share leases."""

    __slots__ = ()

    def __and__(self, other: PlacementPolicy) -> Gated:
        """The workers that both admit, as the second ranks them."""
        return Gated(self, other)

    def __mul__(self, weight: float) -> Sum:
        return Sum(((weight, self),))

    __rmul__ = __mul__

    def __add__(self, other: PlacementPolicy) -> Sum:
        return Sum((*_parts(self), *_parts(other)))


@dataclass(frozen=True, slots=True)
class Gated(Policy):
    """Raises InvalidInput for anything but policies."""

    gate: PlacementPolicy
    policy: PlacementPolicy

    def __post_init__(self) -> None:
        check_policy(self.gate)
        check_policy(self.policy)

    def admit(self, task: TaskView, candidate: Candidate) -> Refusal | None:
        return self.gate.admit(task, candidate) or self.policy.admit(task, candidate)

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
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
    """The mean of several policies by weight. All of them have to admit a worker. Raises
    InvalidInput for weights that are not above 0, and for anything but policies."""

    parts: tuple[tuple[float, PlacementPolicy], ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= MAX_TERMS:
            raise InvalidInput("policy", f"a sum has 1 to {MAX_TERMS} parts")
        for _, policy in self.parts:
            check_policy(policy)
        parts = tuple((as_weight(weight), policy) for weight, policy in self.parts)
        if not all(0 < weight < float("inf") for weight, _ in parts):
            raise InvalidInput("policy", "a weight is a number above 0")
        object.__setattr__(self, "parts", parts)
        if self._total() == float("inf"):
            raise InvalidInput("policy", "the weights are too large to add up; write smaller ones")

    def admit(self, task: TaskView, candidate: Candidate) -> Refusal | None:
        refusals = (policy.admit(task, candidate) for _, policy in self.parts)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        total, parts = self._total(), []
        for weight, policy in self.parts:
            scores = checked_scores(policy, task, candidates)
            parts.append([_weighed(each, weight / total, policy) for each in scores])
        return [scored(tuple(chain.from_iterable(each))) for each in zip(*parts, strict=True)]

    @property
    def seeks_room(self) -> bool:
        return any(policy.seeks_room for _, policy in self.parts)

    def _total(self) -> float:
        return summed(weight for weight, _ in self.parts)

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
