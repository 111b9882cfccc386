"""Length-prefixed frames on a byte stream, as libp2p's protocols have them.

A frame is an unsigned varint (LEB128, at most what its bound needs) and that many bytes.
Source: multiformats unsigned-varint; libp2p kad-dht specification, "RPC messages".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final, Protocol

import trio

from formation_p2p.core.errors import InvalidInput, ProtocolViolation, Unreachable
from formation_p2p.core.units import KIB
from formation_p2p.leases.core.messages import MAX_FRAME_BYTES
from formation_p2p.net.transport.errors import IOException, StreamEOF
from formation_p2p.net.transport.parameters import NetParameters
from formation_p2p.net.transport.raw import ByteStream
from formation_p2p.net.transport.stream import WINDOW_BYTES, MuxedStream
from formation_p2p.records.core.protobuf import varint

# kad RPC: a request brings one signed profile of 4 KiB at the most; a response up to 32 of them,
# and twenty closest peers. Anybody may send requests, so their bound is what a stranger can hold.
MAX_KAD_REQUEST_BYTES: Final = 16 * KIB
MAX_KAD_FRAME_BYTES: Final = 256 * KIB
# Work: a task's payload or result travels in one frame.
MAX_WORK_FRAME_BYTES: Final = MAX_FRAME_BYTES
# Read at once where no large frame has begun. A frame may have two bytes, and each that waits
# takes twenty times as much here: a whole window of them would take 5 MiB, and 0.2 s to cut.
READ_BYTES: Final = 4 * KIB


def check_request_size(frame: bytes) -> None:
    """Of a request of the DHT. Raises InvalidInput."""
    _check_size(frame, MAX_KAD_REQUEST_BYTES)


def check_work_size(frame: bytes) -> None:
    """Raises InvalidInput."""
    _check_size(frame, MAX_WORK_FRAME_BYTES)


def _check_size(frame: bytes, limit: int) -> None:
    if len(frame) > limit:
        raise InvalidInput("frame", f"has {len(frame)} bytes, of at most {limit}")


# Of the length before a frame of the largest size.
MAX_LENGTH_BYTES: Final = len(varint(MAX_WORK_FRAME_BYTES))


def encode_frame(frame: bytes) -> bytes:
    """`frame` with its length before it."""
    return varint(len(frame)) + frame


@dataclass(eq=False)
class Deframer:
    """Cuts what a stream brings into frames. Holds at most one unfinished frame.

    `reserve` is called with the size of each frame before a byte of it is kept, and `release`
    with the same size once it is handed out or dropped. `reserve` may refuse by raising
    ProtocolViolation: that is how a peer's frames are bounded over all its streams.
    """

    max_frame_bytes: int
    _: KW_ONLY
    reserve: Callable[[int], None] = lambda size: None
    release: Callable[[int], None] = lambda size: None

    def __post_init__(self) -> None:
        self._max_prefix_bytes = len(varint(self.max_frame_bytes))
        self._prefix = bytearray()
        self._frame: bytearray | None = None
        self._frame_bytes = 0

    @property
    def inside_frame(self) -> bool:
        """Whether a frame has begun and not ended: an end of the stream here is a cut."""
        return self._frame is not None or bool(self._prefix)

    @property
    def missing_bytes(self) -> int:
        """Of the frame that has begun; 0 where its length is not known yet."""
        return 0 if self._frame is None else self._frame_bytes - len(self._frame)

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes, in order. Raises ProtocolViolation."""
        frames: list[bytes] = []
        view = memoryview(data)
        while view:
            if self._frame is None:
                view = self._read_prefix(view)
            else:
                missing = self._frame_bytes - len(self._frame)
                self._frame += view[:missing]
                view = view[missing:]
            if self._frame is not None and len(self._frame) == self._frame_bytes:
                frames.append(bytes(self._frame))
                self.drop()
        return frames

    def drop(self) -> None:
        """Forget what is unfinished, when the stream ends."""
        if self._frame is not None:
            self.release(self._frame_bytes)
        self._frame = None
        self._prefix.clear()

    def _read_prefix(self, view: memoryview) -> memoryview:
        byte = view[0]
        self._prefix.append(byte)
        if byte & 0x80:
            if len(self._prefix) >= self._max_prefix_bytes:
                raise ProtocolViolation(
                    f"a frame's length has more than {self._max_prefix_bytes} bytes"
                )
            return view[1:]
        length = sum((part & 0x7F) << (7 * i) for i, part in enumerate(self._prefix))
        if length > self.max_frame_bytes:
            raise ProtocolViolation(
                f"a frame of {length} bytes, of at most {self.max_frame_bytes} allowed"
            )
        self._prefix.clear()
        self.reserve(length)
        self._frame_bytes = length
        self._frame = bytearray()
        return view[1:]


class FrameLimits(Protocol):
    """Of the unfinished frames of one peer. `reserve` raises ProtocolViolation."""

    @property
    def parameters(self) -> NetParameters: ...
    def reserve(self, size: int, *, asked: bool = False) -> None: ...
    def release(self, size: int, *, asked: bool = False) -> None: ...


class FrameReader(AbstractContextManager["FrameReader"]):
    """The frames of one stream, one by one. A context manager, which gives back what it holds.

    After any exception of `next`, cancellation included, nothing more can be read.
    """

    def __init__(
        self, stream: MuxedStream, limits: FrameLimits, max_frame_bytes: int, *, asked: bool = False
    ) -> None:
        """`asked`: the frames are what we asked the peer for."""
        self._stream = stream
        self._deframer = Deframer(
            max_frame_bytes,
            reserve=partial(limits.reserve, asked=asked),
            release=partial(limits.release, asked=asked),
        )
        self._parameters = limits.parameters
        self._ready: deque[bytes] = deque()
        self._until_s = math.inf  # when the frame that has begun must have ended

    def __exit__(self, *exc: object) -> None:
        self._deframer.drop()

    @property
    def is_dry(self) -> bool:
        """Whether all that has arrived was handed out, but for the beginning of a frame."""
        return not self._ready and not self._stream.unread

    def next_now(self) -> bytes | None:
        """As `next`, of what has been read; None where it would wait. The caller has others have
        their turn."""
        return self._ready.popleft() if self._ready else None

    async def next(self) -> bytes | None:
        """The next frame; None where the peer finished. Raises ProtocolViolation, Unreachable."""
        if self._ready:  # others have their turn between two frames that came together
            await trio.lowlevel.checkpoint()
        try:
            while not self._ready:
                size = max(READ_BYTES, min(self._deframer.missing_bytes, WINDOW_BYTES))
                if self._until_s == math.inf:
                    data = await self._stream.read(size)
                else:
                    with trio.fail_at(self._until_s):
                        data = await self._stream.read(size)
                self._ready.extend(self._deframer.feed(data))
                if self._ready or not self._deframer.inside_frame:
                    self._until_s = math.inf
                if self._deframer.inside_frame and self._until_s == math.inf:
                    most_s = self._deframer.missing_bytes / self._parameters.slowest_bytes_per_s
                    most_s += self._parameters.frame_stall_s
                    self._until_s = trio.current_time() + most_s
        except StreamEOF:
            if self._deframer.inside_frame:
                raise ProtocolViolation("a stream that ends inside a frame") from None
            return None
        except trio.TooSlowError:
            raise Unreachable("a frame took too long to arrive") from None
        except IOException as error:
            raise Unreachable(str(error)) from error
        return self._ready.popleft()


async def read_frame(stream: ByteStream, max_bytes: int) -> bytes:
    """One frame, and no byte of what follows it: that is for another reader.

    Raises ProtocolViolation, IOException.
    """
    deframer = Deframer(max_bytes)
    while True:
        size = deframer.missing_bytes or 1
        # It comes byte by byte: what is there already is taken without a wait.
        data = stream.read_now(size) if isinstance(stream, MuxedStream) else b""
        if frames := deframer.feed(data or await stream.read(size)):
            return frames[0]
