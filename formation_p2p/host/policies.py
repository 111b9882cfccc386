"""Placement policies as text: the built-in ones, and those of installed packages, which offer them
in the entry point group `formation_p2p.policies` (docs/placement.md)."""

from __future__ import annotations

from functools import partial
from typing import Final

from formation_p2p.core.placement import names, task_options
from formation_p2p.core.placement.policy import PlacementPolicy
from formation_p2p.host.entry_points import Offered

POLICIES: Final = Offered("formation_p2p.policies", names.BUILT_IN)


# As in core/placement/task_options.py, where a text may name any policy that is installed.
options_of: Final = partial(task_options.options_of, policies=POLICIES)


def parse_policy(text: str) -> PlacementPolicy:
    """Raises InvalidInput, which says what may be written."""
    return names.parse_policy(text, POLICIES)
