"""One fetch of a blob under way: performs what the machine wants (content/core/fetch.py)."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.content.core import fetch as fetching
from formation_p2p.content.core.fetch import Fetch, Manifest
from formation_p2p.content.core.messages import DELEGATED_S, BlobRefused, Delegation, Have
from formation_p2p.content.data_stream import PROTOCOL, DataStream, delegation_of
from formation_p2p.content.files import Part
from formation_p2p.content.places import UNKNOWN
from formation_p2p.core import errors
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.latest import Latest
from formation_p2p.machine.locks import KeyedLocks
from formation_p2p.net.transport.errors import IOException
from formation_p2p.records.core.codec import Malformed
from formation_p2p.workload.core.blob import CHUNK_BYTES, Blob

if TYPE_CHECKING:
    from formation_p2p.reach.stack import Stack


# Delegations: the owners of this node's leases sign that it reads for them. It asks for one where
# it needs one, and keeps it.
# Owners whose delegations are kept: as many as have leases here at once.
MAX_KEPT: Final = 256
_DIAL_S: Final = 20.0


class Delegations:
    """For the trio thread."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._kept = Latest[PeerId, Delegation](MAX_KEPT)
        self._turns = KeyedLocks[PeerId]()

    async def of(self, owner: PeerId, grant: bytes) -> Delegation | None:
        """The owner himself has signed it, and it holds for a while yet; None where he gives none.
        Raises RemoteError, IOException, TooSlowError where he cannot be asked."""
        async with self._turns.of(owner):
            kept = self._kept.get(owner)
            if kept is not None and kept.until_unix_s > time.time() + DELEGATED_S / 2:
                return kept
            self._kept.pop(owner, None)
            told = await self._ask(owner, grant)
            # With another owner's, this node would read for this one what that other may read.
            if told is None or told.owner != owner:
                return None
            self._kept[owner] = told
            return told

    async def _ask(self, owner: PeerId, grant: bytes) -> Delegation | None:
        opened = await self._stack.open(Contact(owner), PROTOCOL, timeout_s=_DIAL_S)
        try:
            return await delegation_of(opened, grant, self._stack.parameters.data_open_s)
        finally:
            opened.abort("nothing more is asked")


log = logging.getLogger(__name__)

# To dial a source, and to agree on the protocol.
DIAL_S: Final = 20.0
# To tell the sources that we have it all now; they need not know.
GOODBYE_S: Final = 2.0
# While others wait for their turn: of one that brings nothing, and of one that does.
IDLE_S: Final = 5.0
TURN_S: Final = 30.0

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A chunk that is to be stored. `stored` is told its index and whether it was right."""

    index: int
    chunk: memoryview
    stored: Callable[[int, bool], None]


class GaveWay(Exception):
    """It is to be asked for once more."""


class FetchRun:
    """One fetch under way: performs what the machine wants, and tells it what happened."""

    def __init__(
        self,
        stack: Stack,
        me: PeerId,
        grant: bytes,
        blob: Blob,
        part: Callable[[Manifest], Part],
        stall_s: float,
        delegations: Delegations,
        owner: PeerId = UNKNOWN,
        *,
        for_owner_alone: bool = False,
    ) -> None:
        """The blob is fetched for `owner`, who has a lease of this node. `for_owner_alone`: every
        other source is asked with a delegation of his, whatever this node itself may read."""
        self._stack = stack
        self._open_s = stack.parameters.data_open_s
        self._me = me
        self._grant = grant
        self._blob = blob
        self._owner = owner
        self._for_owner_alone = for_owner_alone
        self._delegations = delegations
        self._make_part = part
        self._part: Part | None = None
        self._machine = Fetch(blob, me, trio.current_time(), stall_s)
        self._streams: dict[PeerId, DataStream] = {}
        self._scopes: dict[PeerId, trio.CancelScope] = {}
        self._over = trio.Event()
        self.ended = trio.Event()
        self._failure: Exception | None = None
        self._buffers: list[memoryview] = []  # free ones
        self._joined: set[PeerId] = set()  # no more than have leases, or places to be held
        self._inspected_s: float | None = None
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
            if self._failure is not None:
                raise self._failure  # from inside the nursery it would come out in a group
        except BaseException:  # a cancellation too: it ends without all of it
            for each in self._streams.values():
                each.stream.abort("nothing more is wanted")
            raise
        finally:
            self.ended.set()
            if self._part is not None:
                self._part.close()
        progress(self._blob.size_bytes, self._blob.size_bytes)
        have = Have(self._stack.announced)
        with trio.move_on_after(GOODBYE_S):
            for stream in self._streams.values():
                await stream.close(have)

    def join(self, blob: Blob, owner: PeerId) -> bool:
        """Whether another one may wait until it has `ended`, by this reference."""
        if (blob.rule, blob.size_bytes) != (self._blob.rule, self._blob.size_bytes):
            return False
        if self._for_owner_alone and owner != self._owner:
            return False
        if not self._over.is_set() and owner not in self._joined:
            self._joined.add(owner)
            self._feed(fetching.Joined(blob.sources))
        return True

    @property
    def has_had_its_turn(self) -> bool:
        """Where others of the same content wait, which name it by another reference."""
        now_s = trio.current_time()
        if self._part is not None and self._inspected_s is None:
            return False  # what has come before is read, which brings it further
        is_idle = now_s >= self._machine.progress_s + IDLE_S
        return is_idle or (self._inspected_s is not None and now_s >= self._inspected_s + TURN_S)

    def give_way(self) -> None:
        """What has come stays for who goes on."""
        self._fail(GaveWay("another one has its turn"))

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
                        stream.want(index, self._room)
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
            kept = await trio.to_thread.run_sync(part.inspect)
            self._inspected_s = trio.current_time()
            self._feed(fetching.Inspected(kept))
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
                self._buffers.append(memoryview(each.chunk.obj))
                each.stored(each.index, each.index in right)

    def _room(self, size: int) -> memoryview:
        """For a chunk."""
        buffer = self._buffers.pop() if self._buffers else memoryview(bytearray(CHUNK_BYTES))
        return buffer[:size]

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
            delegation: Delegation | None = None
            if self._for_owner_alone and peer != self._owner:
                delegation = await self._delegated()
                if delegation is None:
                    why = "is not the one for whom it is fetched, and that one delegates nothing"
                    return fetching.SourceRefused(peer, why)
            while True:
                opened_stream = await self._stack.open(source, PROTOCOL, timeout_s=DIAL_S)
                stream = DataStream(opened_stream, self._blob, self._open_s)
                opened = await stream.begin(self._grant, manifest=manifest, delegation=delegation)
                if not isinstance(opened, BlobRefused) or delegation or peer == self._owner:
                    break
                # It may be the owner's to read, and not this node's.
                opened_stream.abort("refused")
                if (delegation := await self._delegated()) is None:
                    break
            if isinstance(opened, BlobRefused):
                end = fetching.SourceRefused(peer, opened.why)
            else:
                listed = Manifest.read(self._blob, opened.manifest) if manifest else None
                self._streams[peer] = stream
                self._feed(fetching.SourceOpened(peer, listed, opened.holders))
                end = await self._take(peer, stream, for_a_while=delegation is not None)
        except (errors.ProtocolViolation, Malformed) as error:
            end = fetching.SourceRefused(peer, f"sent what is wrong: {error}")
        except (errors.RemoteError, errors.NodeClosed, IOException) as error:
            end = fetching.SourceLost(peer, str(error))
        except trio.TooSlowError:
            end = fetching.SourceLost(peer, "did not answer in time")
        finally:
            # Those that are open once all is here are told so.
            if end is not None or not self._over.is_set() or peer not in self._streams:
                self._streams.pop(peer, None)
                if opened_stream is not None:
                    opened_stream.abort("no longer a source")
        return end

    async def _delegated(self) -> Delegation | None:
        """Of the owner, where he is another than this node. Raises as `Delegations.of`."""
        if self._owner in (UNKNOWN, self._me):
            return None
        return await self._delegations.of(self._owner, self._grant)

    async def _take(self, peer: PeerId, stream: DataStream, *, for_a_while: bool) -> _End:
        """Until the source refuses more, or what it sent is wrong. What it serves `for_a_while` it
        may be asked for once more."""
        ends: list[_End] = []
        refused = fetching.SourceLost if for_a_while else fetching.SourceRefused

        def stored(index: int, right: bool) -> None:
            if right:
                self._feed(fetching.ChunkStored(peer, index))
            elif not ends:
                log.warning("%s sent wrong bytes for %s", peer, self._blob.cid)
                ends.append(fetching.SourceRefused(peer, "sent wrong bytes"))
                nursery.cancel_scope.cancel()

        async def take() -> None:
            try:
                while True:
                    reply = await stream.next()
                    if isinstance(reply, BlobRefused):
                        ends.append(refused(peer, reply.why))
                        break
                    self._arrived.append(_Arrived(*reply, stored))
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
