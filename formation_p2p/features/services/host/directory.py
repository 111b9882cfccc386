"""Where a router learns which replicas a service has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.features.services.core.balancer import Replica


@dataclass(frozen=True, slots=True)
class Listing:
    """What the network says of one service."""

    replicas: tuple[Replica, ...] = ()
    contacts: Mapping[PeerId, Contact] = field(default_factory=dict)
    is_known: bool = True
    """False where the catalog was read and has no such service."""


class Directory(Protocol):
    async def read(self, service: str) -> Listing | None:
        """None where nothing could be read, which says nothing of the service."""
