"""Length-prefixed frames on a byte stream, as libp2p's protocols have them.

A frame is an unsigned varint (LEB128, at most what its bound needs) and that many bytes.
Source: multiformats unsigned-varint; libp2p kad-dht specification, "RPC messages".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.units import KIB, MIB

# kad RPC: a request brings one signed profile of 4 KiB at the most; a response up to 32 of them,
# and twenty closest peers. Anybody may send requests, so their bound is what a stranger can hold.
MAX_KAD_REQUEST_BYTES: Final = 16 * KIB
MAX_KAD_FRAME_BYTES: Final = 256 * KIB
# Work: a task's payload or result travels in one frame.
MAX_WORK_FRAME_BYTES: Final = 16 * MIB


def encode_frame(frame: bytes) -> bytes:
    """`frame` with its length before it."""
    return encode_length(len(frame)) + frame


def encode_length(length: int) -> bytes:
    out = bytearray()
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)


class Deframer:
    """Cuts what a stream brings into frames. Holds at most one unfinished frame.

    `reserve` is called with the size of each frame before a byte of it is kept, and `release`
    with the same size once it is handed out or dropped. `reserve` may refuse by raising
    ProtocolViolation: that is how a peer's frames are bounded over all its streams.
    """

    def __init__(
        self,
        max_frame_bytes: int,
        *,
        reserve: Callable[[int], None] = lambda size: None,
        release: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._max_prefix_bytes = len(encode_length(max_frame_bytes))
        self._reserve = reserve
        self._release = release
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
            self._release(self._frame_bytes)
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
        if length > self._max_frame_bytes:
            raise ProtocolViolation(
                f"a frame of {length} bytes, of at most {self._max_frame_bytes} allowed"
            )
        self._prefix.clear()
        self._reserve(length)
        self._frame_bytes = length
        self._frame = bytearray()
        return view[1:]
