"""Asking those who have worked well what they think of others, and answering who asks.

A node asks a worker when it gets a lease there, unless the worker's word would count for nothing
with it. It answers whoever shows a grant of its network. Both at most once in a while.
"""

from __future__ import annotations

from typing import Final

from formation_p2p.effects import Contact, Effect, Moment
from formation_p2p.identity import Identity, PeerId
from formation_p2p.negotiation.messages import MAX_ATTESTATIONS, AskOpinions, Opinions
from formation_p2p.negotiation.session import Send
from formation_p2p.trust.membership import Membership
from formation_p2p.trust.reputation import Reputation

# What is told is signed anew no more often. To answer takes a millisecond, to read the answer two.
EVERY_S: Final = 600.0
# Peers that ask, or are asked, within that time. Leases last longer than it takes to get to more.
MAX_PEERS: Final = 4096


class _Lately:
    """Peers, each once in EVERY_S."""

    def __init__(self) -> None:
        self._peers: dict[PeerId, float] = {}  # the first comes first

    def admits(self, peer_id: PeerId, now_s: float) -> bool:
        while self._peers:
            first = next(iter(self._peers))
            if self._peers[first] + EVERY_S > now_s:
                break
            del self._peers[first]
        if peer_id in self._peers or len(self._peers) >= MAX_PEERS:
            return False
        self._peers[peer_id] = now_s
        return True

    def __contains__(self, peer_id: PeerId) -> bool:
        return peer_id in self._peers


class Hearsay:
    """`grant` shows that this node belongs to the network."""

    def __init__(
        self, identity: Identity, grant: bytes, membership: Membership, reputation: Reputation
    ) -> None:
        self._identity = identity
        self._grant = grant
        self._membership = membership
        self._reputation = reputation
        self._asked = _Lately()
        self._answered = _Lately()
        self._told = _Lately()

    def met(self, peer: Contact, now: Moment) -> list[Effect]:
        """A lease was had of a peer."""
        if (
            peer.peer_id == self._identity.peer_id
            or self._reputation.voice_milli(peer.peer_id, now) == 0
            or not self._asked.admits(peer.peer_id, now.mono_s)
        ):
            return []
        return [Send(peer, AskOpinions(self._grant), cause=f"a lease at {peer.peer_id}")]

    def asked(self, sender: Contact, message: AskOpinions, now: Moment) -> list[Effect]:
        denied = self._membership.belongs(message.grant, sender.peer_id, now)
        if denied or not self._answered.admits(sender.peer_id, now.mono_s):
            return []
        own = self._reputation.attest(self._identity, now)
        told = (() if own is None else (own,)) + self._reputation.passed_on(MAX_ATTESTATIONS - 1)
        if not told:
            return []
        return [Send(sender, Opinions(told), cause=f"{sender.peer_id} asks for opinions")]

    def told(self, sender: Contact, message: Opinions, now: Moment) -> None:
        """An answer. Nobody is listened to who was not asked, nor twice."""
        if sender.peer_id in self._asked and self._told.admits(sender.peer_id, now.mono_s):
            self._reputation.heard(message.attestations, now)
