"""One open stream of a work session, as `work.py` has several with a peer."""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.net.connection import Connection
from formation_p2p.net.transport.frames import FrameReader
from formation_p2p.net.transport.stream import MuxedStream


@dataclass(eq=False)
class WorkStream:
    """`frames` is there while it is read."""

    stream: MuxedStream
    connection: Connection
    frames: FrameReader | None = None
    is_handing_out: bool = False

    @property
    def is_relayed(self) -> bool:
        return self.connection.via is not None

    @property
    def is_dry(self) -> bool:
        """Whether all frames that have arrived were handed out."""
        is_read = not self.stream.unread if self.frames is None else self.frames.is_dry
        return is_read and not self.is_handing_out
