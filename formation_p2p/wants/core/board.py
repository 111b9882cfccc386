"""The wants that schedulers left here, handed to workers that announce themselves and have room.

A peer that holds profiles knows workers of many shards. It hands a want at once to one that has
room, as far as announced, and later to those that announce themselves anew.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import BadRecord
from formation_p2p.core.identity import PeerId
from formation_p2p.core.latest import Latest
from formation_p2p.leases.core.limits import Limits
from formation_p2p.machine.core.fits import fits_now
from formation_p2p.records.core.profile import Profile
from formation_p2p.trust.core.membership import Membership
from formation_p2p.wants.core.want import AnnounceParameters, Want, open_want

# Which wants a peer takes: of members, each once, and only so many. What costs least comes first: a
# count, then a table, then the signature and the grant.
_ALL = ""


class Gate:
    """Of one peer, and one way that wants come: each way has counts of its own, so that none
    displaces what comes by another."""

    def __init__(self, membership: Membership, parameters: AnnounceParameters) -> None:
        ours = parameters
        self._membership = membership
        self._from_peer = Limits(ours.max_from_peer, ours.window_s, ours.max_counted)
        self._refused = Limits(ours.max_refused, ours.window_s, ours.max_counted)
        self._checked = Limits(ours.max_checked, ours.window_s, 1)
        self._of_author = Limits(ours.max_of_author, ours.window_s, ours.max_counted)
        self._of_invitation = Limits(ours.max_of_invitation, ours.window_s, ours.max_counted)
        self._seen = Latest[tuple[PeerId, int], None](ours.max_seen)

    def knows(self, want: Want) -> bool:
        """Whether it came this way, not long ago."""
        return want.name in self._seen

    def opened(
        self, sender: PeerId, raw: bytes, now: Moment, *, by_author: bool = False
    ) -> Want | None:
        """The want, where it is to be taken from this sender: from none but its author, if so
        said. None where it is not."""
        now_s = now.mono_s
        if self._refused.is_spent(sender, now_s):
            return None
        if not self._from_peer.admits(sender, now_s) or not self._checked.admits(_ALL, now_s):
            return None
        try:
            want = open_want(raw, now.unix_s)
        except BadRecord:
            self._refused.admits(sender, now_s)
            return None
        author = want.author.peer_id
        if want.name in self._seen or (by_author and author != sender):
            return None
        denied = self._membership.denies_submit(want.grant, author, want.needs, want.priority, now)
        if denied is not None:
            self._refused.admits(sender, now_s)
            return None
        invitation = self._membership.terms(want.grant).invitation
        if not self._of_author.admits(author, now_s):
            return None
        if not self._of_invitation.admits(invitation, now_s):
            return None
        self._seen[want.name] = None
        return want


class Handed(NamedTuple):
    """A want that goes to a worker."""

    to: Contact
    raw: bytes


@dataclass(slots=True)
class _Notice:
    """`left` more workers are to get it; those `handed` have."""

    want: Want
    raw: bytes
    left: int
    handed: set[PeerId] = field(default_factory=set)

    def hand(self, profile: Profile) -> Handed:
        self.left -= 1
        self.handed.add(profile.peer_id)
        return Handed(Contact(profile.peer_id, profile.addresses), self.raw)


class Noticeboard:
    """Of a peer that holds profiles for others. `gate` judges what is left."""

    def __init__(self, gate: Gate, rng: random.Random, parameters: AnnounceParameters) -> None:
        self._gate = gate
        self._rng = rng
        self._parameters = parameters
        self._notices: dict[tuple[PeerId, int], _Notice] = {}  # the one left longest ago first

    def left(
        self, sender: PeerId, raw: bytes, known: Iterable[Profile], now: Moment
    ) -> list[Handed]:
        """A scheduler leaves a want. Those of the workers `known` that get it at once."""
        want = self._gate.opened(sender, raw, now, by_author=True)
        if want is None:
            return []
        self._expire(now)
        of_author = [name for name in self._notices if name[0] == sender]
        if len(of_author) >= self._parameters.max_kept_of_author:
            del self._notices[of_author[0]]
        elif len(self._notices) >= self._parameters.max_kept:
            del self._notices[next(iter(self._notices))]
        most = want.places * self._parameters.answers
        notice = self._notices[want.name] = _Notice(want, raw, most)
        looked_at = islice(known, self._parameters.max_looked_at)
        suited = [profile for profile in looked_at if suits(want, profile)]
        self._rng.shuffle(suited)
        return [notice.hand(profile) for profile in suited[: self._share(want, len(suited))]]

    def announced(self, profile: Profile, now: Moment) -> list[Handed]:
        """A worker has announced itself anew: the wants that it gets."""
        if not self._notices:
            return []  # as a rule; it is asked for with every profile
        self._expire(now)
        fitting = [
            notice
            for notice in self._notices.values()
            if profile.peer_id not in notice.handed and suits(notice.want, profile)
        ]
        # One at a time: it has no room for the next once it has taken one.
        handed = [notice.hand(profile) for notice in fitting[:1]]
        self._notices = {name: each for name, each in self._notices.items() if each.left > 0}
        return handed

    def __len__(self) -> int:
        return len(self._notices)

    def _share(self, want: Want, suited: int) -> int:
        """How many of those with room get it from this holder at once. Together the holders hand it
        to as many as are to answer; where few have room, none leaves it to the others."""
        if suited <= self._parameters.few:
            return min(suited, want.places)
        aimed_at = want.places * self._parameters.answers / want.holders
        whole = int(aimed_at)
        return whole + (self._rng.random() < aimed_at - whole)

    def _expire(self, now: Moment) -> None:
        expired = [n for n, each in self._notices.items() if _is_over(each.want, now)]
        for name in expired:
            del self._notices[name]


def suits(want: Want, profile: Profile) -> bool:
    """Whether a worker other than its author could take a want, as far as announced."""
    if profile.withdrawn or profile.peer_id == want.author.peer_id:
        return False
    machine = profile.capability, dict(profile.labels), profile.drivers
    return fits_now(want.needs, *machine, profile.capacity) is None


def _is_over(want: Want, now: Moment) -> bool:
    return want.expires_unix_s <= now.unix_s
