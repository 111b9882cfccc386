"""The scheduler's side of wants: made, signed, and sent to where workers hear of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from formation_p2p.core.announce.parameters import AnnounceParameters
from formation_p2p.core.announce.tree import Relay
from formation_p2p.core.announce.want import MAX_HOLDERS, MAX_PLACES, WANT_TTL_S, Want, seal_want
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import Identity
from formation_p2p.core.negotiation.lessee import Lessee
from formation_p2p.core.negotiation.messages import HandWant, LeaveWant, SpreadWant
from formation_p2p.core.negotiation.session import Send
from formation_p2p.core.placement.task_options import SchedulingKey


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
