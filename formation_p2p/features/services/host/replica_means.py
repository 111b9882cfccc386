"""What the replicas of one machine share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from formation_p2p.core.identity import PeerId
from formation_p2p.drivers.driver import Driver, LeaseDriver
from formation_p2p.features.services.core.events import ReplicaReported
from formation_p2p.features.services.core.supervision import Floor
from formation_p2p.features.services.host.router import Router
from formation_p2p.workload.core.blob import Blob


class Files(Protocol):
    """Content on this machine's disk, which others fetch from here."""

    def shows(self, owner: PeerId, grant: bytes) -> None:
        """Content is to come for a peer that has no lease here: as far as it may read it."""
        ...

    async def take(
        self, blob: Blob, holder: str, owner: PeerId | None = None, *, durable: bool = False
    ) -> None:
        """Have it here until `holder` is released, also after a restart where it is `durable`.
        Raises LocalError, RemoteError."""
        ...

    async def release(self, holder: str) -> None:
        """Raises LocalError."""
        ...


@dataclass(frozen=True, slots=True)
class Means:
    """What the replicas of a machine share. `root` is the folder of its services, `scratch_root`
    that of what runs for a while; `router` leads to the services that they use, and `files` keeps
    their files here, for other workers too."""

    drivers: Mapping[str, Driver | LeaseDriver]
    scratch_root: Path
    root: Path
    floor: Floor
    report: Callable[[ReplicaReported], None]
    router: Router | None = None
    files: Files | None = None
