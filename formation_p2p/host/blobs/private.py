"""Private blobs of others: from this process, from another of this user on this machine, or over
the network."""

from __future__ import annotations

import logging

import trio

from formation_p2p.core.errors import LocalError
from formation_p2p.core.identity import Identity
from formation_p2p.core.workload.private_blob import PrivateBlob
from formation_p2p.host.blobs.local import LocalBlobs, NotLocal
from formation_p2p.host.blobs.memory import SPARE_S, Lent, PrivateBlobs
from formation_p2p.host.blobs.remote import PrivateContent, RemoteBlobs

log = logging.getLogger(__name__)


class PrivateExchange:
    """For the trio thread. Without `local` nothing is shared with other processes of this machine,
    as if they were on others."""

    def __init__(
        self, blobs: PrivateBlobs, identity: Identity, remote: RemoteBlobs, *, local: bool = True
    ) -> None:
        self.blobs = blobs
        self._me = identity.peer_id
        self._remote = remote
        self._local = LocalBlobs(blobs, identity) if local else None

    async def serve(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._local is not None:
                nursery.start_soon(self._local.serve)
            while True:
                await trio.sleep(SPARE_S / 2)
                self.blobs.trim()

    def content(self, name: bytes) -> PrivateContent | None:
        """To serve it over the network; None where it is not here."""
        lent = self.blobs.lend(name)
        return None if lent is None else PrivateContent(lent)

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
        return await self._fetched(blob)

    async def _fetched(self, blob: PrivateBlob) -> Lent:
        room = self.blobs.room(blob.size_bytes)
        try:
            await self._remote.fetch(blob, room.view)
        except BaseException:
            room.give_back()
            raise
        name = room.keep()
        lent = self.blobs.lend(name)
        self.blobs.release(name)  # it goes with its reader
        assert lent is not None, "it was kept just now"
        return lent
