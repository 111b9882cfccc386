"""Frames read from a stream, counted against the limits of the peer that sends them."""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Self

import trio
from libp2p.io.exceptions import IOException
from libp2p.network.stream.exceptions import StreamEOF

from formation_p2p.core.errors import ProtocolViolation, Unreachable
from formation_p2p.core.units import KIB
from formation_p2p.host.net.limits import PeerLimits
from formation_p2p.host.net.protocols.frames import Deframer
from formation_p2p.host.net.transport.stream import WINDOW_BYTES, MuxedStream

# Read at once where no large frame has begun. A frame may have two bytes, and each that waits
# takes twenty times as much here: a whole window of them would take 5 MiB, and 0.2 s to cut.
READ_BYTES: Final = 4 * KIB


class FrameReader:
    """The frames of one stream, one by one. A context manager, which gives back what it holds.

    After any exception of `next`, cancellation included, nothing more can be read.
    """

    def __init__(self, stream: MuxedStream, limits: PeerLimits, max_frame_bytes: int) -> None:
        self._stream = stream
        self._deframer = Deframer(max_frame_bytes, reserve=limits.reserve, release=limits.release)
        self._stall_s = limits.parameters.frame_stall_s
        self._slowest = limits.parameters.slowest_bytes_per_s
        self._ready: deque[bytes] = deque()
        self._until_s = math.inf  # when the frame that has begun must have ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._deframer.drop()

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
                    most_s = self._stall_s + self._deframer.missing_bytes / self._slowest
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
