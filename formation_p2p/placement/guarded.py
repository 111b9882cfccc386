"""Policies may be anybody's code: here they are called, so that one that fails costs its own job's
tasks their workers, with the reason, and the node nothing."""

from __future__ import annotations

from collections.abc import Sequence

from formation_p2p.errors import InvalidInput
from formation_p2p.identity import PeerId
from formation_p2p.keyspace import Key
from formation_p2p.placement.candidate import Asked, Candidate
from formation_p2p.placement.nearest import Peers
from formation_p2p.placement.policy import PlacementPolicy, Score
from formation_p2p.refusals import Refusal, Unwanted


def sound(policy: PlacementPolicy) -> PlacementPolicy:
    """The same, if it can be told from others, and written down: tasks share leases where their
    policies are equal. Raises InvalidInput."""
    try:
        for method in (policy.admit, policy.scores, policy.home):
            if not callable(method):
                raise TypeError(f"{method!r} is no method")
        hash(policy), str(policy), policy == policy
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        why = f"{_failed(error).why}; write it as a frozen dataclass below Policy"
        raise InvalidInput("policy", f"{type(policy).__name__}: {why}") from None
    return policy


def refusal_of(policy: PlacementPolicy, task: Asked, candidate: Candidate) -> Refusal | None:
    try:
        said: object = policy.admit(task, candidate)
        if said is None or isinstance(said, Refusal):
            return said
        return Unwanted("policy", f"it neither admits nor refuses, but says {said!r}"[:256])
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        return _failed(error)


def scores_of(
    policy: PlacementPolicy, task: Asked, candidates: Sequence[Candidate]
) -> Sequence[Score] | Unwanted:
    """One score in [0, 1] for each candidate, or what was wrong with the policy."""
    try:
        scores = list(policy.scores(task, candidates))
        bad = next((each.value for each in scores if not 0 <= each.value <= 1), None)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        return _failed(error)
    if bad is not None:  # which NaN is as well
        return Unwanted("policy", f"it gave a score of {bad}, which is not in 0 to 1")
    if len(scores) != len(candidates):
        return Unwanted("policy", f"it gave {len(scores)} scores for {len(candidates)} workers")
    return scores


def home_of(policy: PlacementPolicy, key: Key, workers: Peers) -> PeerId | None:
    """None where it fails as well: it is asked for scores next, which tells why. And where it names
    somebody else: nobody would come for what waits there."""
    try:
        home = policy.home(key, workers)
        return home if home in workers else None
    except Exception:  # noqa: BLE001 - see above
        return None


def seeks_room(policy: PlacementPolicy) -> bool:
    """Not where it fails: see above."""
    try:
        return bool(policy.seeks_room)
    except Exception:  # noqa: BLE001 - see above
        return False


def _failed(error: Exception) -> Unwanted:
    try:
        said = repr(error)
    except Exception:  # noqa: BLE001 - whoever raises one may have written that as well
        said = type(error).__name__
    return Unwanted("policy", f"it failed: {said}"[:256])
