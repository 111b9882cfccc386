"""Every vector of the systems before this one: covered, or named as declined."""

from importlib import import_module
from typing import Final

import pytest

from tests.unit.seed_cases import CASES, PATH, vectors

for system in ("formation", "hypha", "icn", "cmacatalyst"):
    import_module(f"tests.unit.seed_{system}")

# What is not done here: gossip is declined (docs/decisions/0021-wants-come-to-workers.md), and
# workers that speak HTTP only are not chosen by what they say of their load
# (docs/how-to/gateway.md).
DECLINED: Final = ("hypha/gossip_no_peers", "cmacatalyst/router_score")

VECTORS: Final = vectors()


@pytest.mark.parametrize("name", [name for name in VECTORS if name in CASES])
def test_what_it_says_holds_here(name: str) -> None:
    CASES[name](VECTORS[name].given, VECTORS[name].expect)


def test_each_is_covered_or_named_as_declined() -> None:
    named = [*CASES, *DECLINED]
    assert len(named) == len(set(named))
    if PATH.exists():
        assert set(named) == set(VECTORS)
