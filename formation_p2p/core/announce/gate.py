"""Which wants a peer takes: of members, each once, and only so many.

What costs least comes first: a count, then a table, then the signature and the grant.
"""

from __future__ import annotations

from formation_p2p.core.announce.parameters import AnnounceParameters
from formation_p2p.core.announce.want import Want, open_want
from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import BadRecord
from formation_p2p.core.identity import PeerId
from formation_p2p.core.negotiation.limits import Limits
from formation_p2p.core.trust.grants import read_grant
from formation_p2p.core.trust.membership import Membership

_ALL = ""


class Gate:
    """Of one peer, and one way that wants come: each way has counts of its own, so that none
    displaces what comes by another."""

    def __init__(self, membership: Membership, parameters: AnnounceParameters) -> None:
        ours = parameters
        self._membership = membership
        self._max_seen = ours.max_seen
        self._from_peer = Limits(ours.max_from_peer, ours.window_s, ours.max_counted)
        self._refused = Limits(ours.max_refused, ours.window_s, ours.max_counted)
        self._checked = Limits(ours.max_checked, ours.window_s, 1)
        self._of_author = Limits(ours.max_of_author, ours.window_s, ours.max_counted)
        self._of_invitation = Limits(ours.max_of_invitation, ours.window_s, ours.max_counted)
        self._seen: dict[tuple[PeerId, int], None] = {}  # the one seen longest ago first

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
        invitation = read_grant(want.grant, self._membership.root_public_key).invitation
        if not self._of_author.admits(author, now_s):
            return None
        if not self._of_invitation.admits(invitation, now_s):
            return None
        if len(self._seen) >= self._max_seen:
            del self._seen[next(iter(self._seen))]
        self._seen[want.name] = None
        return want
