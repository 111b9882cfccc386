"""The node's blobs, as drivers use them: inputs are fetched, outputs kept."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from formation_p2p.core.workload.blob import Blob


class BlobAccess(Protocol):
    async def copies(self, inputs: Iterable[tuple[Path, Blob]]) -> None:
        """Put copies at these paths, whose folders exist, readable and executable, fetching what
        is not on this machine. Raises LocalError, RemoteError."""
        ...

    async def keep(self, file: int, path: Path) -> Blob:
        """Take over a plain file, open as `file` and with no writer left, so that others
        can fetch it for a while. Raises LocalError."""
        ...


@runtime_checkable
class UsesBlobs(Protocol):
    """A driver that is given the node's blobs before it runs anything."""

    blobs: BlobAccess | None
