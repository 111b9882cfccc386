"""Which replica of a service takes the next stream, by what its caller has seen of each.

The nearest tier of round trips comes first; within it the better of two that are drawn at random,
by streams under way times the time to the first byte. A tier whose replicas have all that they take
overflows to the next. A replica that fails again and again is left out for a while; where no other
is left, it is asked all the same.

Streams under way count for more than times alone: of requests that take very unequal time, the
latest times say little. Source of the draw: Mitzenmacher, "The Power of Two Choices in Randomized
Load Balancing", 2001; of the figures for outliers: Envoy's `outlier_detection`.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, TypeVar

from formation_p2p.core.identity import PeerId

# What a caller remembers of where a service is: for as long as claims last, read again sooner.
#
# What was read is used for FRESH_S as it is. After that it is used on, and read again beside
# that; past TTL_S without a read that succeeded it counts for nothing, since each claim in it has
# expired by then. A failure says that it is old: it is read again before the next stream that is
# opened more than SOON_S after the last read.
FRESH_S: Final = 5.0
# The life of a claim.
TTL_S: Final = 60.0
# A service that fails is not read more often.
SOON_S: Final = 0.5

T = TypeVar("T")


class Freshness(Enum):
    FRESH = "fresh"
    """Use it."""
    OLD = "old"
    """Use it, and read it again beside that."""
    SPENT = "spent"
    """Read it first; what there is counts only where that fails."""
    NOTHING = "nothing"
    """There is none, or too old: read it first."""


class Route(Generic[T]):
    """Of one service."""

    def __init__(self) -> None:
        self._found: T | None = None
        self._found_s = self._tried_s = float("-inf")
        self._failed = False

    def read(self, found: T | None, now_s: float) -> None:
        """It was read; None where that has failed, which says nothing of the service."""
        self._tried_s = now_s
        if found is not None:
            self._found, self._found_s, self._failed = found, now_s, False

    def failed(self) -> None:
        """What it says has proved wrong."""
        self._failed = True

    def found(self, now_s: float) -> T | None:
        """What there is to use."""
        return self._found if now_s - self._found_s < TTL_S else None

    def freshness(self, now_s: float) -> Freshness:
        if self.found(now_s) is None:
            return Freshness.NOTHING
        if now_s - self._tried_s <= SOON_S:
            return Freshness.FRESH
        if self._failed:
            return Freshness.SPENT
        return Freshness.FRESH if now_s - self._found_s < FRESH_S else Freshness.OLD

    def may_read_at_s(self) -> float:
        """No sooner than this, after a read that found nothing of use."""
        return self._tried_s + SOON_S


# Of the time to the first byte: the latest counts for an eighth, as of round trips (RFC 6298).
_WEIGHT: Final = 8


# Where a tier ends: one machine or room, a campus, a country, a continent, the next one. Within a
# tier the load decides, since the way there hardly differs.
TIERS_US: Final = (2_000, 10_000, 30_000, 80_000, 200_000)
# So many failures in a row, within so long, and a replica is left out for so long.
ERRORS: Final = 5
ERRORS_WITHIN_S: Final = 10.0
LEFT_OUT_S: Final = 30.0
# Of all replicas, in hundredths, but one at least: a fault of the caller's own network must not
# leave out all of them.
MOST_LEFT_OUT_PERCENT: Final = 10
# One that said that it is busy, or that was not reached, is asked again after so long: doubled each
# time up to the last figure.
REST_S: Final = 0.05
MOST_REST_S: Final = 1.0
# What was seen of a replica says half as much after so long.
HALF_LIFE_S: Final = 10.0
# A replica of which nothing was seen yet answers like the fastest, or within this.
FIRST_GUESS_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Replica:
    """What a claim says of one: streams that it has, and takes at most."""

    peer_id: PeerId
    capacity: int
    outstanding: int = 0
    is_draining: bool = False


@dataclass(slots=True)
class _Seen:
    """What this caller has seen of a replica."""

    said: Replica
    own: int = 0
    """Streams of this caller that are under way."""
    others: int = 0
    """Those of all others, when the claim was read."""
    tier: int = 0  # the nearest, until its round trip is known: asking tells
    first_byte_s: float | None = None
    first_byte_at_s: float = 0.0
    errors_at_s: deque[float] = field(default_factory=deque)
    left_out_until_s: float = float("-inf")
    rests: int = 0
    rests_until_s: float = float("-inf")


class Balancer:
    """Of one service, at one caller."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._seen: dict[PeerId, _Seen] = {}

    def listed(self, replicas: Iterable[Replica]) -> None:
        """These are all that there are, by the newest claims."""
        seen: dict[PeerId, _Seen] = {}
        for said in replicas:
            known = self._seen.get(said.peer_id) or _Seen(said)
            known.said = said
            known.others = max(said.outstanding - known.own, 0)
            seen[said.peer_id] = known
        self._seen = seen

    def __len__(self) -> int:
        return len(self._seen)

    def __contains__(self, peer_id: PeerId) -> bool:
        return peer_id in self._seen

    def measured(self, peer_id: PeerId, rtt_us: int) -> None:
        """A round trip to the replica takes so long."""
        if (seen := self._seen.get(peer_id)) is not None:
            seen.tier = bisect_right(TIERS_US, rtt_us)

    # -- the choice -------------------------------------------------------------------------------

    def choose(
        self,
        now_s: float,
        *,
        tried: Collection[PeerId] = (),
        sticky: PeerId | None = None,
    ) -> PeerId | None:
        """None where all that were not tried have what they take, or rest. `sticky` is chosen
        where it takes one more."""
        able = [
            each
            for each in self._seen.values()
            if each.said.peer_id not in tried
            and each.own < each.said.capacity
            and each.rests_until_s <= now_s
        ]
        good = [each for each in able if each.left_out_until_s <= now_s]
        if any(each.said.peer_id == sticky for each in good):
            return sticky
        lasting = [each for each in good if not each.said.is_draining]
        # One that drains serves on: it is asked after all others, and before any that fails.
        for some in (lasting, good):
            with_room = [each for each in some if each.own + each.others < each.said.capacity]
            # What claims say of others' streams is old by up to half a minute. Where all seem to
            # be full, they are asked.
            for fitting in (with_room, some):
                if fitting:
                    return self._nearest(fitting, now_s)
        soonest = min(able, key=lambda each: each.left_out_until_s, default=None)
        return None if soonest is None else soonest.said.peer_id

    def _nearest(self, fitting: Sequence[_Seen], now_s: float) -> PeerId:
        tier = min(each.tier for each in fitting)
        near = [each for each in fitting if each.tier == tier]
        drawn = self._rng.sample(near, min(len(near), 2))
        guess_s = self._guess_s(near, now_s)
        return min(drawn, key=lambda each: self._cost(each, guess_s, now_s)).said.peer_id

    def _cost(self, seen: _Seen, guess_s: float, now_s: float) -> float:
        first_byte_s = self._first_byte_s(seen, now_s)
        waits_s = guess_s if first_byte_s is None else first_byte_s
        return (seen.own + seen.others + 1) * waits_s

    def _guess_s(self, near: Sequence[_Seen], now_s: float) -> float:
        known = (self._first_byte_s(each, now_s) for each in near)
        return min((each for each in known if each is not None), default=FIRST_GUESS_S)

    def _first_byte_s(self, seen: _Seen, now_s: float) -> float | None:
        if seen.first_byte_s is None:
            return None
        age = (now_s - seen.first_byte_at_s) / HALF_LIFE_S
        return max(math.ldexp(seen.first_byte_s, -int(age)), 1e-6)

    def may_choose_at_s(self, now_s: float) -> float:
        """When one that rests now may be chosen again, at the earliest; infinite where none
        rests."""
        ends = (each.rests_until_s for each in self._seen.values())
        return min((end for end in ends if end > now_s), default=float("inf"))

    # -- what became of it ------------------------------------------------------------------------

    def began(self, peer_id: PeerId) -> None:
        """A stream to it is being opened; `ended` follows."""
        if (seen := self._seen.get(peer_id)) is not None:
            seen.own += 1

    def ended(self, peer_id: PeerId) -> None:
        """As many as `began`."""
        if (seen := self._seen.get(peer_id)) is not None:
            seen.own = max(seen.own - 1, 0)  # it may have been listed anew meanwhile
            seen.rests_until_s = float("-inf")  # where it was full, it has room again

    def opened(self, peer_id: PeerId) -> None:
        """It has taken a stream."""
        if (seen := self._seen.get(peer_id)) is not None:
            seen.rests, seen.rests_until_s = 0, float("-inf")

    def answered(self, peer_id: PeerId, first_byte_s: float, now_s: float) -> None:
        """The first byte of an answer came after so long."""
        if (seen := self._seen.get(peer_id)) is not None:
            known_s = self._first_byte_s(seen, now_s)
            if known_s is not None:
                first_byte_s = known_s + (first_byte_s - known_s) / _WEIGHT
            seen.first_byte_s, seen.first_byte_at_s = first_byte_s, now_s
            seen.errors_at_s.clear()

    def rest(self, peer_id: PeerId, now_s: float) -> None:
        """It is busy, or was not reached: ask others for a moment."""
        if (seen := self._seen.get(peer_id)) is not None:
            wait_s = REST_S * 2 ** min(seen.rests, 16)
            seen.rests += 1
            seen.rests_until_s = now_s + min(wait_s, MOST_REST_S)

    def failed(self, peer_id: PeerId, now_s: float) -> bool:
        """It was not reached, or broke, or answered with an error of its own. Returns whether it is
        left out from now on."""
        seen = self._seen.get(peer_id)
        if seen is None:
            return False
        at_s = seen.errors_at_s
        at_s.append(now_s)
        while at_s[0] < now_s - ERRORS_WITHIN_S or len(at_s) > ERRORS:
            at_s.popleft()
        if len(at_s) < ERRORS or seen.left_out_until_s > now_s:
            return False
        out = sum(each.left_out_until_s > now_s for each in self._seen.values())
        if out >= max(len(self._seen) * MOST_LEFT_OUT_PERCENT // 100, 1):
            return False
        seen.left_out_until_s = now_s + LEFT_OUT_S
        at_s.clear()
        return True

    def left_out(self, now_s: float) -> frozenset[PeerId]:
        """Those that have failed too often."""
        return frozenset(
            peer_id for peer_id, each in self._seen.items() if each.left_out_until_s > now_s
        )
