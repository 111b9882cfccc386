"""How tasks are to be placed: ranking, hints and scope, as whoever calls may say them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from formation_p2p.placement.names import parse_policy
from formation_p2p.placement.policy import PlacementPolicy
from formation_p2p.workload.hints import Hints, parse_hints
from formation_p2p.workload.scope import Scope, parse_scope

PolicyWords = str | PlacementPolicy
HintWords = Hints | str | Iterable[str]
ScopeWords = Scope | str


class Placing(TypedDict):
    policy: PlacementPolicy
    hints: Hints
    scope: Scope


def placing_of(policy: PolicyWords, hints: HintWords, scope: ScopeWords) -> Placing:
    """Raises InvalidInput."""
    words = (hints,) if isinstance(hints, str) else hints
    return Placing(
        policy=parse_policy(policy) if isinstance(policy, str) else policy,
        hints=words if isinstance(words, Hints) else parse_hints(words),
        scope=parse_scope(scope) if isinstance(scope, str) else scope,
    )
