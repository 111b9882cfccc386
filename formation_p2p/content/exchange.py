"""Blobs between this node and others, on the trio thread: what is here is served, else fetched.

exchange = Exchange(store, stack, identity.peer_id, network)    # before the stack runs
await exchange.fetch(blob)                  # into the cache
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.content.core import fetch as fetching
from formation_p2p.content.core.fetch import Manifest
from formation_p2p.content.data_stream import PROTOCOL, DataServer
from formation_p2p.content.fetch_run import Delegations, FetchRun, GaveWay, Progress
from formation_p2p.content.files import Part, check_place, copied_whole, part_beside
from formation_p2p.content.held_for_others import HeldForOthers
from formation_p2p.content.lent_blob import Lent
from formation_p2p.content.nearby_reader import NearbyBlobs, NearbyReader
from formation_p2p.content.places import UNKNOWN, Places
from formation_p2p.content.private import PrivateExchange
from formation_p2p.content.readers import Readers
from formation_p2p.content.results import KEPT_S
from formation_p2p.content.rules import rule_of
from formation_p2p.content.store import BlobStore, Changed
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import FormationError
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.latest import Latest
from formation_p2p.machine.locks import KeyedLocks
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.network import Network
from formation_p2p.workload.core.blob import (
    CHUNK_BYTES,
    MAX_SOURCES,
    Blob,
    Buffer,
    Cid,
    PrivateBlob,
)
from formation_p2p.workload.core.data_rule import DataRule

if TYPE_CHECKING:
    from formation_p2p.reach.stack import Stack

log = logging.getLogger(__name__)

# At once; the others wait. Each has up to 16 chunks in memory. Of these, for one owner of leases:
# the sources that he names may be as slow as he likes.
MAX_FETCHES: Final = 12
MAX_FETCHES_OF_OWNER: Final = 4
# To ask for one again takes less than to keep it.
MAX_NOT_KEPT_BYTES: Final = CHUNK_BYTES
# Blobs whose holders are remembered, the latest told of.
MAX_HELD: Final = 1024


def _untold(done_bytes: int, size_bytes: int) -> None:
    """Its progress is not asked for."""


class Exchange:
    """See the module."""

    def __init__(
        self,
        store: BlobStore,
        stack: Stack,
        me: PeerId,
        network: Network,
        stall_s: float = fetching.STALL_S,
        private: PrivateExchange | None = None,
        membership: Membership | None = None,
    ) -> None:
        self.stall_s = stall_s
        self._store = store
        self.private = private
        self._stack = stack
        self._me = me
        self.grant = network.grant
        membership = membership or Membership(network.root_public_key)
        self.readers = Readers(store, me, membership, lambda: self.grant)
        self._delegations = Delegations(stack)
        self.nearby: NearbyReader | None = None
        self.secret_of: Callable[[Blob, PeerId, str], Awaitable[bytes]] | None = None
        self._holders = Latest[Cid, deque[Contact]](MAX_HELD)
        self._places = Places(MAX_FETCHES, MAX_FETCHES_OF_OWNER)
        self._turns = KeyedLocks[Cid]()
        self._running: dict[Cid, FetchRun] = {}  # into the cache
        # What is on its way to be held, which gives way to a fetch of the same content.
        self._yielding: dict[Cid, set[trio.CancelScope]] = {}
        self.server = DataServer(
            self.readers.admit, store.content, self._told, self._has, stack.parameters
        )
        self.server.admit_to = self.readers.admit_to
        self.held_for_others = HeldForOthers(store, self.readers.shows, self.take, self.release)
        if private is not None:
            self.server.private = private.content
            self.keep_result = private.results.keep
        stack.serve(PROTOCOL, self.server.serve)

    async def lend(self, blob: PrivateBlob, *, again: bool = False) -> Lent:
        """See `BlobAccess.lend`."""
        assert self.private is not None, "a node that works has private blobs"
        return await self.private.lend(blob, again=again)

    async def secret(self, secret: Blob, owner: PeerId, service: str = "") -> bytes:
        """See `BlobAccess.secret`."""
        assert self.secret_of is not None, "a node that works asks for secrets"
        return await self.secret_of(secret, owner, service)

    def lend_kept(self, blob: PrivateBlob) -> Lent | None:
        """See `BlobAccess.lend_kept`."""
        return None if self.private is None else self.private.fetched.lend_kept(blob)

    async def serve_nearby(self, identity: Identity) -> None:
        """Until cancelled small blobs go to and come from nodes of this user on this machine
        directly."""
        reader = self.nearby = NearbyReader(identity)
        try:
            admit, content = self.readers.admit_nearby, self._store.content
            await NearbyBlobs(identity, admit, content, self._has).serve()
            await trio.sleep_forever()  # it has the socket of another node: it may still read
        finally:
            self.nearby = None
            reader.close()

    def who_has(self, cid: Cid) -> tuple[Contact, ...]:
        return tuple(self._holders.get(cid, ()))

    def _told(self, cid: Cid, reader: PeerId) -> tuple[Contact, ...]:
        """The holders of which a reader is told. Workers that are to agree know not of each other:
        those that collude would find out that they are alone."""
        if self.readers.is_checked(reader):
            return ()
        return tuple(each for each in self.who_has(cid) if each.peer_id != reader)

    def _has(self, cid: Cid, peer: Contact) -> None:
        """Where it is connected from counts for more than what it says."""
        known = self._stack.contact(peer)
        if not (contact := known if known.addresses else peer).addresses:
            return
        others = [each for each in self.who_has(cid) if each.peer_id != contact.peer_id]
        self._holders[cid] = deque([contact, *others], maxlen=MAX_SOURCES)

    def watch(self, changed: Changed) -> None:
        """Have it told, on this thread, what content is here: all of it soon, then what changes."""
        token = trio.lowlevel.current_trio_token()

        def hand_over(here: tuple[Cid, ...], gone: tuple[Cid, ...]) -> None:
            with suppress(trio.RunFinishedError):  # the run is over
                token.run_sync_soon(changed, here, gone)

        self._store.watch(hand_over)

    @property
    def limit_bytes(self) -> int:
        """Of the cache."""
        return self._store.limit_bytes

    @property
    def durable_holders(self) -> frozenset[str]:
        """See `BlobStore.hold`."""
        return self._store.durable_holders

    @property
    def contact(self) -> Contact:
        return Contact(self._me, self._stack.announced)

    async def fetch(self, blob: Blob, owner: PeerId = UNKNOWN) -> None:
        """Have a blob in the cache, which must be pinned, for an owner of leases. Raises
        LocalError, Unreachable."""
        while not self._store.holds(blob.cid) or self.readers.is_for_others(blob, owner):
            run = self._running.get(blob.cid)
            if run is not None and run.join(blob, owner):
                await run.ended.wait()
                continue
            # Who waits for a place has nobody wait for his turn.
            async with self._places.of(owner):
                for scope in self._yielding.get(blob.cid, ()):
                    scope.cancel()
                with suppress(GaveWay):
                    await self._fetch_in_turn(blob, owner)
                    return
        await self._is_now_for(blob.cid, owner)

    async def _fetch_in_turn(self, blob: Blob, owner: PeerId, *, gives_way: bool = False) -> None:
        """Raises LocalError, Unreachable."""
        async with self._turns.of(blob.cid):
            if self.readers.is_for_others(blob, owner):
                again = partial(self._store.again, rule=rule_of(blob))
                await self._to_end(blob, self._run(blob, again, owner))
            else:
                await self._fetch_by_rule(blob, owner, gives_way)
            self.readers.owners_places.came_for(blob.cid, owner)
            await self._is_now_for(blob.cid, owner)

    async def _is_now_for(self, cid: Cid, owner: PeerId) -> None:
        """See `BlobStore.is_now_for`."""
        if owner in self._store.parties(cid):
            return
        if self._store.rules(cid):  # which are on the disk
            await trio.to_thread.run_sync(self._store.is_now_for, cid, owner)
        else:
            self._store.is_now_for(cid, owner)

    async def _to_end(self, blob: Blob, run: FetchRun) -> None:
        """Of a turn. Those that wait for theirs have other references, of which one alone may be
        true. Raises LocalError, Unreachable; GaveWay where another goes on."""
        async with trio.open_nursery() as nursery:

            async def share() -> None:
                while True:
                    await trio.sleep(1.0)
                    if self._turns.is_wanted(blob.cid) and run.has_had_its_turn:
                        run.give_way()

            nursery.start_soon(share)
            try:
                await run.until_over(_untold)
                failure = None
            except (FormationError, GaveWay) as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _fetch_by_rule(self, blob: Blob, owner: PeerId, gives_way: bool) -> None:
        """Raises LocalError, Unreachable."""
        if blob.rule is None:
            self._store.restrict(blob)  # which writes rules alone to the disk
        else:
            await trio.to_thread.run_sync(self._store.restrict, blob)
        try:
            if not self._store.holds(blob.cid) and not await self._fetch_nearby(blob):
                run = self._run(blob, self._store.part, owner)
                if not gives_way:  # it may end before it has brought anything
                    self._running[blob.cid] = run
                await self._to_end(blob, run)
        finally:
            self._running.pop(blob.cid, None)
            self._store.restrict_no_more(blob.cid)

    async def _fetch_nearby(self, blob: Blob) -> bool:
        """Whether a node of this machine had it. Raises LocalError."""
        store = partial(self._store.add_copy, blob)
        return await self._handed_over(blob, store, self._stack.announced)

    async def _copied_nearby(self, blob: Blob, path: Path) -> bool:
        """Whether a node of this machine had a small one: it is not kept here too, since that has
        it for the next that needs it. Raises LocalError."""
        if blob.size_bytes > MAX_NOT_KEPT_BYTES or self._store.holds(blob.cid):
            return False
        return await self._handed_over(blob, partial(copied_whole, blob, path))

    async def _handed_over(
        self,
        blob: Blob,
        store: Callable[[int], bool],
        addresses: tuple[str, ...] | None = None,
    ) -> bool:
        """See `NearbyReader.fetch`. Content with rules comes over the network alone."""
        if self.nearby is None or self._store.rules(blob.cid):
            return False
        return await self.nearby.fetch(blob, self.grant, store, addresses)

    async def download(self, blob: Blob, path: Path, progress: Progress | None = None) -> None:
        """Have a blob as the file at `path`, which is written over once all of it is there. What
        came is kept beside it if the rest does not come. Raises LocalError, Unreachable."""
        await trio.to_thread.run_sync(check_place, path)
        with self._store.pinned(blob.cid):
            # It came from a task that ran here, or was put here.
            if not self.readers.is_for_others(blob, self._me) and await trio.to_thread.run_sync(
                self._store.copy_over, blob.cid, path
            ):
                (progress or _untold)(blob.size_bytes, blob.size_bytes)
                return
        async with self._places.of(self._me):
            run = self._run(blob, lambda manifest: part_beside(manifest, path), self._me)
            await run.until_over(progress or _untold)

    def _run(self, blob: Blob, part: Callable[[Manifest], Part], owner: PeerId) -> FetchRun:
        known = {each.peer_id: each for each in (*blob.sources, *self.who_has(blob.cid))}
        blob = replace(blob, sources=tuple(known.values())[:MAX_SOURCES])
        # Others serve this node as a worker of theirs: what they do is not for one who knows names.
        alone = owner != self._me and self.readers.leaves_out(blob, owner)
        about = self._stack, self._me, self.grant, blob, part, self.stall_s, self._delegations
        return FetchRun(*about, owner, for_owner_alone=alone)

    async def copies(self, inputs: Iterable[tuple[Path, Blob]], owner: PeerId = UNKNOWN) -> None:
        """See `BlobCopies.copies`. Raises LocalError, Unreachable."""
        for path, blob in inputs:
            if await self._copied_nearby(blob, path):
                continue
            with self._store.pinned(blob.cid):
                await self.fetch(blob, owner)
                await trio.to_thread.run_sync(self._store.copy, blob.cid, path)

    async def fetch_ahead(self, blobs: Iterable[Blob], owner: PeerId = UNKNOWN) -> None:
        """Have blobs in the cache, as what was used last. Raises LocalError, Unreachable."""
        for blob in blobs:
            with self._store.pinned(blob.cid):
                await self.fetch(blob, owner)

    async def take(
        self, blob: Blob, holder: str, owner: PeerId | None = None, *, durable: bool = False
    ) -> None:
        """Have a blob here for its owner, or this node, until `holder` is released; `durable` as
        for `BlobStore.hold`. Others say what, and from which sources, which may be as slow as they
        like: what is fetched does not wait for it. Raises LocalError, Unreachable."""
        await self.hold(holder, (blob.cid,), durable=durable)
        with self._store.pinned(blob.cid):
            while not await self._taken(blob, self._me if owner is None else owner):
                pass

    async def _taken(self, blob: Blob, owner: PeerId) -> bool:
        """Whether it is here; it may have had to give way. Raises LocalError, Unreachable."""
        scopes = self._yielding.setdefault(blob.cid, set())
        with trio.CancelScope() as scope:
            scopes.add(scope)
            try:
                # Who takes it bounds how much comes at once.
                with suppress(GaveWay):
                    await self._fetch_in_turn(blob, owner, gives_way=True)
                    return True
            finally:
                scopes.discard(scope)
                if not scopes:
                    self._yielding.pop(blob.cid, None)
        return False

    async def keep(
        self, file: int, path: Path, rule: DataRule | None = None, owner: PeerId = UNKNOWN
    ) -> Blob:
        """Move a file, open as `file`, into the cache for others to fetch, as far as the rule
        allows; it was made for that owner of a lease. Raises LocalError."""
        blob = await trio.to_thread.run_sync(self._store.adopt, file, path, KEPT_S, rule, owner)
        self.readers.owners_places.came_for(blob.cid, owner)
        return Blob(blob.cid, blob.size_bytes, (self.contact,), rule)

    async def add(self, content: Buffer, holder: str, owner: PeerId = UNKNOWN) -> Blob:
        """See `BlobStore.add`. Raises LocalError, InvalidInput."""
        blob = await trio.to_thread.run_sync(self._store.add, content, holder, owner)
        self.readers.owners_places.came_for(blob.cid, owner)
        return Blob(blob.cid, blob.size_bytes, (self.contact,))

    async def add_file(
        self, file: int, size_bytes: int, holder: str, owner: PeerId = UNKNOWN
    ) -> Blob:
        """See `BlobStore.add_file`. Raises LocalError."""
        add = self._store.add_file
        blob = await trio.to_thread.run_sync(add, file, size_bytes, holder, owner)
        self.readers.owners_places.came_for(blob.cid, owner)
        return Blob(blob.cid, blob.size_bytes, (self.contact,))

    def shows(self, owner: PeerId, grant: bytes) -> None:
        """See `Readers.shows`."""
        self.readers.shows(owner, grant)

    async def hold(self, holder: str, cids: Iterable[Cid], *, durable: bool = False) -> None:
        """See `BlobStore.hold`. Raises LocalError, InvalidInput."""
        hold = partial(self._store.hold, holder, tuple(cids), durable=durable)
        await trio.to_thread.run_sync(hold)

    async def release(self, holder: str) -> None:
        """See `BlobStore.release`. Raises LocalError."""
        await trio.to_thread.run_sync(self._store.release, holder)
