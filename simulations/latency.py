"""How long messages take between sites: a matrix of round-trip times.

Source of the measured one: Zhu et al., "Network latency estimation for personal devices",
IEEE/ACM ToN 2017 (PlanetLab, 490 hosts). It is read from where it lies, never copied in here.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

# Two nodes of one site are not at the same place: half of this each way.
LOCAL_RTT_US: Final = 500
# Nothing measured is longer; a file with more is in another unit.
MAX_RTT_US: Final = 60_000_000
# A made-up matrix is as large as the measured one...
SITES: Final = 490
# ...and has its round trips: which share of them, in thousandths, are at most so many us. Between
# the points it is a straight line. p5, p50 and p90 are those measured.
_RTT_US: Final = (
    (0, 500),
    (50, 19_000),
    (250, 80_000),
    (500, 135_000),
    (750, 215_000),
    (900, 291_000),
    (1000, 420_000),
)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Round trips in whole microseconds, `rtt_us[site][site]`: no two machines compute others."""

    rtt_us: tuple[tuple[int, ...], ...]

    @classmethod
    def read(cls, text: str) -> Self:
        """From lines of milliseconds, as many in each as there are lines.

        Raises ValueError for anything else.
        """
        rows = [
            tuple(round(float(number) * 1000) for number in line.split())
            for line in text.splitlines()
            if line.strip()
        ]
        return cls(_checked(rows))

    @classmethod
    def made_up(cls, seed: int, sites: int = SITES) -> Self:
        """Of the same shape as the measured one, symmetric, with nothing between the sites but
        chance."""
        rng = random.Random(f"{seed}/latencies")
        rows = [[LOCAL_RTT_US] * sites for _ in range(sites)]
        for a in range(sites):
            for b in range(a):
                rows[a][b] = rows[b][a] = _draw_us(rng)
        return cls(tuple(map(tuple, rows)))

    @property
    def sites(self) -> int:
        return len(self.rtt_us)

    def one_way_s(self) -> list[list[float]]:
        """In seconds, by the numbers of the sites."""
        return [[(rtt_us or LOCAL_RTT_US) / 2_000_000 for rtt_us in row] for row in self.rtt_us]

    def percentile_ms(self, percent: int) -> float:
        """Of the round trips between different sites."""
        between = sorted(
            self.rtt_us[a][b] for a in range(self.sites) for b in range(self.sites) if a != b
        )
        return between[min(len(between) * percent // 100, len(between) - 1)] / 1000


def _checked(rows: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    if not rows or any(len(row) != len(rows) for row in rows):
        raise ValueError("the latencies are no square matrix; write as many lines as numbers")
    if not all(0 <= rtt_us <= MAX_RTT_US for rtt_us in _flat(rows)):
        raise ValueError("a round trip is negative or longer than a minute; write milliseconds")
    return tuple(rows)


def _flat(rows: Iterable[tuple[int, ...]]) -> Iterable[int]:
    return (number for row in rows for number in row)


def _draw_us(rng: random.Random) -> int:
    share = rng.randrange(1000)
    place = bisect_right(_RTT_US, (share, MAX_RTT_US))
    (low, least_us), (high, most_us) = _RTT_US[place - 1], _RTT_US[place]
    return least_us + (most_us - least_us) * (share - low) // (high - low)
