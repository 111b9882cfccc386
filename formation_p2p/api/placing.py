"""What tasks need and how they are to be placed, as whoever calls may say it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypedDict

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.placement.guarded import sound
from formation_p2p.core.placement.policy import PlacementPolicy
from formation_p2p.core.resources.bounds import shown
from formation_p2p.core.resources.parse import gives_memory, parse_requirements
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.workload.hints import Hints, parse_hints
from formation_p2p.core.workload.scope import Scope, parse_scope
from formation_p2p.host.policies import parse_policy

Needs = Requirements | str
PolicyWords = str | PlacementPolicy
HintWords = Hints | str | Iterable[str]
ScopeWords = Scope | str

# One core and the default memory (core/resources/requirements.py).
DEFAULT_NEEDS: Final = Requirements()


class Placing(TypedDict):
    policy: PlacementPolicy
    hints: Hints
    scope: Scope


def placing_of(policy: PolicyWords, hints: HintWords, scope: ScopeWords) -> Placing:
    """Raises InvalidInput."""
    words = (hints,) if isinstance(hints, str) else hints
    if not isinstance(words, Hints | Iterable):
        raise InvalidInput("hints", f"{shown(words)} is no Hints; write them, or 'region=eu'")
    return Placing(
        policy=parse_policy(policy) if isinstance(policy, str) else sound(policy),
        hints=words if isinstance(words, Hints) else parse_hints(words),
        scope=scope if isinstance(scope, Scope) else parse_scope(scope),
    )


def requirements_of(needs: Needs) -> Requirements:
    """Raises InvalidInput."""
    if isinstance(needs, str):
        return parse_requirements(needs)
    if not isinstance(needs, Requirements):
        raise InvalidInput("needs", f"{shown(needs)} is no Requirements; write them, or 'cpu=2'")
    return needs


def says_memory(needs: Needs) -> bool:
    """Whether it is said how much; else it may be learnt."""
    return gives_memory(needs) if isinstance(needs, str) else needs is not DEFAULT_NEEDS
