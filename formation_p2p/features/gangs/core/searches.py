"""The searches for workers of one gang: where each begins, and how soon another one follows.

A search may miss a worker: a message is lost, or the worker is still announcing itself. So where
all that are known have been asked and too few had room, another search follows soon. While
searches bring no worker that was not known, the waits between them double.
"""

from __future__ import annotations

from collections.abc import Iterable

from formation_p2p.core.effects import Moment
from formation_p2p.core.keyspace import KEY_BITS, Key
from formation_p2p.discovery.core.finder import FindId
from formation_p2p.features.gangs.core.candidates import Means, key_of_gang
from formation_p2p.machine.core.requirements import Requirements


class Searches:
    """Tell `ended` of each that has, and whether it brought a worker that was not known."""

    def __init__(self, gang_id: str, means: Means) -> None:
        self._gang_id = gang_id
        self._means = means
        self._in_flight: set[FindId] = set()
        self._count = 0
        self._last_s = 0.0
        self._wait_s = means.parameters.search_again_s
        self._again_s = 0.0

    def __contains__(self, find: FindId) -> bool:
        return find in self._in_flight

    def __bool__(self) -> bool:
        """Whether any is in flight."""
        return bool(self._in_flight)

    def begin(self, kinds: Iterable[Requirements], least: int, now: Moment) -> bool:
        """Search for each kind. False where too many searches of this node are in flight."""
        parameters = self._means.parameters
        target, fresh = self._target(), self._count > 0
        self._count += 1
        self._last_s = now.mono_s
        # With others that lack the same worker, each finds another moment.
        self._again_s = now.mono_s + self._wait_s * self._means.rng.uniform(1.0, 1.5)
        self._wait_s = min(2 * self._wait_s, parameters.known_s)
        for needs in kinds:
            find = self._means.finder.find(needs, target, now, "a gang", fresh=fresh, least=least)
            if find is not None:
                self._in_flight.add(find)
        return bool(self._in_flight)

    def ended(self, find: FindId, *, brought: bool) -> None:
        self._in_flight.remove(find)
        if brought:  # there may be more yet
            self._wait_s = self._means.parameters.search_again_s

    def forget(self) -> None:
        """What is in flight is of no use any more. The next one may be for other ranks."""
        self._in_flight.clear()
        self._wait_s = self._means.parameters.search_again_s

    def are_old(self, now: Moment) -> bool:
        """Whether what they found is not to be built on."""
        return now.mono_s - self._last_s > self._means.parameters.known_s

    def are_due(self, now: Moment) -> bool:
        """Whether another may begin, where what they found was not enough."""
        return not self._in_flight and now.mono_s >= self._again_s

    def _target(self) -> Key:
        """The gang's key, then half the key space away from it, a quarter, three quarters, …"""
        turned = int(f"{self._count:0{KEY_BITS}b}"[::-1], 2)
        return Key(key_of_gang(self._gang_id) ^ turned)
