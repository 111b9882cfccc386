"""What one peer may have of us at a time, over all its connections and streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import trio

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import MIB
from formation_p2p.net.transport.frames import (
    MAX_KAD_FRAME_BYTES,
    MAX_KAD_REQUEST_BYTES,
    MAX_WORK_FRAME_BYTES,
)
from formation_p2p.net.transport.parameters import NetParameters
from formation_p2p.net.transport.strangers import OWN_BYTES, Share, Strangers
from formation_p2p.net.transport.token_bucket import TokenBucket

_T = TypeVar("_T")

# A foreign implementation has one stream for each request and asks ten peers at once.
MAX_KAD_STREAMS: Final = 32
# One that each side opened, one for what is urgent, and those that take over from dead ones.
MAX_WORK_STREAMS: Final = 5
# One for each blob that a peer fetches from us at a time.
MAX_DATA_STREAMS: Final = 8
# Unfinished frames of a peer: all its kad streams full, and two large work frames.
MAX_FRAME_BYTES: Final = (
    MAX_KAD_STREAMS * MAX_KAD_REQUEST_BYTES + MAX_KAD_FRAME_BYTES + 2 * MAX_WORK_FRAME_BYTES
)
# Of all peers. Small frames are left out of it, so that large ones cannot crowd them out.
MAX_LARGE_FRAME_BYTES: Final = 512 * MIB
SMALL_FRAME_BYTES: Final = MAX_KAD_FRAME_BYTES
# Peers that share a lease with us, and may send large ones: as many as a worker has leases.
MAX_LEASE_PEERS: Final = 1024
# Requests of a peer that are being answered at once; the others wait in their streams.
MAX_ANSWERING: Final = 4
# The events of a few hundred short tasks a second, from a peer that a lease is shared with.
WORK_FRAMES_PER_S: Final = 1024
# From anybody else: it negotiates, or wants to keep a core busy. A quarter of one, as for kad.
STRANGERS_FRAMES_PER_S: Final = 256
# Chunks asked for. One of 1 MiB costs about 1 ms; small ones cost a fraction.
DATA_FRAMES_PER_S: Final = 2048
# Messages of the DHT that are none: each costs the stream, and a peer that goes on the connection.
# A foreign implementation may know fields or sizes that we refuse.
OFFENCES_PER_S: Final = 1
# Peers remembered: some times as many as may be connected.
MAX_REMEMBERED: Final = 1024


@contextmanager
def counted(counts: Counter[_T], what: _T) -> Iterator[None]:
    """One more of it for the length of a block. What there is none of is not in `counts`."""
    counts[what] += 1
    try:
        yield
    finally:
        counts[what] -= 1
        if not counts[what]:
            del counts[what]


class PeerLimits:
    """One peer's part."""

    def __init__(self, peer: PeerId, all_peers: PeerLimitsTable) -> None:
        self._peer = peer
        self.parameters = all_peers.parameters
        self._all = all_peers
        self._frame_bytes = 0
        self.share = Share(all_peers.strangers.bytes, OWN_BYTES)
        self._streams: Counter[str] = Counter()
        self.kad_bucket = TokenBucket(all_peers.parameters.kad_frames_per_s)
        self._work_bucket = TokenBucket(WORK_FRAMES_PER_S)
        self._strangers_bucket = TokenBucket(STRANGERS_FRAMES_PER_S)
        self.data_bucket = TokenBucket(DATA_FRAMES_PER_S)
        self.offences = TokenBucket(OFFENCES_PER_S)
        self.answering = trio.CapacityLimiter(MAX_ANSWERING)

    @property
    def work_bucket(self) -> TokenBucket:
        return self._work_bucket if self._all.has_lease(self._peer) else self._strangers_bucket

    @contextmanager
    def stream(self, kind: str, limit: int) -> Iterator[None]:
        """Raises ProtocolViolation where the peer has `limit` streams of this kind already."""
        if self._streams[kind] >= limit:
            raise ProtocolViolation(f"more than {limit} {kind} streams at once")
        with counted(self._streams, kind):
            yield

    def reserve(self, size: int, *, asked: bool = False) -> None:
        """Raises ProtocolViolation where the frames under way would be too much. A frame that was
        asked for takes nothing of what strangers have: we ask a few at a time."""
        large = size if size > SMALL_FRAME_BYTES else 0
        if large and not self._all.has_lease(self._peer):
            # Its announcement alone holds room, of which there is not enough for everybody.
            raise ProtocolViolation(f"a frame of {size} bytes from a peer that shares no lease")
        if self._frame_bytes + size > MAX_FRAME_BYTES:
            raise ProtocolViolation(f"more than {MAX_FRAME_BYTES} bytes of unfinished frames")
        if self._all.large_frame_bytes + large > MAX_LARGE_FRAME_BYTES:
            raise ProtocolViolation("too many large frames of all peers at once; try again later")
        if not asked:
            if not self.share.fits(size):
                raise ProtocolViolation("too many unfinished frames of all strangers at once")
            self.share.take(size)
        self._frame_bytes += size
        self._all.large_frame_bytes += large

    def release(self, size: int, *, asked: bool = False) -> None:
        if not asked:
            self.share.give_back(size)
        self._frame_bytes -= size
        self._all.large_frame_bytes -= size if size > SMALL_FRAME_BYTES else 0


class PeerLimitsTable:
    """Of the peers that were there lately: one that comes back has the limits that it had."""

    def __init__(self, parameters: NetParameters) -> None:
        self.parameters = parameters
        self.strangers = Strangers()
        self.large_frame_bytes = 0
        self._limits: dict[PeerId, PeerLimits] = {}  # the latest at the end
        self._lease_peers: dict[PeerId, None] = {}  # likewise

    def of(self, peer: PeerId) -> PeerLimits:
        limits = self._limits.pop(peer, None)
        if limits is None:
            limits = PeerLimits(peer, self)
            if self.has_lease(peer):
                limits.share.exempt()
        self._limits[peer] = limits
        if len(self._limits) > MAX_REMEMBERED:
            del self._limits[next(iter(self._limits))]
        return limits

    def note_lease(self, peer: PeerId) -> None:
        self._lease_peers.pop(peer, None)
        self._lease_peers[peer] = None
        if peer in self._limits:
            self._limits[peer].share.exempt()
        if len(self._lease_peers) > MAX_LEASE_PEERS:
            del self._lease_peers[next(iter(self._lease_peers))]

    def has_lease(self, peer: PeerId) -> bool:
        return peer in self._lease_peers
