"""A feature on a node, beside its part of the peer: a row of the table in
formation_p2p/node_assembly.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from formation_p2p.assembly import PeerEvent
from formation_p2p.leases.lease_runs import Around
from formation_p2p.peer.runtime_config import RuntimeConfig
from formation_p2p.trust.core.network import Network

if TYPE_CHECKING:
    from formation_p2p.content.exchange import Exchange
    from formation_p2p.reach.stack import Stack

T = TypeVar("T")
Perform = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Means:
    """What a feature has of its node: `do` runs a task of the node's, `feed` hands the peer an
    event, `tell` takes what is for the person."""

    config: RuntimeConfig
    stack: Stack
    exchange: Exchange
    do: Callable[..., None]
    feed: Callable[[PeerEvent], None]
    tell: Perform


@dataclass(frozen=True, slots=True)
class NodePart:
    """`performs` has the effects of the feature, `around` what leases may be part of. `run` runs
    for as long as the node, `renewed` is told of a new grant."""

    performs: Mapping[type, Perform]
    around: Around | None = None
    run: Callable[[], Awaitable[None]] | None = None
    renewed: Callable[[Network], None] | None = None


def performs(do: Callable[[T], None], *effects: type[T]) -> dict[type, Perform]:
    """These effects are performed so."""
    return dict.fromkeys(effects, do)
