"""What is measured of the way to a peer."""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.identity import PeerId
from formation_p2p.core.nat.paths import Path


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One echo of a peer, in microseconds. `via` is the gate that relays, or None."""

    peer_id: PeerId
    path: Path
    via: PeerId | None
    rtt_us: int


@dataclass(frozen=True, slots=True)
class Rate:
    """So many bytes came from a peer in so long."""

    peer_id: PeerId
    path: Path
    via: PeerId | None
    size_bytes: int
    took_us: int

    @property
    def bytes_per_s(self) -> int:
        return self.size_bytes * 1_000_000 // max(self.took_us, 1)
