"""What became of the offers that a worker made for wants."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from formation_p2p.core.latest import Latest

# Offers that may be open at once for one worker, as its leases are.
_MAX_OPEN = 1024


@dataclass(frozen=True, slots=True)
class OfferCounts:
    """`won` led to leases; `lost` were given back or ran out. `score_milli` is the share of those
    decided that won: how well this worker ranks with those that want something."""

    sent: int = 0
    won: int = 0
    lost: int = 0

    @property
    def score_milli(self) -> int:
        return 1000 * self.won // max(1, self.won + self.lost)


class Offers:
    """Of one worker, since it began."""

    def __init__(self) -> None:
        self._sent = self._won = 0
        self._open = Latest[str, None](_MAX_OPEN)  # leases offered, and not committed to

    def offered(self, lease_id: str) -> None:
        self._sent += 1
        self._open[lease_id] = None

    def committed(self, lease_id: str) -> None:
        """The offer has become a lease, if it was for a want."""
        if lease_id in self._open:
            del self._open[lease_id]
            self._won += 1

    def counts(self, live: Container[str]) -> OfferCounts:
        """`live` are the leases and offers that there are."""
        for lease_id in [each for each in self._open if each not in live]:
            del self._open[lease_id]
        return OfferCounts(self._sent, self._won, self._sent - self._won - len(self._open))
