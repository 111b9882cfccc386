"""How many replicas a service is to have for the requests that it gets.

Each holder weighs what all holders say of their load, and signs how many replicas it wants. The
most that a live claim wants is what every node goes by: the number follows from the claims alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from formation_p2p.features.services.core.claim import MAX_BUSY_PERCENT, Claim
from formation_p2p.features.services.core.spec import ServiceSpec
from formation_p2p.workload.core.scaling import Autoscaler, ScalingPolicy

# Of what replicas take at once, so much is to be used: the rest is for what comes until there are
# more of them.
TARGET_PERCENT: Final = 70
# Ray Serve's delays. What fills all replicas is seen for 30 s, and what waits there sooner; fewer
# than are used are enough only where they were all the time.
UP_S: Final = 30.0
DOWN_S: Final = 600.0
# The time constant of the average: from nothing to all it passes the target after 24 s.
SMOOTH_S: Final = 20.0


def is_elastic(spec: ServiceSpec) -> bool:
    return spec.replicas.minimum < spec.replicas.maximum


def wanted(spec: ServiceSpec, live: Iterable[Claim]) -> int:
    """How many replicas there are to be, by the live claims of a service."""
    replicas = spec.replicas
    most = max((_word(spec, claim) for claim in live), default=replicas.target)
    return min(max(most, replicas.minimum), replicas.maximum)


def _word(spec: ServiceSpec, claim: Claim) -> int:
    """Of an older version, whose target was another, it counts only where it is more."""
    target = spec.replicas.target
    if claim.wanted and claim.version != spec.version:
        return max(claim.wanted, target)
    return claim.wanted or target


def own_word(spec: ServiceSpec, count: int) -> int:
    """What a claim says where `count` are wanted."""
    return 0 if count == spec.replicas.target else count


@dataclass(slots=True)
class Load:
    """Of one replica: how many requests it has, and had of late."""

    _outstanding: float = 0.0
    _mean: float = 0.0
    _at_s: float = 0.0

    def told(self, busy: float, outstanding: int, now_s: float) -> None:
        """Since the last time there were `busy` on the average; from now on `outstanding`."""
        self._mean = self._after(busy, now_s)
        self._outstanding, self._at_s = outstanding, now_s

    def busy_percent(self, spec: ServiceSpec, now_s: float) -> int:
        """Of what it takes, on the average of late."""
        percent = 100 * self._after(self._outstanding, now_s) / spec.max_requests
        return min(round(percent), MAX_BUSY_PERCENT)

    def _after(self, busy: float, now_s: float) -> float:
        fades = math.exp((self._at_s - now_s) / SMOOTH_S)
        return busy + (self._mean - busy) * fades


class Scaler:
    """When one holder wants another number of replicas. Give it each look at them."""

    def __init__(self, spec: ServiceSpec) -> None:
        policy = ScalingPolicy(
            least=spec.replicas.minimum,
            most=spec.replicas.maximum,
            target_percent=TARGET_PERCENT,
            in_cooldown_s=DOWN_S,
            out_cooldown_s=UP_S,
        )
        self._autoscaler = Autoscaler(policy)
        self._low_since_s: float | None = None
        self._most = 0

    def decide(self, size: int, used_percent: float, now_s: float, *, is_whole: bool) -> int | None:
        """How many there are to be from now on; None to leave it at `size`. `is_whole` where so
        many are there and say what they do: where one is missing, or could not be read, its
        requests are not seen, and nothing follows from few of them."""
        target = self._autoscaler.policy.target(size, used_percent)
        is_low = target is not None and target < size
        if not (is_low and is_whole):
            self._low_since_s = None
        if target is None or target > size:
            return self._autoscaler.decide(size, used_percent, now_s)
        if not is_whole:
            return None
        if self._low_since_s is None:
            self._low_since_s, self._most = now_s, 0
        self._most = max(self._most, target)  # what was enough all the time
        lasts = now_s - self._low_since_s >= DOWN_S
        if not lasts or self._autoscaler.decide(size, used_percent, now_s) is None:
            return None
        return self._most

    def changed(self, now_s: float) -> None:
        """What it has decided is done: the pause begins."""
        self._autoscaler.changed(now_s)
        self._low_since_s = None
