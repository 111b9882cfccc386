"""How fast bytes come from a peer: a short bulk test.

| who | says |
| --- | --- |
| asker | a frame: its grant |
| peer | a frame: empty, or why not; then RATE_BYTES zeros, or what it sends of them in RATE_S |

It must not be of use to flood anybody: the bytes go where the asker has a connection, to members
alone, and a node sends them to one peer at a time and no sooner than EVERY_S after the last one
began. So they are at most 4 MiB a second on the average, whatever the number of askers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation, RemoteError
from formation_p2p.core.units import KIB, MIB
from formation_p2p.net.transport.errors import IOException, StreamEOF
from formation_p2p.net.transport.frames import FrameReader, encode_frame, read_frame
from formation_p2p.records.core.profile import MAX_GRANT_BYTES

if TYPE_CHECKING:
    from formation_p2p.net.limits import PeerLimits
    from formation_p2p.net.transport.stream import MuxedStream

PROTOCOL: Final = "/formation/rate/1.0.0"
RATE_BYTES: Final = 16 * MIB
RATE_S: Final = 3.0
EVERY_S: Final = 4.0
# To ask, and to answer that.
OPEN_S: Final = 5.0
MAX_REASON_BYTES: Final = 512
PIECE: Final = bytes(256 * KIB)


@dataclass(eq=False)
class RateServer:
    """`admit` judges a peer by its grant, and says why not. `rate_s` is as RATE_S."""

    admit: Callable[[Contact, bytes], str | None]
    rate_s: float = RATE_S

    def __post_init__(self) -> None:
        self._next_s = float("-inf")

    async def serve(self, stream: MuxedStream, peer: Contact, limits: PeerLimits) -> None:
        """Raises RemoteError, IOException, TooSlowError."""
        with (
            limits.stream("rate", 1),
            trio.fail_after(OPEN_S),
            FrameReader(stream, limits, MAX_GRANT_BYTES) as frames,
        ):
            why = self._judge(peer, await frames.next() or b"")
            await stream.write(encode_frame(why.encode()[:MAX_REASON_BYTES]))
        if not why:
            stream.send_much()
            with trio.move_on_after(self.rate_s):
                for _ in range(RATE_BYTES // len(PIECE)):
                    await stream.write(PIECE)

    def _judge(self, peer: Contact, grant: bytes) -> str:
        why = self.admit(peer, grant)
        if why is not None:
            return why
        now_s = trio.current_time()
        if now_s < self._next_s:
            return f"it has just sent to another; ask again in {self._next_s - now_s:.0f} s"
        self._next_s = now_s + EVERY_S
        return ""


async def received(stream: MuxedStream, grant: bytes) -> tuple[int, float]:
    """Ask for the test. Returns how many bytes came and how many seconds they took, from the
    first. Raises RemoteError with the peer's reason, and for what else fails; IOException,
    TooSlowError."""
    with trio.fail_after(OPEN_S):
        stream.take_much()
        await stream.write(encode_frame(grant))
        reason = await read_frame(stream, MAX_REASON_BYTES)
    if reason:
        raise RemoteError(f"it sends nothing: {reason.decode(errors='replace')}")
    came_bytes, began_s = 0, trio.current_time()
    with trio.move_on_after(RATE_S + OPEN_S):
        while came_bytes < RATE_BYTES:
            try:
                came_bytes += len(await stream.read(len(PIECE)))
            except (StreamEOF, IOException):
                break  # it had no time for more
    took_s = trio.current_time() - began_s
    if not came_bytes:
        raise ProtocolViolation("it agreed to send, and sent nothing")
    return came_bytes, took_s
