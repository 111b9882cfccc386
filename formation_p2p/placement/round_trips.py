"""How far other peers are: the round trip times that were measured on connections with them.

What lies in between can only add to a round trip. So a shorter one than was thought counts at
once, and a longer one bit by bit: a queue that fills for a moment moves nobody.

Source of the weight: Jacobson, "Congestion Avoidance and Control", 1988 (RFC 6298, section 2).
"""

from __future__ import annotations

from typing import Final

from formation_p2p.effects import Moment
from formation_p2p.identity import PeerId

# As many as a group of tasks keeps in mind (dispatch/group.py).
MAX_PEERS: Final = 1024
# Routes change. On a connection that is kept it is measured again within 64 s.
FORGET_S: Final = 600.0
# A minute: no connection that is slower is kept (host/net_yamux.py).
MAX_RTT_US: Final = 60_000_000
# From here on farther makes no difference: as ICN has it.
FAR_US: Final = 500_000


class RoundTrips:
    """Of the peer `own`, which is no distance from itself."""

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self._known: dict[PeerId, tuple[int, float]] = {}  # the latest measured at the end

    def measured(self, peer_id: PeerId, rtt_us: int, now: Moment) -> None:
        """One round trip with a peer took so long."""
        known_us = self.rtt_us(peer_id, now)
        self._known.pop(peer_id, None)
        rtt_us = min(max(rtt_us, 1), MAX_RTT_US)
        if known_us is not None and rtt_us > known_us:
            rtt_us = known_us + (rtt_us - known_us) // 8
        if len(self._known) >= MAX_PEERS:
            del self._known[next(iter(self._known))]
        self._known[peer_id] = (rtt_us, now.mono_s)

    def rtt_us(self, peer_id: PeerId, now: Moment) -> int | None:
        """None where it was not measured, or too long ago."""
        if peer_id == self._own:
            return 0
        known = self._known.get(peer_id)
        if known is None or now.mono_s - known[1] > FORGET_S:
            return None
        return known[0]

    def __len__(self) -> int:
        return len(self._known)


def nearness(rtt_us: int | None) -> float:
    """From 1 for no time at all to 0 for half a second, in proportion; 0 for what is not known."""
    return 0.0 if rtt_us is None else 1.0 - min(max(rtt_us, 0), FAR_US) / FAR_US
