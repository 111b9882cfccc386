"""Which content is on this machine, as far as the peer is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from formation_p2p.core.peer.events import BlobsChanged
from formation_p2p.core.workload.blob import Cid

# As many as the cache holds (host/blobs/store.py).
MAX_BLOBS: Final = 16_384


class BlobIndex:
    """Which content is on this machine, whole: what its workers would not have to fetch."""

    def __init__(self) -> None:
        self._here: dict[Cid, None] = {}  # the latest at the end

    def changed(self, event: BlobsChanged) -> None:
        for cid in event.gone:
            self._here.pop(cid, None)
        for cid in event.here:
            self._here.pop(cid, None)
            self._here[cid] = None
        while len(self._here) > MAX_BLOBS:
            del self._here[next(iter(self._here))]

    def places(self, near: Sequence[Cid]) -> tuple[int, ...]:
        """Where in a list those stand that are here."""
        return tuple(place for place, cid in enumerate(near) if cid in self._here)
