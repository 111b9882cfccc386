"""Private blobs of others: from this process, from another of this user on this machine, or over
the network."""

from __future__ import annotations

import logging

import trio

from formation_p2p.core.errors import LocalError, Unreachable
from formation_p2p.core.identity import Identity
from formation_p2p.core.workload.private_blob import PrivateBlob
from formation_p2p.host.blobs.local import LocalBlobs, NotLocal
from formation_p2p.host.blobs.memory import SPARE_S, Lent, PrivateBlobs

log = logging.getLogger(__name__)


class PrivateExchange:
    """For the trio thread. Without `local` nothing is shared with other processes of this machine,
    as if they were on others."""

    def __init__(self, blobs: PrivateBlobs, identity: Identity, *, local: bool = True) -> None:
        self.blobs = blobs
        self._me = identity.peer_id
        self._local = LocalBlobs(blobs, identity) if local else None

    async def serve(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._local is not None:
                nursery.start_soon(self._local.serve)
            while True:
                await trio.sleep(SPARE_S / 2)
                self.blobs.trim()

    async def lend(self, blob: PrivateBlob) -> Lent:
        """A private blob, to be read. Raises LocalError, RemoteError."""
        if blob.owner.peer_id == self._me:
            lent = self.blobs.lend(blob.name)
            if lent is not None and lent.size_bytes >= blob.size_bytes:
                return lent
            if lent is not None:
                lent.done(clean=True)
            raise LocalError("this node does not have it any more")
        if self._local is not None:
            try:
                return await self._local.lend(blob)
            except NotLocal as why:
                log.debug("%s is asked over the network: %s", blob.owner.peer_id, why)
        raise Unreachable(f"{blob.owner.peer_id} is on another machine")
