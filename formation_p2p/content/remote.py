"""Private blobs of other machines, over the data protocol.

They have one source, their owner, and what comes over the connection to it is what it has sent
(Noise): nothing is hashed, and each chunk is read into its place. A connection that breaks is made
again, and what has come stays.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import trio

from formation_p2p.content.core.fetch import FIRST_RETRY_S, LAST_RETRY_S, PATIENCE_S, STALL_S
from formation_p2p.content.core.messages import BlobRefused, Have
from formation_p2p.content.data_stream import PROTOCOL, DataStream
from formation_p2p.content.lent_blob import Lent
from formation_p2p.content.mapping import mapped
from formation_p2p.content.places import Places
from formation_p2p.core.errors import LocalError, ProtocolViolation, RemoteError, Unreachable
from formation_p2p.machine.platform import keeps_its_size
from formation_p2p.net.transport.errors import IOException
from formation_p2p.workload.core.blob import CHUNK_BYTES, PrivateBlob

if TYPE_CHECKING:
    from formation_p2p.reach.stack import Stack

log = logging.getLogger(__name__)

# At once; the others wait. Each is of a call that waits for it, and comes to where it is to lie.
# Of these, from one owner, who may be as slow as he likes.
MAX_FETCHES: Final = 32
MAX_FETCHES_OF_OWNER: Final = 8
# Asked for and not here yet: as much as hides a round trip of 60 ms at 2 Gbit/s.
_WINDOW_CHUNKS: Final = 16
# Asked for in one message: each costs both ends as much as a chunk's own.
_ASKED_CHUNKS: Final = 4
_DIAL_S: Final = 20.0
_GOODBYE_S: Final = 2.0


class RemoteBlobs:
    """For the trio thread. `grant` shows that this node belongs to the network."""

    def __init__(self, stack: Stack, grant: bytes, patience_s: float = PATIENCE_S) -> None:
        self._stack = stack
        self.grant = grant
        self._patience_s = patience_s
        self._places = Places(MAX_FETCHES, MAX_FETCHES_OF_OWNER)

    @property
    def announced(self) -> tuple[str, ...]:
        """Where others reach this node."""
        return self._stack.announced

    async def fetch(self, blob: PrivateBlob, into: memoryview) -> None:
        """Raises Unreachable, NodeClosed; RemoteError where its owner does not have it."""
        async with self._places.of(blob.owner.peer_id):
            fetch = _Fetch(blob, into)
            retry_s = FIRST_RETRY_S
            progress_s, done = trio.current_time(), 0
            while fetch.done < blob.chunks:
                try:
                    await self._read(fetch)
                except (_Refused, ProtocolViolation):
                    raise
                except (RemoteError, IOException, trio.TooSlowError) as error:
                    why = str(error) or "it did not answer in time"
                    log.debug("%s as the source of a call's data: %s", blob.owner.peer_id, why)
                    if fetch.done > done:
                        progress_s, done, retry_s = trio.current_time(), fetch.done, FIRST_RETRY_S
                    if trio.current_time() + retry_s > progress_s + self._patience_s:
                        raise Unreachable(f"{blob.owner.peer_id} cannot be read: {why}") from error
                    await trio.sleep(retry_s)
                    retry_s = min(2 * retry_s, LAST_RETRY_S)

    async def _read(self, fetch: _Fetch) -> None:
        """The rest, as far as it goes. Raises RemoteError, IOException, TooSlowError."""
        blob = fetch.blob
        opened = await self._stack.open(blob.owner, PROTOCOL, timeout_s=_DIAL_S)
        finished = False
        try:
            stream = DataStream(opened, blob, self._stack.parameters.data_open_s)
            reply = await stream.begin(self.grant, manifest=False)
            if isinstance(reply, BlobRefused):
                raise _Refused(f"{blob.owner.peer_id} {reply.why}")
            problem: Exception | None = None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.write_all)
                try:
                    await fetch.take(stream)
                except (RemoteError, IOException, trio.TooSlowError) as error:
                    problem = error  # from inside the nursery it would come out in a group
                nursery.cancel_scope.cancel()
            if problem is not None:
                raise problem
            with trio.move_on_after(_GOODBYE_S):
                await stream.close(Have())
                finished = True
        finally:
            if not finished:
                opened.abort("no longer a source")


class _Refused(RemoteError):
    """The owner does not serve it any more."""


class _Fetch:
    """What has come of one blob: `done` chunks, in their order."""

    def __init__(self, blob: PrivateBlob, into: memoryview) -> None:
        self.blob = blob
        self.done = 0
        self._into = into

    async def take(self, stream: DataStream) -> None:
        """Raises RemoteError, IOException, TooSlowError."""
        wanted = self.done
        with trio.fail_after(STALL_S) as deadline:
            while self.done < self.blob.chunks:
                if wanted <= self.done + _WINDOW_CHUNKS - _ASKED_CHUNKS:
                    for index in range(wanted, min(self.done + _WINDOW_CHUNKS, self.blob.chunks)):
                        stream.want(index, partial(self._room, index))
                        wanted += 1
                deadline.deadline = trio.current_time() + STALL_S
                reply = await stream.next()
                if isinstance(reply, BlobRefused):
                    raise _Refused(f"{self.blob.owner.peer_id} {reply.why}")
                self.done += 1

    def _room(self, index: int, size: int) -> memoryview:
        at = index * CHUNK_BYTES
        return self._into[at : at + size]


class PrivateContent:
    """A private blob of this node, to be served chunk by chunk. A context manager. Memory is
    mapped: to have the kernel copy it costs five times as much as to look at it. What this process
    has mapped is read there: a new mapping gets its pages one by one, as they are touched."""

    def __init__(self, lent: Lent) -> None:
        self._lent = lent
        self._memory = lent.memory
        if self._memory is None and keeps_its_size(lent.file):
            with suppress(OSError):  # a process has 65,530 mappings; then it is read
                self._memory = mapped(lent.size_bytes, lent.file)
        self.chunks = -(-lent.size_bytes // CHUNK_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory = None
        self._lent.done(clean=True)

    def read_now(self, index: int, buffer: memoryview) -> memoryview:
        """As `Content.read_now`. It is in memory, as a rule, and `buffer` not used then."""
        return self.read(index, buffer)

    def read(self, index: int, buffer: memoryview) -> memoryview:
        at = index * CHUNK_BYTES
        size = min(CHUNK_BYTES, self._lent.size_bytes - at)
        if self._memory is not None:
            return self._memory[at : at + size]
        chunk = buffer[:size]
        if os.preadv(self._lent.file, [chunk], at) != len(chunk):
            raise LocalError("a private blob is cut short")
        return chunk
