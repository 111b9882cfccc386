"""Calls of policies, which may be code of others: a failure costs the tasks of its own job their
workers, with the reason, and the node nothing."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import Key
from formation_p2p.core.refusals import Refusal, Unwanted
from formation_p2p.placement.core.candidate import Candidate, TaskView
from formation_p2p.placement.core.policy import (
    MAX_TEXT,
    BadScores,
    Peers,
    PlacementPolicy,
    PolicyFactory,
    Score,
    check_policy,
    checked_scores,
)

# `sys.exit()` in a policy is to end no node. A person's interrupt goes through.
_FAILURES: Final = (Exception, SystemExit)


def sound(policy: PlacementPolicy) -> PlacementPolicy:
    """The policy itself, if it has a hash, a text and an equality: tasks share leases where their
    policies are equal. Raises InvalidInput."""
    check_policy(policy)
    try:
        hash(policy), str(policy), policy == policy
    except _FAILURES as error:  # whatever it is, it is told
        why = f"{_failed(error).why}; write it as a frozen dataclass below Policy"
        raise InvalidInput("policy", f"{type(policy).__name__}: {why}") from None
    return policy


def made(name: str, make: PolicyFactory, items: Sequence[str]) -> PlacementPolicy:
    """The policy of this name, with what is written in brackets after it. Raises InvalidInput."""
    try:
        takes = signature(make)
        try:
            takes.bind(*items)
        except TypeError:
            wanted = ", ".join(takes.parameters) or "nothing"
            raise InvalidInput("policy", f"{name} takes {wanted} in brackets") from None
        return sound(make(*items))
    except InvalidInput:
        raise
    except _FAILURES as error:  # whatever it is, it is told
        raise InvalidInput("policy", f"{name}: {_failed(error).why}") from None


def refusal_of(policy: PlacementPolicy, task: TaskView, candidate: Candidate) -> Refusal | None:
    try:
        said: object = policy.admit(task, candidate)
        if said is None or isinstance(said, Refusal):
            return said
        return Unwanted("policy", f"it neither admits nor refuses, but says {said!r}"[:256])
    except _FAILURES as error:  # whatever it is, it is told
        return _failed(error)


def scores_of(
    policy: PlacementPolicy, task: TaskView, candidates: Sequence[Candidate]
) -> Sequence[Score] | Unwanted:
    """One score in [0, 1] for each candidate, or what was wrong with the policy."""
    try:
        return checked_scores(policy, task, candidates)
    except BadScores as wrong:
        return Unwanted("policy", str(wrong)[:256])
    except _FAILURES as error:  # whatever it is, it is told
        return _failed(error)


def home_of(policy: PlacementPolicy, key: Key, workers: Peers) -> PeerId | None:
    """None also where it fails, for the scores asked next tell why, and where it names a peer that
    is not among `workers`: no worker would take what waits there."""
    try:
        home = policy.home(key, workers)
        return home if home in workers else None
    except _FAILURES:  # see above
        return None


def seeks_room(policy: PlacementPolicy) -> bool:
    """Not where it fails: see above."""
    try:
        return bool(policy.seeks_room)
    except _FAILURES:  # see above
        return False


def name_of(policy: PlacementPolicy) -> str:
    """Its text, cut, and on one line; where it fails the name of its type."""
    try:
        return " ".join(str(policy)[:MAX_TEXT].split())
    except _FAILURES:  # it did not when it was submitted
        return type(policy).__name__


def _failed(error: BaseException) -> Unwanted:
    try:
        said = repr(error)
    except _FAILURES:  # its `repr` is code of others, too
        said = type(error).__name__
    return Unwanted("policy", f"it failed: {said}"[:256])
