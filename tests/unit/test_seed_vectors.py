"""Every vector of the systems before this one: covered, or named as declined."""

from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from tests.unit.seed_cases import CASES, PATH, vectors

# Without a feature that a system's vectors need, these are not there.
SYSTEMS: Final = sorted(
    path.stem.removeprefix("seed_") for path in Path(__file__).parent.glob("seed_*.py")
)
SYSTEMS.remove("cases")
for system in SYSTEMS:
    import_module(f"tests.unit.seed_{system}")

# What is not done here: gossip is declined (docs/decisions/0021-wants-come-to-workers.md), and
# workers that speak HTTP only are not chosen by what they say of their load
# (docs/how-to/gateway.md).
DECLINED: Final = ("hypha/gossip_no_peers", "cmacatalyst/router_score")

VECTORS: Final = {
    name: each for name, each in vectors().items() if name.partition("/")[0] in SYSTEMS
}


@pytest.mark.parametrize("name", [name for name in VECTORS if name in CASES])
def test_what_it_says_holds_here(name: str) -> None:
    CASES[name](VECTORS[name].given, VECTORS[name].expect)


def test_each_is_covered_or_named_as_declined() -> None:
    named = [*CASES, *(each for each in DECLINED if each.partition("/")[0] in SYSTEMS)]
    assert len(named) == len(set(named))
    if PATH.exists():
        assert set(named) == set(VECTORS)
