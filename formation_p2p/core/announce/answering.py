"""Who answers a want that was spread: near as many as are of use, whether one peer in a hundred has
room or every one.

No peer counts for all. Each takes the share of those with room among the workers whose profiles it
holds for others for that of the network, and draws whether to answer. Where fewer of those that
hear it have room than are to answer, it draws too whether to hand the want on to one of these
workers: with a hundred profiles each, a few dozen peers know thousands of workers.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from formation_p2p.core.announce.board import Handed, suits
from formation_p2p.core.announce.parameters import AnnounceParameters
from formation_p2p.core.announce.want import Want
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.negotiation.limits import Limits
from formation_p2p.core.records.profile import Profile

_ALL = ""


class Known(NamedTuple):
    """Of the workers that a peer holds profiles of: those with room, of so many looked at."""

    with_room: list[Profile]
    looked_at: int


class Answering:
    """Of one worker."""

    def __init__(self, rng: random.Random, parameters: AnnounceParameters) -> None:
        self._rng = rng
        self._parameters = parameters
        self._offers = Limits(parameters.max_offers, parameters.window_s, 1)

    def look(self, want: Want, profiles: Iterable[Profile]) -> Known:
        looked_at = list(islice(profiles, self._parameters.max_looked_at))
        return Known([each for each in looked_at if suits(want, each)], len(looked_at))

    def draws(self, want: Want, known: Known) -> bool:
        """Whether to answer one that was spread."""
        return self._rng.random() < chance(want, known, self._parameters)

    def hands(self, want: Want, raw: bytes, known: Known) -> list[Handed]:
        """The worker, or none, that gets a want that was spread."""
        if self._rng.random() >= chance_to_hand(want, known, self._parameters):
            return []
        to = self._rng.choice(known.with_room)
        return [Handed(Contact(to.peer_id, to.addresses), raw)]

    def may_offer(self, now: Moment) -> bool:
        """Whether this worker has not made too many offers lately; then one more counts."""
        return self._offers.admits(_ALL, now.mono_s)


def chance(want: Want, known: Known, parameters: AnnounceParameters) -> float:
    """With which each worker that has room and hears the want answers."""
    if not known.with_room:
        return 1.0  # or none of the few that have room might answer
    return min(1.0, want.places * parameters.answers_aimed_at / _hearing(want, known))


def chance_to_hand(want: Want, known: Known, parameters: AnnounceParameters) -> float:
    """With which each peer that knows workers with room hands the want on to one of them."""
    if not known.with_room:
        return 0.0
    missing = want.places * parameters.answers_aimed_at - _hearing(want, known)
    # Where it knows few, most of the others that hear it may know none.
    handing = want.reach * (parameters.know_few if len(known.with_room) <= parameters.few else 1.0)
    return missing / handing


def _hearing(want: Want, known: Known) -> float:
    """About how many with room hear the want."""
    return want.reach * len(known.with_room) / known.looked_at
