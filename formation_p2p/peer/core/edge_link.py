"""How well a worker at the edge is connected, as its profile says it.

The round trips come from the worker's connections with the network's gates. The rate is a short
bulk test, from the nearest gate to the worker, now and then. Both are told in steps of 1, 2 or 5
times a power of ten, so that they say little of where a machine is and change rarely.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.effects import Contact, Effect, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.placement.core.round_trips import MAX_RTT_US, RoundTrips
from formation_p2p.records.core.profile import (
    AT_THE_EDGE,
    MAX_RATE_MBIT_S,
    NO_LINK,
    Link,
    SignedProfile,
)

# The worker has joined, and its connections with the gates are measured.
FIRST_WAIT_S: Final = 20.0
# A test is 16 MiB (net/protocols/rate.py): 64 MiB a day.
EVERY_S: Final = 6 * 3600.0
# After one that failed, doubled each time: a gate sends to one peer every few seconds.
RETRY_S: Final = 60.0
# More or less by a fifth, so that workers that began together do not ask at once.
JITTER: Final = 0.4

_BITS: Final = 8


@dataclass(frozen=True, slots=True)
class MeasureRate(Effect):
    """Have this peer send a short bulk test. Ends in RateMeasured."""

    to: Contact


class EdgeLink:
    """Of the worker `own`. Says nothing until it `serves` at the edge."""

    def __init__(self, own: PeerId, dht: Kademlia[SignedProfile], round_trips: RoundTrips) -> None:
        self._dht = dht
        self._round_trips = round_trips
        # Of its own, so that what it draws changes nothing elsewhere.
        self._rng = random.Random(own)
        self._is_edge = False
        self._rate_mbit_s = 0
        self._wait_s = RETRY_S
        self._due_s = float("inf")

    def serves(self, labels: Collection[tuple[str, str]], now: Moment) -> None:
        """The worker is found by these labels from now on."""
        is_edge = AT_THE_EDGE in labels
        if is_edge and not self._is_edge:
            self._due_s = now.mono_s + self._about(FIRST_WAIT_S)
        elif not is_edge:
            self._due_s = float("inf")
        self._is_edge = is_edge

    def next_timeout(self) -> float:
        return self._due_s

    def tick(self, now: Moment) -> list[MeasureRate]:
        if now.mono_s < self._due_s:
            return []
        self._due_s = now.mono_s + self._about(self._wait_s)
        self._wait_s = min(self._wait_s * 2, EVERY_S)
        gate = self._nearest_gate(now)
        return [] if gate is None else [MeasureRate(gate, cause="this worker is at the edge")]

    def measured(self, bytes_per_s: int, now: Moment) -> bool:
        """What a test came to, 0 where it failed. Returns whether the link is another by that."""
        if not bytes_per_s or not self._is_edge:
            return False
        self._wait_s, self._due_s = RETRY_S, now.mono_s + self._about(EVERY_S)
        before, mbit_s = self._rate_mbit_s, max(bytes_per_s * _BITS // 1_000_000, 1)
        self._rate_mbit_s = min(step_down(mbit_s), MAX_RATE_MBIT_S)
        return self._rate_mbit_s != before

    def link(self, now: Moment) -> Link:
        """NO_LINK for a worker that is not at the edge."""
        if not self._is_edge:
            return NO_LINK
        rtt_ms = self._round_trips.median_ms(self._dht.gates, now) or 0
        return Link(rtt_ms, self._rate_mbit_s)

    def _nearest_gate(self, now: Moment) -> Contact | None:
        """Of those that are known to live."""
        gates = [each for each in self._dht.table if each.peer_id in self._dht.gates]
        return min(gates, key=lambda gate: self._distance(gate.peer_id, now), default=None)

    def _distance(self, peer_id: PeerId, now: Moment) -> tuple[int, PeerId]:
        return self._round_trips.rtt_us(peer_id, now) or MAX_RTT_US, peer_id

    def _about(self, seconds: float) -> float:
        return seconds * (1 + JITTER * (self._rng.random() - 0.5))


def step_down(number: int) -> int:
    """The largest of 1, 2 and 5 times a power of ten that is not above a positive number."""
    power: int = 10 ** (len(str(number)) - 1)
    return max(step * power for step in (1, 2, 5) if step * power <= number)
