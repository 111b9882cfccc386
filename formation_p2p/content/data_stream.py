"""The data protocol on its streams: one side serves chunks, the other asks for them.

What a stranger costs before it has shown a grant is one small frame: no disk is read for it. What
a member costs is bounded by the chunks that are in memory for it, and by the time that it may
take to read one.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.content.core import messages
from formation_p2p.content.core.messages import (
    AskDelegation,
    BlobRefused,
    Chunk,
    Delegated,
    Delegation,
    Have,
    Keep,
    Open,
    Opened,
    OpenPrivate,
    Want,
)
from formation_p2p.content.files import Content
from formation_p2p.content.places import Places
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import LocalError, ProtocolViolation
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import MIB
from formation_p2p.net.limits import MAX_DATA_STREAMS
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import FrameReader, encode_frame, read_frame
from formation_p2p.net.transport.parameters import DEFAULTS, NetParameters
from formation_p2p.workload.core.blob import CHUNK_BYTES, Blob, Cid, PrivateBlob

if TYPE_CHECKING:
    from formation_p2p.content.remote import PrivateContent
    from formation_p2p.net.limits import PeerLimits
    from formation_p2p.net.transport.stream import MuxedStream

log = logging.getLogger(__name__)

PROTOCOL: Final = "/formation/data/1.0.0"
# To take one chunk: a peer that reads less than 9 KiB/s keeps a place from others.
CHUNK_S: Final = 120.0
# To fetch what is to be held for another, and tell it so; and of large content, the least that
# comes in a second.
KEEP_S: Final = 60.0
KEEP_BYTES_PER_S: Final = MIB
# Chunks in memory for all who fetch from us, and of these for one of them: more would not make the
# link faster. So it takes 32 peers that do not read to keep others from being served.
MAX_SERVING: Final = 64
MAX_SERVING_OF_PEER: Final = 2


@dataclass(eq=False)
class DataServer:
    """`admit` judges a peer by its grant, and says why not; `content` blocks; `holders` lists
    the holders of a blob of which a reader is told, and `has` adds one. `private` looks up private
    blobs. `hold` fetches content from a peer, to hold it for that; it says why not, or nothing."""

    admit: Callable[[Contact, bytes], str | None]
    content: Callable[[Cid], Content | None]
    holders: Callable[[Cid, PeerId], tuple[Contact, ...]]
    has: Callable[[Cid, Contact], None]
    parameters: NetParameters
    private: Callable[[bytes, PeerId], PrivateContent | None] = lambda name, peer: None
    hold: Callable[[Contact, Keep], Awaitable[str]] | None = None
    # Signs that a peer reads for this node; None for a peer of which this node has no lease.
    delegate: Callable[[PeerId], Delegation | None] = lambda peer: None
    # Judges whether a member may read some content, by its reference.
    admit_to: Callable[[Contact, Open], str | None] = lambda peer, opening: None

    def __post_init__(self) -> None:
        self.serving = Places(MAX_SERVING, MAX_SERVING_OF_PEER)
        self._places = trio.CapacityLimiter(self.parameters.max_open_blobs)
        self._buffers: list[bytearray] = []  # free ones, which have had their pages
        self.sent_bytes = 0

    async def serve(self, stream: MuxedStream, peer: Contact, limits: PeerLimits) -> None:
        """One stream, until the peer finishes. Raises RemoteError, IOException, TooSlowError."""
        with (
            limits.stream("data", MAX_DATA_STREAMS),
            FrameReader(stream, limits, messages.MAX_REQUEST_BYTES) as frames,
        ):
            try:
                with trio.fail_after(self.parameters.data_open_s):
                    opening = _parsed(await frames.next())
                    if not isinstance(opening, _Opening):
                        raise ProtocolViolation("a data stream that does not begin with Open")
                    self._judge(peer, opening)
                    if isinstance(opening, AskDelegation):
                        await self._delegate(stream, peer)
                        return
                    if isinstance(opening, Open | OpenPrivate):
                        await self._places.acquire()
                if isinstance(opening, Keep):
                    with trio.fail_after(keep_s(opening.size_bytes)):
                        await self._hold(stream, peer, opening)
                    return
                try:
                    with trio.fail_after(self.parameters.data_open_s):
                        content = await self._content(opening, peer.peer_id)
                    if content is None:
                        raise _Refused("does not have it")
                    with content:
                        stream.send_much()
                        await self._serve(stream, peer, limits, frames, content, opening)
                finally:
                    self._places.release()
            except _Refused as refused:
                with trio.fail_after(self.parameters.data_open_s):
                    await stream.write(_framed(BlobRefused(str(refused))))

    async def _content(
        self, opening: Open | OpenPrivate, peer: PeerId
    ) -> Content | PrivateContent | None:
        if isinstance(opening, OpenPrivate):
            return self.private(opening.name, peer)
        return await trio.to_thread.run_sync(self.content, opening.cid)

    async def _hold(self, stream: MuxedStream, peer: Contact, asked: Keep) -> None:
        if self.hold is None:
            raise _Refused("holds nothing for others")
        if why := await self.hold(peer, asked):
            raise _Refused(why)
        await stream.write(_framed(Opened()))
        await stream.close()

    async def _delegate(self, stream: MuxedStream, peer: Contact) -> None:
        delegation = self.delegate(peer.peer_id)
        if delegation is None:
            raise _Refused("has no lease of you")
        await stream.write(_framed(Delegated(delegation)))
        await stream.close()

    def _judge(self, peer: Contact, opening: _Opening) -> None:
        why = self.admit(peer, opening.grant)
        if why is None and isinstance(opening, Open):
            why = self.admit_to(peer, opening)
        if why is not None:
            raise _Refused(why)

    async def _serve(
        self,
        stream: MuxedStream,
        peer: Contact,
        limits: PeerLimits,
        frames: FrameReader,
        content: Content | PrivateContent,
        opening: Open | OpenPrivate,
    ) -> None:
        opened = Opened()
        if isinstance(opening, Open):
            assert isinstance(content, Content)
            manifest = content.manifest.encode() if opening.manifest else b""
            opened = Opened(manifest, self.holders(opening.cid, peer.peer_id))
        # One deadline, which each step moves: to make one takes a tenth of what a chunk does.
        with trio.fail_after(self.parameters.data_open_s) as deadline:
            await stream.write(_framed(opened))
            admitted_s = trio.current_time()
            while True:
                if (frame := frames.next_now()) is None:
                    deadline.deadline = trio.current_time() + self.parameters.data_idle_s
                    frame = await frames.next()
                request = _parsed(frame)
                now_s = trio.current_time()
                if now_s >= admitted_s + self.parameters.data_admit_every_s:
                    admitted_s = now_s
                    self._judge(peer, opening)
                deadline.deadline = math.inf  # the wait for a place is bounded by the others'
                if request is not None:
                    await limits.data_bucket.wait()
                match request:
                    case None:
                        return
                    case Want(index) if index < content.chunks:
                        async with self.serving.of(peer.peer_id):
                            deadline.deadline = trio.current_time() + CHUNK_S
                            await self._send(stream, content, index)
                    case Have():
                        if isinstance(opening, Open):  # else it serves it to no other
                            self.has(opening.cid, Contact(peer.peer_id, request.addresses))
                        await trio.lowlevel.checkpoint()  # others have their turn
                    case _:
                        raise ProtocolViolation(f"{type(request).__name__} amid a data stream")

    async def _send(
        self, stream: MuxedStream, content: Content | PrivateContent, index: int
    ) -> None:
        buffer = self._buffers.pop() if self._buffers else bytearray(CHUNK_BYTES)
        try:
            chunk = content.read_now(index, memoryview(buffer))
            if chunk is None:
                chunk = await trio.to_thread.run_sync(content.read, index, memoryview(buffer))
            header = _framed(Chunk(index, len(chunk)))
            await stream.write_pieces([memoryview(header), chunk])
            self.sent_bytes += len(chunk)
        except LocalError as error:
            log.warning("a chunk is not served: %s", error)
            raise _Refused("cannot read it any more") from error
        finally:
            self._buffers.append(buffer)


_Opening = Open | OpenPrivate | Keep | AskDelegation


class _Refused(Exception):
    """The peer is told why, and the stream ends."""


@dataclass(eq=False)
class DataStream:
    """Our side of a stream to a peer that may have a blob. `begin` first; then `want` chunks,
    and take them with `next` in the order asked for; `close` at the end."""

    stream: MuxedStream
    blob: Blob | PrivateBlob
    open_s: float = DEFAULTS.data_open_s

    def __post_init__(self) -> None:
        self._asked: deque[int] = deque()
        self._unsaid: deque[bytes] = deque()
        self._more = trio.Event()

    async def begin(
        self, grant: bytes, *, manifest: bool, delegation: Delegation | None = None
    ) -> Opened | BlobRefused:
        """Raises RemoteError, IOException, TooSlowError."""
        with trio.fail_after(self.open_s):
            self.stream.take_much()
            opening = (
                OpenPrivate(grant, self.blob.name)
                if isinstance(self.blob, PrivateBlob)
                else Open(grant, self.blob.cid, manifest, self.blob.rule, delegation)
            )
            await self.stream.write(encode_frame(messages.pack_request(opening)))
            return await self._answer()

    async def keep(self, asked: Keep) -> Opened | BlobRefused:
        """In place of `begin`: have the peer fetch the blob, and hold it. Raises RemoteError,
        IOException, TooSlowError."""
        with trio.fail_after(keep_s(asked.size_bytes)):
            await self.stream.write(encode_frame(messages.pack_request(asked)))
            return await self._answer()

    def want(self, index: int, room: Callable[[int], memoryview]) -> None:
        """`room` is asked, with the size of the chunk, where it goes, once its source begins."""
        size = self.blob.chunk_bytes(index)
        self.stream.expect(_framed(Chunk(index, size)), lambda: room(size))
        self._asked.append(index)
        self._unsaid.append(encode_frame(messages.pack_request(Want(index))))
        self._more.set()

    async def write_all(self) -> None:
        """Write what is wanted, until cancelled. An end of the stream is for `next` to tell."""
        while True:
            while self._unsaid:
                wanted = b"".join(self._unsaid)
                self._unsaid.clear()
                try:
                    if not self.stream.write_now(wanted):
                        await self.stream.write(wanted)
                except IOException as error:
                    log.debug("nothing more can be wanted: %s", error)
                    return
            self._more = trio.Event()
            await self._more.wait()

    async def next(self) -> tuple[int, memoryview] | BlobRefused:
        """The next chunk, where its room is. Waits for as long as it takes: the caller has a
        deadline for each source. Raises RemoteError, IOException."""
        if (chunk := await self.stream.next_expected()) is not None:
            return self._asked.popleft(), chunk
        match await self._reply():
            case BlobRefused() as refused:
                return refused
            case Chunk(index, size) if self._asked and self._asked[0] == index:
                raise ProtocolViolation(f"chunk {index} has {size} bytes")
            case _:
                raise ProtocolViolation("something that was not asked for")

    async def close(self, have: Have) -> None:
        """Say that we have it all now, and finish. Nothing else may be writing any more."""
        try:
            await self.stream.write(encode_frame(messages.pack_request(have)))
            await self.stream.close()
        except IOException as error:
            log.debug("a data stream ended first: %s", error)
        if self._asked:  # of others as well: it is still on its way
            self.stream.abort("nothing more is wanted")

    async def _answer(self) -> Opened | BlobRefused:
        reply = await self._reply()
        if not isinstance(reply, Opened | BlobRefused):
            raise ProtocolViolation("something that was not asked for")
        return reply

    async def _reply(self) -> messages.Reply:
        return messages.parse_reply(await read_frame(self.stream, messages.MAX_REPLY_BYTES))


async def delegation_of(stream: MuxedStream, grant: bytes, open_s: float) -> Delegation | None:
    """The peer signs that this node reads for it; None where it has no lease of this node. Raises
    RemoteError, IOException, TooSlowError."""
    with trio.fail_after(open_s):
        await stream.write(encode_frame(messages.pack_request(AskDelegation(grant))))
        reply = messages.parse_reply(await read_frame(stream, messages.MAX_REPLY_BYTES))
    return reply.delegation if isinstance(reply, Delegated) else None


def keep_s(size_bytes: int) -> float:
    """To fetch so much, and tell it."""
    return KEEP_S + size_bytes / KEEP_BYTES_PER_S


def _parsed(frame: bytes | None) -> messages.Request | None:
    return None if frame is None else messages.parse_request(frame)


def _framed(reply: messages.Reply) -> bytes:
    return encode_frame(messages.pack_reply(reply))
