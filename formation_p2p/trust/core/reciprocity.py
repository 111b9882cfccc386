"""What the organisations of a network have given this node: hours of their workers, for its tasks.

An organisation's share here grows with that, in proportion; the others have a tenth. It is this
node's own experience: no other is told, and none can hand it on. A node that never had results
treats all alike.

Source: Levin, LaCurts, Spring and Bhattacharjee, "BitTorrent is an Auction", 2008 (an answer in
proportion to what was given leaves nothing to gain by lies or by many identities).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.effects import Effect, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.trust.core.shares import HALF_LIFE_S
from formation_p2p.workload.core.scope import Place

# Of what those have that gave most, the part of one that gave nothing yet.
NEWCOMER: Final = 0.1
# Organisations that gave something, the latest; workers whose organisation is known.
MAX_ORGS: Final = 256
MAX_WORKERS: Final = 4096

# A federation, and an organisation in it.
Org = tuple[str, str]


@dataclass(frozen=True, slots=True)
class HoursReceived(Effect):
    """What an organisation's workers have given this node in all, in core-milliseconds as of then:
    to be kept for its next incarnation, in place of what was kept before."""

    org: Org
    core_ms: int
    unix_s: int


class Reciprocity:
    """`own` is where this node belongs. `kept` is what earlier incarnations were given."""

    def __init__(self, own: Callable[[], Place]) -> None:
        self._own = own
        self._workers: dict[PeerId, Org] = {}  # the latest at the end
        self._given: dict[Org, tuple[float, float]] = {}  # core-seconds, as of; likewise
        self._changed: dict[Org, None] = {}

    def begin(self, kept: Iterable[tuple[Org, int, int]]) -> None:
        for org, core_ms, unix_s in kept:
            self._given[org] = core_ms / 1000, unix_s

    def met(self, worker: PeerId, place: Place) -> None:
        """A worker has shown a grant of these circles."""
        self._workers.pop(worker, None)
        self._workers[worker] = (place.federation, place.org)
        if len(self._workers) > MAX_WORKERS:
            del self._workers[next(iter(self._workers))]

    def gave(self, worker: PeerId, core_s: float, now: Moment) -> None:
        """It has run tasks of this node for so long, and they brought results."""
        org = self._workers.get(worker)
        if org is None or not org[1]:
            return  # one of no organisation has no share that could grow
        total_s = self._given_s(org, now) + core_s
        self._given.pop(org, None)
        self._given[org] = total_s, now.unix_s
        self._changed[org] = None
        if len(self._given) > MAX_ORGS:
            del self._given[next(iter(self._given))]

    def factor(self, org: Org, now: Moment) -> float:
        """What an organisation's share is multiplied with."""
        given_s = {each: self._given_s(each, now) for each in self._given}
        most_s = max(given_s.values(), default=0.0)
        if most_s <= 0:
            return 1.0
        place = self._own()
        given_s[place.federation, place.org] = most_s  # a machine is its own organisation's first
        return max(given_s.get(org, 0.0) / most_s, NEWCOMER)

    def take(self, now: Moment) -> list[HoursReceived]:
        """What has changed since the last time."""
        changed, self._changed = self._changed, {}
        cause = "results have arrived"
        return [
            HoursReceived(org, round(self._given[org][0] * 1000), int(now.unix_s), cause=cause)
            for org in changed
            if org in self._given
        ]

    def _given_s(self, org: Org, now: Moment) -> float:
        given_s, at_s = self._given.get(org, (0.0, now.unix_s))
        return given_s * math.pow(0.5, max(now.unix_s - at_s, 0.0) / HALF_LIFE_S)
