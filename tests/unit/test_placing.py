"""How tasks are to be placed, in words or as objects, comes to the same."""

from __future__ import annotations

from typing import Any

import pytest

from formation_p2p.api.placing import (
    DEFAULT_NEEDS,
    HintWords,
    Placing,
    placing_of,
    requirements_of,
    says_memory,
)
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.placement.balanced import Balanced
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.units import GIB
from formation_p2p.core.workload.hints import Hints
from formation_p2p.core.workload.scope import Scope

EU = Hints(region="eu", required=frozenset({"region"}))


@pytest.mark.parametrize("hints", [EU, "require region=eu", ["require region=eu"]])
def test_words_and_objects_come_to_the_same(hints: HintWords) -> None:
    placing = Placing(policy=Balanced(), hints=EU, scope=Scope.ORG)
    assert placing_of("balanced", hints, "org") == placing
    assert placing_of(Balanced(), hints, Scope.ORG) == placing


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(InvalidInput, match="policy"):
        placing_of(3, "region=eu", "org")  # type: ignore[arg-type]  # as callers without types


@pytest.mark.parametrize("scope", [2, None])
def test_what_is_no_scope_is_refused_with_those_that_there_are(scope: object) -> None:
    with pytest.raises(InvalidInput, match=r"scope: .* is none of local, cell, org, federation"):
        placing_of("xor", (), scope)  # type: ignore[arg-type]  # as callers without types


@pytest.mark.parametrize(
    ("hints", "told"), [(None, "hints: a NoneType is no Hints"), ([5], "hint: 5 is no hint")]
)
def test_what_is_no_hint_is_refused_with_what_to_write(hints: Any, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        placing_of("xor", hints, "org")


def test_what_is_no_needs_is_refused_with_what_to_write() -> None:
    with pytest.raises(InvalidInput, match="needs: 3 is no Requirements; write them"):
        requirements_of(3)  # type: ignore[arg-type]  # as callers without types


def test_needs_are_given_in_words_or_as_an_object() -> None:
    needs = Requirements(cpu_milli=2000, memory_bytes=GIB)
    assert requirements_of("cpu=2,memory=1GiB") == requirements_of(needs) == needs


def test_memory_is_learnt_only_where_nobody_said_how_much() -> None:
    assert says_memory("cpu=2,memory=1GiB")
    assert says_memory(Requirements())
    assert not says_memory("cpu=2")
    assert not says_memory(DEFAULT_NEEDS)
