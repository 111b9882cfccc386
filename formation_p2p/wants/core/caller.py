"""The scheduler's side of wants: made, signed, and sent to where workers hear of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import Identity
from formation_p2p.leases.core.lessee import Lessee
from formation_p2p.leases.core.limits import Limits
from formation_p2p.leases.core.messages import HandWant, LeaveWant, SpreadWant
from formation_p2p.leases.core.session import Send
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.records.core.profile import Profile
from formation_p2p.wants.core.board import Handed, suits
from formation_p2p.wants.core.tree import Relay
from formation_p2p.wants.core.want import (
    MAX_HOLDERS,
    MAX_PLACES,
    WANT_TTL_S,
    AnnounceParameters,
    Want,
    seal_want,
)

# Who answers a want that was spread: near as many as are of use, whether one peer in a hundred has
# room or every one. No peer counts for all. Each takes the share of those with room among the
# workers whose profiles it holds for others for that of the network, and draws whether to answer.
# Where fewer of those that hear it have room than are to answer, it draws too whether to hand the
# want on to one of these workers: with a hundred profiles each, a few dozen peers know thousands of
# workers.
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


class Caller:
    """`own` is where offers are to come, once that is known; `size` about how many peers there
    are."""

    def __init__(
        self,
        identity: Identity,
        lessee: Lessee,
        relay: Relay,
        own: Callable[[], Contact | None],
        size: Callable[[], int],
        parameters: AnnounceParameters,
    ) -> None:
        self._identity = identity
        self._lessee = lessee
        self._relay = relay
        self._own = own
        self._size = size
        self._parameters = parameters

    def is_spread_due(self, last_s: float, in_vain: int, now: Moment) -> bool:
        """At once where the first brought no offer and there are more peers than heard it."""
        widens = in_vain == 1 and self._size() > self._parameters.first_reach
        return widens or now.mono_s >= last_s + self._parameters.spread_again_s

    def expired_s(self, now: Moment) -> float:
        """When what was left by then is to be left anew."""
        return now.mono_s - self._parameters.leave_again_s

    def spread(
        self, key: SchedulingKey, waiting: int, in_vain: int, now: Moment, cause: str
    ) -> Sequence[Send]:
        """Have some dozens of peers hear of tasks that wait, or some hundreds where so many wants
        brought no offer. Empty where it is not known yet how this node is reached."""
        own = self._own()
        if own is None:
            return ()
        most = self._parameters.reach if in_vain else self._parameters.first_reach
        reach = min(most, self._size())
        places = min(waiting, MAX_PLACES)
        enough = places * self._parameters.enough
        raw = self._sealed(own, key, places, now, enough=enough, reach=reach)
        sent = [
            Send(branch.to, SpreadWant(raw, branch.depth, branch.reach), cause=cause)
            for branch in self._relay.spread(raw, 0, most, now)
        ]
        return [*sent, Send(own, HandWant(raw), cause=cause)]  # it may be a worker itself

    def leave(
        self,
        key: SchedulingKey,
        waiting: int,
        holders: Iterable[Contact],
        now: Moment,
        cause: str,
    ) -> Sequence[Send]:
        """Leave a want with those that hold profiles of such workers. Each offer is taken as it
        comes."""
        own, to = self._own(), tuple(holders)[:MAX_HOLDERS]
        if own is None or not to:
            return ()
        places = min(waiting, MAX_PLACES)
        raw = self._sealed(own, key, places, now, enough=1, holders=len(to))
        return [Send(holder, LeaveWant(raw), cause=cause) for holder in to]

    def _sealed(
        self,
        own: Contact,
        key: SchedulingKey,
        places: int,
        now: Moment,
        *,
        enough: int,
        reach: int = 1,
        holders: int = 1,
    ) -> bytes:
        number = self._lessee.call(key, places, enough, now.mono_s + WANT_TTL_S)
        issued_unix_s = int(now.unix_s)
        want = Want(
            author=own,
            number=number,
            issued_unix_s=issued_unix_s,
            expires_unix_s=issued_unix_s + WANT_TTL_S,
            needs=key.needs,
            priority=key.priority,
            places=places,
            reach=reach,
            holders=holders,
            grant=self._lessee.shown(key),
        )
        return seal_want(self._identity, want)
