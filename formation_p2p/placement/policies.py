"""Options as people write them, where policies and peers are called by their names.

Policies are the built-in ones, and those of installed packages, which offer them in the entry point
group `formation_p2p.policies` (docs/how-to/extend.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from formation_p2p.machine.entry_points import Offered
from formation_p2p.machine.names import is_name, peer_meant
from formation_p2p.placement.core import names, task_options
from formation_p2p.placement.core.policy import PlacementPolicy
from formation_p2p.placement.core.task_options import (
    DEFAULT_OPTIONS,
    PlacementKwargs,
    TaskOptionKwargs,
    TaskOptions,
)

POLICIES: Final = Offered("formation_p2p.policies", names.BUILT_IN)


_OF_PEER: Final = re.compile(r"(\s*(?:require )?\s*(prefer|avoid)\s*=\s*)(.*?)\s*", re.ASCII)


def options_of(
    kwargs: Mapping[str, Any],
    options: TaskOptions = DEFAULT_OPTIONS,
    *,
    takes: type[PlacementKwargs] = TaskOptionKwargs,
    call: str = "submit",
) -> TaskOptions:
    """As in placement/core/task_options.py, where a text may name any policy that is installed, and
    any peer that is known. Raises InvalidInput; AmbiguousPeer where several have the name."""
    hints = kwargs.get("hints")
    if isinstance(hints, str):
        hints = (hints,)
    if isinstance(hints, Sequence):
        kwargs = {**kwargs, "hints": tuple(map(_with_id, hints))}
    return task_options.options_of(kwargs, options, takes=takes, call=call, policies=POLICIES)


def _with_id(hint: object) -> object:
    """A hint with the id of the peer that it has by name."""
    match = _OF_PEER.fullmatch(hint) if isinstance(hint, str) else None
    if match is None or not is_name(match[3]):
        return hint
    return f"{match[1]}{peer_meant(match[3], field=match[2])}"


def parse_policy(text: str) -> PlacementPolicy:
    """Raises InvalidInput, which says what may be written."""
    return names.parse_policy(text, POLICIES)
