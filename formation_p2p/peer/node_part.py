"""A feature on a node, beside its part of the peer: a row of the table in
formation_p2p/node_assembly.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from formation_p2p.assembly import PeerEvent, UserEffect
from formation_p2p.core.identity import PeerId
from formation_p2p.leases.lease_runs import Around

if TYPE_CHECKING:
    from formation_p2p.reach.stack import Stack

T = TypeVar("T")
Perform = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Means:
    """What a feature has of its node `me`: `do` runs a task of the node's, `feed` hands the peer an
    event, `tell` takes what is for the person. Folders of tasks are made in `scratch_root`."""

    me: PeerId
    stack: Stack
    scratch_root: Path
    do: Callable[..., None]
    feed: Callable[[PeerEvent], None]
    tell: Callable[[UserEffect], None]


@dataclass(frozen=True, slots=True)
class NodePart:
    """`performs` has the effects of the feature, `around` what leases may be part of."""

    performs: Mapping[type, Perform]
    around: Around | None = None


def performs(do: Callable[[T], None], *effects: type[T]) -> dict[type, Perform]:
    """These effects are performed so."""
    return dict.fromkeys(effects, do)
