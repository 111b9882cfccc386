"""Round trip times, measured on connections with other peers.

The network in between can only add to a round trip. So a shorter one counts at once, and a longer
one bit by bit: a queue that fills for a moment changes little.

Source of the weight: Jacobson, "Congestion Avoidance and Control", 1988 (RFC 6298, section 2).
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median_low
from typing import Final

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId

# As many as a group of tasks keeps in mind (jobs/core/task_group.py), and as many unasked.
MAX_PEERS: Final = 1024
# Routes change. On a connection that is kept it is measured again within 64 s.
FORGET_S: Final = 600.0
# A minute: no connection that is slower is kept (net/transport/yamux.py).
MAX_RTT_US: Final = 60_000_000
# From here on farther makes no difference: as ICN has it.
FAR_US: Final = 500_000

# How far, and when that was measured; the latest at the end.
_Measured = dict[PeerId, tuple[int, float]]


class RoundTrips:
    """Those of the peer `own`, which is at distance 0 from itself.

    Any peer can connect, and is measured then. Peers that were asked for, as those are that tasks
    may go to, are kept apart, where strangers cannot push them out: the two halves of a segmented
    cache (Karedla, Love and Wherry, "Caching strategies to improve disk system performance", 1994).
    """

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self._asked_for: _Measured = {}
        self._others: _Measured = {}

    def measured(self, peer_id: PeerId, rtt_us: int, now: Moment) -> None:
        """One round trip with a peer took so long."""
        known = self._asked_for if peer_id in self._asked_for else self._others
        known_us = _lately(known, peer_id, now)
        rtt_us = min(max(rtt_us, 1), MAX_RTT_US)
        if known_us is not None and rtt_us > known_us:
            rtt_us = known_us + (rtt_us - known_us) // 8
        _keep(known, peer_id, (rtt_us, now.mono_s))

    def rtt_us(self, peer_id: PeerId, now: Moment) -> int | None:
        """None where it was not measured, or too long ago."""
        if peer_id == self._own:
            return 0
        if (measured := self._others.pop(peer_id, None)) is not None:
            _keep(self._asked_for, peer_id, measured)
        return _lately(self._asked_for, peer_id, now)

    def median_ms(self, peers: Iterable[PeerId], now: Moment) -> int | None:
        """Of those of the peers that were measured lately, rounded up to a step of 1, 2 or 5 times
        a power of ten, so that it says little of where a machine is and changes rarely."""
        measured = [rtt_us for each in peers if (rtt_us := self.rtt_us(each, now))]
        return step_ms(median_low(measured)) if measured else None

    def __len__(self) -> int:
        return len(self._asked_for) + len(self._others)


def _lately(known: _Measured, peer_id: PeerId, now: Moment) -> int | None:
    measured = known.get(peer_id)
    if measured is None or now.mono_s - measured[1] > FORGET_S:
        return None
    return measured[0]


def _keep(known: _Measured, peer_id: PeerId, measured: tuple[int, float]) -> None:
    known.pop(peer_id, None)
    if len(known) >= MAX_PEERS:
        del known[next(iter(known))]
    known[peer_id] = measured


def step_ms(rtt_us: int) -> int:
    step = 1
    while step * 1000 < rtt_us:
        step = step * 5 // 2 if str(step).startswith("2") else step * 2
    return step


def nearness(rtt_us: int | None) -> float:
    """From 1 for no time to 0 for half a second, in proportion; 0 where it is not known."""
    return 0.0 if rtt_us is None else 1.0 - min(max(rtt_us, 0), FAR_US) / FAR_US
