"""How far the workers are from each other that have offered to be members of a gang."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from formation_p2p.core.identity import PeerId
from formation_p2p.leases.core.lessee import CollectedOffer

# Of a pair of which neither has measured the other, and the owner not both: as far as anything is
# (placement/core/round_trips.py).
FAR_US: Final = 500_000


class Trips:
    """Each worker says in its offer what it has measured to the others. Both ends of a pair do, and
    the larger counts, so that neither can make itself near."""

    def __init__(self) -> None:
        self._measured_us: dict[tuple[PeerId, PeerId], int] = {}
        self._own_us: dict[PeerId, int] = {}

    def learn(self, offers: Iterable[CollectedOffer]) -> None:
        for each in offers:
            worker = each.contact.peer_id
            if each.rtt_us is not None:
                self._own_us[worker] = each.rtt_us
            for other, rtt_us in each.trips_us:
                self._measured_us[worker, other] = rtt_us

    def keep(self, workers: Collection[PeerId]) -> None:
        """Of these alone: as many as a gang keeps in mind."""
        self._own_us = {worker: us for worker, us in self._own_us.items() if worker in workers}
        self._measured_us = {
            pair: us for pair, us in self._measured_us.items() if pair[0] in workers
        }

    def far_us(self, a: PeerId, b: PeerId) -> int:
        known_us = self.known_us(a, b)
        return FAR_US if known_us is None else known_us

    def known_us(self, a: PeerId, b: PeerId) -> int | None:
        """Where neither end knows, no farther than by way of this node; None where that is not
        known either."""
        known = [self._measured_us[x] for x in ((a, b), (b, a)) if x in self._measured_us]
        if known:
            return max(known)
        if a in self._own_us and b in self._own_us:
            return self._own_us[a] + self._own_us[b]
        return None
