"""Who comes and who goes: sessions as they were measured on a network of volunteers.

Golem, 2018-12 to 2019-02: 5,498 nodes, 20,446 sessions, about 340 online at once, of whom 41
were up 99 % of the time or more. Closed sessions lasted p50 1.25 h, p75 10.6 h, p90 50 h. Below
the median the quantiles are those of the lognormal distribution through these (sigma = 3); above
p90 they make the mean 31 h, which follows from 340 online and 11 arrivals an hour.

Who is online at a moment is not who arrives: long sessions are met more often. So the first
inhabitants draw from the length-biased distribution, of which a uniform share is left.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from math import sqrt
from typing import Final

# (share, seconds): so many sessions last at most so long; straight lines in between. Neither
# logarithms nor powers are taken here: they differ in the last bit between machines.
GOLEM_SESSIONS_S: Final = (
    (0.0, 10.0),
    (0.05, 32.0),
    (0.10, 96.0),
    (0.25, 600.0),
    (0.50, 4_500.0),
    (0.75, 38_160.0),
    (0.90, 180_000.0),
    (0.95, 396_000.0),
    (0.99, 1_800_000.0),
    (1.00, 5_184_000.0),
)
# Of those online at a moment, who stays for good.
GOLEM_ALWAYS_SHARE: Final = 41 / 340
# Machines are switched off and links break; few say goodbye.
CRASH_SHARE: Final = 0.9


class Churn:
    """Session lengths for about `online` nodes. `speed` makes time run faster: at 10 a session
    lasts a tenth of what was measured."""

    def __init__(self, rng: random.Random, online: int, speed: float = 1.0) -> None:
        self._rng = rng
        self._speed = speed
        self._passing = online * (1 - GOLEM_ALWAYS_SHARE)
        self._pieces = list(pairwise(GOLEM_SESSIONS_S))
        # What each piece adds to the mean: who is online is in it with that weight.
        self._weights = [(b - a) * (a_s + b_s) / 2 for (a, a_s), (b, b_s) in self._pieces]
        self.mean_session_s = sum(self._weights) / speed

    def session_s(self) -> float:
        """How long an arrival stays."""
        share = self._rng.random()
        place = bisect_right(GOLEM_SESSIONS_S, (share, float("inf")))
        (low, low_s), (high, high_s) = GOLEM_SESSIONS_S[place - 1 : place + 1]
        return (low_s + (high_s - low_s) * (share - low) / (high - low)) / self._speed

    def remaining_s(self) -> float:
        """How long one who is online already will still be; infinite for those who always are."""
        if self._rng.random() < GOLEM_ALWAYS_SHARE:
            return float("inf")
        [((_, low_s), (_, high_s))] = self._rng.choices(self._pieces, self._weights)
        share = self._rng.random()
        whole_s = sqrt(low_s * low_s + share * (high_s * high_s - low_s * low_s))
        return self._rng.random() * whole_s / self._speed

    def arrivals_s(self, duration_s: float) -> Iterator[float]:
        """When newcomers arrive in so long a time, in order: as many as keep the number online.

        A Poisson process, given how many events it had, has them at independent uniform times.
        """
        expected = self._passing * duration_s / self.mean_session_s
        count = int(expected) + (self._rng.random() < expected % 1)
        return iter(sorted(self._rng.random() * duration_s for _ in range(count)))

    def crashes(self) -> bool:
        """Whether one who goes says nothing."""
        return self._rng.random() < CRASH_SHARE
