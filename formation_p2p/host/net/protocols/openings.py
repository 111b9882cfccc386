"""How many streams are opened with one peer at a time."""

from __future__ import annotations

from typing import Final

import trio

from formation_p2p.core.identity import PeerId

# Until the peer has read what a stream is for, it takes one of the places that the peer has for
# streams of all protocols (MAX_INBOUND_STREAMS of transport/yamux.py).
MAX_OPENING: Final = 16


class Openings:
    """A limiter for each peer that streams are being opened with."""

    def __init__(self) -> None:
        self._limiters: dict[PeerId, trio.CapacityLimiter] = {}

    def of(self, peer: PeerId) -> trio.CapacityLimiter:
        """To be held while a stream is opened with the peer."""
        limiter = self._limiters.get(peer)
        if limiter is None:
            for each, one in list(self._limiters.items()):
                if not one.borrowed_tokens:  # so that there are no more than are in use
                    del self._limiters[each]
            limiter = self._limiters[peer] = trio.CapacityLimiter(MAX_OPENING)
        return limiter
