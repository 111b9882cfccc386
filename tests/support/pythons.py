"""The Pythons that this machine has beside the one that runs the tests."""

from functools import cache

import pytest

from formation_p2p.core.errors import LocalError
from formation_p2p.machine.pythons import interpreters, own_name


@cache
def _installed() -> tuple[str, ...]:
    found: list[str] = []
    for minor in (12, 13, 14, 11, 10):
        try:
            found += interpreters([f"3.{minor}"])
        except LocalError:
            continue
    return tuple(found)


def other_pythons() -> tuple[str, ...]:
    """Their names, at least one; a test that needs one cannot be run without."""
    others = tuple(name for name in _installed() if name != own_name())
    if not others:
        pytest.skip("one Python alone is installed here")
    return others
