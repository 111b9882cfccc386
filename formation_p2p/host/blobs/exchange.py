"""Blobs between this node and others, on the trio thread: what is here is served, else fetched.

exchange = Exchange(store, stack, identity.peer_id, network)    # before the stack runs
await exchange.fetch(blob)                  # into the cache
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.core import errors
from formation_p2p.core.data import fetch as fetching
from formation_p2p.core.data.fetch import Fetch
from formation_p2p.core.data.manifest import Manifest
from formation_p2p.core.data.messages import BlobRefused, Have
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.records.codec import Malformed
from formation_p2p.core.trust.membership import Membership
from formation_p2p.core.trust.network import Network
from formation_p2p.core.workload.blob import CHUNK_BYTES, MAX_SOURCES, Blob, Buffer, Cid
from formation_p2p.core.workload.data_rule import DataRule
from formation_p2p.core.workload.private_blob import PrivateBlob
from formation_p2p.host.blobs.files import Part, part_beside
from formation_p2p.host.blobs.held_for_others import HeldForOthers
from formation_p2p.host.blobs.memory import Lent
from formation_p2p.host.blobs.private import PrivateExchange
from formation_p2p.host.blobs.results import KEPT_S
from formation_p2p.host.blobs.store import BlobStore, Changed
from formation_p2p.host.clock import moment
from formation_p2p.host.net.protocols.data import PROTOCOL, DataServer, DataStream
from formation_p2p.host.net.transport.errors import IOException

if TYPE_CHECKING:
    from formation_p2p.host.net.stack import Stack

log = logging.getLogger(__name__)

# At once; the others wait. Each has up to 16 chunks in memory.
MAX_FETCHES: Final = 4
# To dial a source, and to agree on the protocol.
DIAL_S: Final = 20.0
# To tell the sources that we have it all now; they need not know.
GOODBYE_S: Final = 2.0
# Blobs whose holders are remembered, the latest told of.
MAX_HELD: Final = 1024

Progress = Callable[[int, int], None]


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
        self._membership = membership or Membership(network.root_public_key)
        # Whether this node has a lease of a peer, or that of this node.
        self.is_party: Callable[[PeerId], bool] = lambda peer_id: False
        self._holders: dict[Cid, deque[Contact]] = {}
        self._places = trio.CapacityLimiter(MAX_FETCHES)
        self._turns: dict[Cid, trio.Lock] = {}
        self.server = DataServer(
            self.admit, store.content, self.who_has, self._has, stack.parameters
        )
        self.server.admit_to = self.admit_to
        self.held_for_others = HeldForOthers(store, self.take, self.release)
        if private is not None:
            self.server.private = private.content
            self.keep_result = private.results.keep
        stack.serve(PROTOCOL, self.server.serve)

    async def lend(self, blob: PrivateBlob, *, again: bool = False) -> Lent:
        """See `BlobAccess.lend`."""
        assert self.private is not None, "a node that works has private blobs"
        return await self.private.lend(blob, again=again)

    def lend_kept(self, blob: PrivateBlob) -> Lent | None:
        """See `BlobAccess.lend_kept`."""
        return None if self.private is None else self.private.fetched.lend_kept(blob)

    def admit(self, peer: Contact, grant: bytes) -> str | None:
        """Why a peer, which showed `grant`, is not served; None where it is a member."""
        denied = self._membership.denies_membership(grant, peer.peer_id, moment())
        return None if denied is None else str(denied)

    def admit_to(self, peer: Contact, grant: bytes, cid: Cid) -> str | None:
        """Why a member, which showed `grant`, may not read this; None where it may."""
        rules = self._store.rules(cid) or self._membership.common_rule(self.grant)
        if not rules or peer.peer_id == self._me:
            return None
        party = self.is_party(peer.peer_id)
        return self._membership.denies_read(rules, grant, peer.peer_id, moment(), party=party)

    def who_has(self, cid: Cid) -> tuple[Contact, ...]:
        return tuple(self._holders.get(cid, ()))

    def _has(self, cid: Cid, peer: Contact) -> None:
        """Where it is connected from counts for more than what it says."""
        known = self._stack.contact(peer)
        if not (contact := known if known.addresses else peer).addresses:
            return
        holders = self._holders.pop(cid, deque(maxlen=MAX_SOURCES))
        others = [each for each in holders if each.peer_id != contact.peer_id]
        self._holders[cid] = deque([contact, *others], maxlen=MAX_SOURCES)
        if len(self._holders) > MAX_HELD:
            del self._holders[next(iter(self._holders))]

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

    async def fetch(self, blob: Blob, progress: Progress | None = None) -> None:
        """Have a blob in the cache, which must be pinned. Raises LocalError, Unreachable."""
        await trio.to_thread.run_sync(self._store.restrict, blob)
        turn = self._turns.setdefault(blob.cid, trio.Lock())
        try:
            async with turn:
                if not self._store.holds(blob.cid):
                    await self._fetch(blob, self._store.part, progress)
        finally:
            if not turn.locked():
                self._turns.pop(blob.cid, None)

    async def download(self, blob: Blob, path: Path, progress: Progress | None = None) -> None:
        """Have a blob as the file at `path`, which is written over once all of it is there. What
        came is kept beside it if the rest does not come. Raises LocalError, Unreachable."""
        await trio.to_thread.run_sync(self._store.restrict, blob)
        with self._store.pinned(blob.cid):
            if self._store.holds(blob.cid):  # it came from a task that ran here
                await trio.to_thread.run_sync(self._store.copy_over, blob.cid, path)
                return
        await self._fetch(blob, lambda manifest: part_beside(manifest, path), progress)

    async def _fetch(
        self, blob: Blob, part: Callable[[Manifest], Part], progress: Progress | None
    ) -> None:
        known = {each.peer_id: each for each in (*blob.sources, *self.who_has(blob.cid))}
        blob = replace(blob, sources=tuple(known.values())[:MAX_SOURCES])
        async with self._places:
            await _Run(self, blob, part).until_over(progress or (lambda done, size: None))

    async def copies(self, inputs: Iterable[tuple[Path, Blob]]) -> None:
        """Put copies of blobs there; fetch what is not here. Raises LocalError, Unreachable."""
        for path, blob in inputs:
            with self._store.pinned(blob.cid):
                await self.fetch(blob)
                await trio.to_thread.run_sync(self._store.copy, blob.cid, path)

    async def take(self, blob: Blob, holder: str, *, durable: bool = False) -> None:
        """Have a blob here, until `holder` is released; `durable` as for `BlobStore.hold`. Raises
        LocalError, Unreachable."""
        await self.hold(holder, (blob.cid,), durable=durable)
        with self._store.pinned(blob.cid):
            await self.fetch(blob)

    async def keep(self, file: int, path: Path, rule: DataRule | None = None) -> Blob:
        """Move a file, open as `file`, into the cache for others to fetch, as far as the rule
        allows. Raises LocalError."""
        blob = await trio.to_thread.run_sync(self._store.adopt, file, path, KEPT_S, rule)
        return Blob(blob.cid, blob.size_bytes, (self.contact,), rule)

    async def add(self, content: Buffer, holder: str) -> Blob:
        """See `BlobStore.add`. Raises LocalError, InvalidInput."""
        blob = await trio.to_thread.run_sync(self._store.add, content, holder)
        return Blob(blob.cid, blob.size_bytes, (self.contact,))

    async def hold(self, holder: str, cids: Iterable[Cid], *, durable: bool = False) -> None:
        """See `BlobStore.hold`. Raises LocalError, InvalidInput."""
        hold = partial(self._store.hold, holder, tuple(cids), durable=durable)
        await trio.to_thread.run_sync(hold)

    async def release(self, holder: str) -> None:
        """See `BlobStore.release`. Raises LocalError."""
        await trio.to_thread.run_sync(self._store.release, holder)


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A chunk that is to be stored. `stored` is told its index and whether it was right."""

    index: int
    chunk: memoryview
    buffer: bytearray
    stored: Callable[[int, bool], None]


class _Run:
    """One fetch under way: performs what the machine wants, and tells it what happened."""

    def __init__(self, exchange: Exchange, blob: Blob, part: Callable[[Manifest], Part]) -> None:
        self._exchange = exchange
        self._blob = blob
        self._make_part = part
        self._part: Part | None = None
        self._machine = Fetch(blob, exchange._me, trio.current_time(), exchange.stall_s)
        self._streams: dict[PeerId, DataStream] = {}
        self._scopes: dict[PeerId, trio.CancelScope] = {}
        self._over = trio.Event()
        self._failure: Exception | None = None
        self._buffers: list[bytearray] = []  # free ones
        self._arrived: deque[_Arrived] = deque()  # bounded by the windows of the sources
        self._arrival = trio.Event()

    async def until_over(self, progress: Progress) -> None:
        """Raises LocalError, Unreachable."""
        try:
            async with trio.open_nursery() as self._nursery:
                while not self._over.is_set():
                    self._feed(fetching.Tick())
                    progress(self._machine.done_bytes, self._blob.size_bytes)
                    with trio.move_on_after(fetching.TICK_S):
                        await self._over.wait()
                if self._failure is None:
                    await self._finish()
                self._nursery.cancel_scope.cancel()
        finally:
            if self._part is not None:
                self._part.close()
        if self._failure is not None:
            raise self._failure  # from inside the nursery it would come out in a group
        progress(self._blob.size_bytes, self._blob.size_bytes)
        have = Have(self._exchange.contact.addresses)
        with trio.move_on_after(GOODBYE_S):
            for stream in self._streams.values():
                await stream.close(have)

    async def _finish(self) -> None:
        assert self._part is not None
        try:
            await trio.to_thread.run_sync(self._part.finish)
        except OSError as error:
            self._fail(_disk(error))

    def _feed(self, event: fetching.Event) -> None:
        for effect in self._machine.handle(event, trio.current_time()):
            match effect:
                case fetching.OpenSource(source, manifest):
                    scope = self._scopes[source.peer_id] = trio.CancelScope()
                    self._nursery.start_soon(self._source, source, manifest, scope)
                case fetching.WantChunk(peer, index):
                    # One that was cancelled has no stream any more, and nothing is told of that.
                    if (stream := self._streams.get(peer)) is not None:
                        stream.want(index)
                case fetching.CloseSource(peer):
                    self._scopes[peer].cancel()
                case fetching.Inspect(manifest):
                    self._nursery.start_soon(self._inspect, manifest)
                case fetching.Fetched():
                    self._over.set()
                case fetching.GaveUp(why):
                    self._fail(errors.Unreachable(f"{self._blob.cid} cannot be fetched: {why}"))

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._over.set()

    async def _inspect(self, manifest: Manifest) -> None:
        try:
            part = self._part = await trio.to_thread.run_sync(self._make_part, manifest)
            self._feed(fetching.Inspected(await trio.to_thread.run_sync(part.inspect)))
            await self._store_all(part)
        except (OSError, errors.LocalError) as error:
            self._fail(_disk(error) if isinstance(error, OSError) else error)

    async def _store_all(self, part: Part) -> None:
        """What came while the last of it was written goes to a thread together: on a busy machine
        each way there and back costs as much as a chunk does. Raises OSError."""
        while True:
            await self._arrival.wait()
            self._arrival = trio.Event()
            batch = list(self._arrived)
            self._arrived.clear()
            chunks = [(each.index, each.chunk) for each in batch]
            right = await trio.to_thread.run_sync(part.store, chunks)
            for each in batch:
                self._buffers.append(each.buffer)
                each.stored(each.index, each.index in right)

    async def _source(self, source: Contact, manifest: bool, scope: trio.CancelScope) -> None:
        with scope:
            event = await self._read(source, manifest)
        if not scope.cancelled_caught:
            log.debug("%s as a source of %s: %s", source.peer_id, self._blob.cid, event.why)
            self._feed(event)

    async def _read(self, source: Contact, manifest: bool) -> _End:
        """Until it ends, and how. Cancel it to end it earlier."""
        peer = source.peer_id
        opened_stream = None
        end: _End | None = None
        try:
            stack = self._exchange._stack
            opened_stream = await stack.open(source, PROTOCOL, timeout_s=DIAL_S)
            stream = DataStream(opened_stream, self._blob, stack.parameters.data_open_s)
            opened = await stream.begin(self._exchange.grant, manifest=manifest)
            if isinstance(opened, BlobRefused):
                end = fetching.SourceRefused(peer, opened.why)
            else:
                listed = Manifest.read(self._blob, opened.manifest) if manifest else None
                self._streams[peer] = stream
                self._feed(fetching.SourceOpened(peer, listed, opened.holders))
                end = await self._take(peer, stream)
        except (errors.ProtocolViolation, Malformed) as error:
            end = fetching.SourceRefused(peer, f"sent what is wrong: {error}")
        except (errors.RemoteError, errors.NodeClosed, IOException) as error:
            end = fetching.SourceLost(peer, str(error))
        except trio.TooSlowError:
            end = fetching.SourceLost(peer, "did not answer in time")
        finally:
            if end is not None or not self._over.is_set():
                self._streams.pop(peer, None)
                if opened_stream is not None:
                    opened_stream.abort("no longer a source")
        return end

    async def _take(self, peer: PeerId, stream: DataStream) -> _End:
        """Until the source refuses more, or what it sent is wrong."""
        places = trio.Semaphore(fetching.WINDOW_CHUNKS)
        ends: list[_End] = []

        def stored(index: int, right: bool) -> None:
            places.release()
            if right:
                self._feed(fetching.ChunkStored(peer, index))
            elif not ends:
                log.warning("%s sent wrong bytes for %s", peer, self._blob.cid)
                ends.append(fetching.SourceRefused(peer, "sent wrong bytes"))
                nursery.cancel_scope.cancel()

        async def take() -> None:
            try:
                while True:
                    await places.acquire()
                    buffer = self._buffers.pop() if self._buffers else bytearray(CHUNK_BYTES)
                    reply = await stream.next(memoryview(buffer))
                    if isinstance(reply, BlobRefused):
                        ends.append(fetching.SourceRefused(peer, reply.why))
                        break
                    self._arrived.append(_Arrived(*reply, buffer, stored))
                    self._arrival.set()
            except errors.ProtocolViolation as error:
                ends.append(fetching.SourceRefused(peer, f"sent what is wrong: {error}"))
            except (errors.RemoteError, IOException) as error:
                ends.append(fetching.SourceLost(peer, f"was cut: {error}"))
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.write_all)
            nursery.start_soon(take)
        return ends[0]


_End = fetching.SourceLost | fetching.SourceRefused


def _disk(error: OSError) -> errors.LocalError:
    return errors.LocalError(f"what was fetched cannot be kept: {error.strerror or error}")
