"""Asking workers that did well what they think of other peers, and answering peers that ask.

A node asks a worker when it gets a lease there, unless the worker's word would count for nothing
with it. It answers every peer that shows a grant of its network. Both at most once in a while.
"""

from __future__ import annotations

from typing import Final, assert_never

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.leases.core.messages import MAX_ATTESTATIONS, AskOpinions, Opinions, ToPeer
from formation_p2p.leases.core.session import Send
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.reputation import Reputation

# What is told is signed anew no more often. To answer takes a millisecond, to read the answer two.
EVERY_S: Final = 600.0
# Peers that ask, or are asked, within that time. Leases last longer than it takes to get to more.
MAX_PEERS: Final = 4096


class Lately:
    """Peers, each once in `every_s`. Where there are too many, whichever origin has the most gives
    up its first to one that has fewer: a peer is shut out only by those of its own origin."""

    def __init__(self, max_peers: int = MAX_PEERS, every_s: float = EVERY_S) -> None:
        self._max_peers = max_peers
        self._every_s = every_s
        self._peers: dict[PeerId, tuple[float, str]] = {}  # the first comes first
        self._origins: dict[str, dict[PeerId, None]] = {}

    def has(self, peer_id: PeerId, now_s: float) -> bool:
        """Whether it was admitted less than `every_s` ago."""
        while self._peers:
            first = next(iter(self._peers))
            if self._peers[first][0] + self._every_s > now_s:
                break
            self._drop(first)
        return peer_id in self._peers

    def admits(self, peer_id: PeerId, now_s: float, origin: str = "") -> bool:
        if self.has(peer_id, now_s):
            return False
        if len(self._peers) >= self._max_peers and not self._makes_room_for(origin):
            return False
        self._peers[peer_id] = now_s, origin
        self._origins.setdefault(origin, {})[peer_id] = None
        return True

    def __contains__(self, peer_id: PeerId) -> bool:
        return peer_id in self._peers

    def _makes_room_for(self, origin: str) -> bool:
        largest = max(self._origins.values(), key=len)
        if len(largest) <= len(self._origins.get(origin, ())) + 1:
            return False
        self._drop(next(iter(largest)))
        return True

    def _drop(self, peer_id: PeerId) -> None:
        _, origin = self._peers.pop(peer_id)
        del self._origins[origin][peer_id]
        if not self._origins[origin]:
            del self._origins[origin]


class ReputationGossip:
    """`grant` shows that this node belongs to the network."""

    def __init__(
        self,
        identity: Identity,
        grant: bytes,
        membership: Membership,
        reputation: Reputation,
        max_peers: int = MAX_PEERS,
    ) -> None:
        self._identity = identity
        self.grant = grant
        self._membership = membership
        self._reputation = reputation
        self._asked = Lately(max_peers)
        self._answered = Lately(max_peers)
        self._heard = Lately(max_peers)

    def met(self, peer: Contact, now: Moment) -> list[Send]:
        """A lease was had of a peer."""
        if (
            peer.peer_id == self._identity.peer_id
            or self._reputation.voice_milli(peer.peer_id, now) == 0
            or not self._asked.admits(peer.peer_id, now.mono_s)
        ):
            return []
        return [Send(peer, AskOpinions(self.grant), cause=f"a lease at {peer.peer_id}")]

    def received(self, sender: Contact, message: ToPeer, now: Moment) -> list[Send]:
        """An answer counts only from a peer that was asked, and once."""
        match message:
            case AskOpinions(grant):
                return self._asked_by(sender, grant, now)
            case Opinions(attestations):
                if sender.peer_id in self._asked and self._heard.admits(sender.peer_id, now.mono_s):
                    self._reputation.heard(attestations, now)
                return []
            case _:
                assert_never(message)

    def _asked_by(self, sender: Contact, grant: bytes, now: Moment) -> list[Send]:
        if self._membership.denies_membership(grant, sender.peer_id, now):
            return []
        # The holder of a bearer grant can bind it to ids without end.
        invitation = self._membership.terms(grant).invitation
        if not self._answered.admits(sender.peer_id, now.mono_s, invitation):
            return []
        own = self._reputation.attest(self._identity, now)
        others = self._reputation.passed_on(MAX_ATTESTATIONS - 1, now)
        opinions = (() if own is None else (own,)) + others
        if not opinions:
            return []
        return [Send(sender, Opinions(opinions), cause=f"{sender.peer_id} asks for opinions")]
