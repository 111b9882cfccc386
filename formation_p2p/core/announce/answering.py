"""Whether a worker answers a want that was spread: some do, so that near as many offers come as are
of use, whether one peer in a hundred has room or every one.

No peer counts for all. Each worker takes the share of those with room among the workers whose
profiles it holds for others for that of the network, and draws.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import islice

from formation_p2p.core.announce.board import has_room
from formation_p2p.core.announce.parameters import AnnounceParameters
from formation_p2p.core.announce.want import Want
from formation_p2p.core.effects import Moment
from formation_p2p.core.negotiation.limits import Limits
from formation_p2p.core.records.profile import Profile

_ALL = ""


class Answering:
    """Of one worker."""

    def __init__(self, rng: random.Random, parameters: AnnounceParameters) -> None:
        self._rng = rng
        self._parameters = parameters
        self._offers = Limits(parameters.max_offers, parameters.window_s, 1)

    def draws(self, want: Want, known: Iterable[Profile], now: Moment) -> bool:
        """Whether to answer one that was spread."""
        looked_at = list(islice(known, self._parameters.max_looked_at))
        with_room = sum(has_room(want.needs, profile) for profile in looked_at)
        return self._rng.random() < chance(want, with_room, len(looked_at), self._parameters)

    def may_offer(self, now: Moment) -> bool:
        """Whether this worker has not made too many offers lately; then one more counts."""
        return self._offers.admits(_ALL, now.mono_s)


def chance(want: Want, with_room: int, looked_at: int, parameters: AnnounceParameters) -> float:
    """With which each worker that has room answers, where so many of those looked at do too."""
    if not with_room:
        return 1.0  # or none of the few that have room might answer
    expected = want.reach * with_room / looked_at
    return min(1.0, want.places * parameters.answers_aimed_at / expected)
