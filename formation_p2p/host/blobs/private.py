"""Private blobs of others: from this process, from another of this user on this machine, or over
the network."""

from __future__ import annotations

import logging
from typing import Final

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.workload.private_blob import PrivateBlob
from formation_p2p.host.blobs.arrivals import COPIED_BYTES, Arrivals, Arrived
from formation_p2p.host.blobs.fetched import IDLE_S, LOCAL_IDLE_S, FetchedBlobs
from formation_p2p.host.blobs.lent_blob import Lent
from formation_p2p.host.blobs.local import LocalBlobs
from formation_p2p.host.blobs.local_reader import Dropped, LocalReader, NotLocal
from formation_p2p.host.blobs.memory import SPARE_S, PrivateBlobs
from formation_p2p.host.blobs.remote import PrivateContent, RemoteBlobs
from formation_p2p.host.blobs.results import ResultBlobs

log = logging.getLogger(__name__)

# Of the memory for private blobs, what is kept for calls that ask for it again: the rest is for
# arguments.
FETCHED_SHARE: Final = 2


class PrivateExchange:
    """For the trio thread. Without `local` nothing is shared with other processes of this machine,
    as if they were on others."""

    def __init__(
        self,
        blobs: PrivateBlobs,
        identity: Identity,
        remote: RemoteBlobs,
        arrivals: Arrivals | None = None,
        *,
        local: bool = True,
    ) -> None:
        self.blobs = blobs
        self.results = ResultBlobs(blobs, lambda: Contact(self._me, remote.announced))
        self._arrivals = Arrivals() if arrivals is None else arrivals
        self._me = identity.peer_id
        self.remote = remote
        self._local = LocalBlobs(blobs, identity) if local else None
        self._reader = LocalReader() if local else None
        self.fetched = FetchedBlobs(self._fetch, blobs.limit_bytes // FETCHED_SHARE)

    async def serve(self) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                if self._local is not None:
                    nursery.start_soon(self._local.serve)
                while True:
                    await trio.sleep(SPARE_S / 2)
                    self.blobs.trim()
                    self.fetched.trim()
                    self.results.trim()
                    if self._reader is not None:
                        self._reader.trim()
        finally:
            if self._reader is not None:
                self._reader.close()
            self.fetched.close()
            self.results.close()

    def content(self, name: bytes, peer: PeerId) -> PrivateContent | None:
        """To serve it over the network to a peer; None where it is not here."""
        lent = self.blobs.lend(name, peer)
        return None if lent is None else PrivateContent(lent)

    async def lend(self, blob: PrivateBlob, *, again: bool = False) -> Lent:
        """A private blob, to be read; with `again` it is kept for others that ask for it. Raises
        LocalError; RemoteError where its owner does not hand it over."""
        lent = self._own(blob)
        if lent is not None:
            return lent
        if again:
            return await self.fetched.lend(blob)
        return (await self._fetch(blob))[0]

    async def result(self, blob: PrivateBlob) -> Arrived:
        """A large result that a worker has. Raises LocalError, RemoteError."""
        arrivals, size = self._arrivals, blob.size_bytes
        lent = self._own(blob) or await self._handed(blob)
        if lent is None:
            arrived = await trio.to_thread.run_sync(arrivals.room, size)
            await self.remote.fetch(blob, arrived.view)
            return arrived
        try:
            if size <= COPIED_BYTES:
                return arrivals.of_worker(lent.file, size)
            return await trio.to_thread.run_sync(arrivals.of_worker, lent.file, size)
        finally:
            lent.done(clean=False)

    def _own(self, blob: PrivateBlob) -> Lent | None:
        """None where another node has it. Raises LocalError."""
        if blob.owner.peer_id != self._me:
            return None
        lent = self.blobs.lend(blob.name)
        if lent is not None and lent.size_bytes >= blob.size_bytes:
            return lent
        if lent is not None:
            lent.done(clean=True)
        raise Dropped("this node does not have it any more")

    async def _fetch(self, blob: PrivateBlob) -> tuple[Lent, float]:
        """And how long it is worth to be kept unused."""
        lent = await self._handed(blob)
        return (await self._copied(blob), IDLE_S) if lent is None else (lent, LOCAL_IDLE_S)

    async def _handed(self, blob: PrivateBlob) -> Lent | None:
        """By a node of this machine; None where its owner is to be asked over the network."""
        if self._reader is not None:
            try:
                return await self._reader.lend(blob)
            except NotLocal as why:
                log.debug("%s is asked over the network: %s", blob.owner.peer_id, why)
        return None

    async def _copied(self, blob: PrivateBlob) -> Lent:
        room = await trio.to_thread.run_sync(self.blobs.room, blob.size_bytes)
        try:
            await self.remote.fetch(blob, room.view)
        except BaseException:
            room.give_back()
            raise
        name = room.keep()
        lent = self.blobs.lend(name)
        self.blobs.release(name)  # it goes with its reader
        assert lent is not None, "it was kept just now"
        return lent
