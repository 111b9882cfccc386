"""What comes for the worker of a peer, from other peers and from the DHT; and what other peers are
answered where this one does not work, or not for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from formation_p2p.core.effects import Contact, Effect, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Denied, Leaving
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.dht.core.operations import Published, Searched
from formation_p2p.leases.core import messages
from formation_p2p.leases.core.session import Send
from formation_p2p.peer.core.effects import MemberMet
from formation_p2p.peer.core.lifecycle import Lifecycle
from formation_p2p.peer.core.part import Completed, Effects
from formation_p2p.records.core.profile import SignedProfile
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.reputation import Reputation


@dataclass(slots=True, eq=False)
class Inbox:
    """`submit_milli`: the trust that a peer needs to submit here."""

    _me: PeerId
    _lifecycle: Lifecycle
    _dht: Kademlia[SignedProfile]
    _membership: Membership
    _reputation: Reputation
    _submit_milli: int

    def received(
        self, sender: Contact, message: messages.ToWorker, now: Moment
    ) -> Sequence[Effect]:
        worker = self._lifecycle.worker
        if isinstance(message, messages.PlacementRequest) and self.distrusts(sender, now):
            denied = Denied("submit", "this node has had bad experience with you")
            refused = messages.RequestRefused(message.request_id, denied)
            return [Send(sender, refused, cause=f"{sender.peer_id} is not trusted")]
        if worker is None:
            return self._without_worker(sender, message, now)
        effects: list[Effect] = [*worker.received(sender, message, now)]
        if isinstance(message, messages.PlacementRequest) and not any(map(_denies, effects)):
            cause = "it asks for a lease"
            effects.append(MemberMet(sender.peer_id, message.name, message.grant, cause=cause))
        return effects

    def gates_met(self, now: Moment) -> None:
        worker = self._lifecycle.worker
        for gate in self._dht.take_gates():
            if worker is not None:
                worker.announcer.met(gate, now)

    def ended(self, completed: Completed, now: Moment) -> Effects:
        """An operation of the DHT, if it is the worker's."""
        worker = self._lifecycle.worker
        if worker is None:
            return None
        if isinstance(completed, Published):
            if worker.announcer.published(completed, now):
                self._lifecycle.withdrawn()
            return ()
        if isinstance(completed, Searched) and worker.announcer.searched(completed, now):
            return ()
        return None

    def distrusts(self, submitter: Contact, now: Moment) -> bool:
        if submitter.peer_id == self._me:
            return False
        return self._reputation.score_milli(submitter.peer_id, now) < self._submit_milli

    def _without_worker(
        self, sender: Contact, message: messages.ToWorker, now: Moment
    ) -> list[Send]:
        """What a worker is asked, by peers that knew an earlier incarnation of it: a scheduler
        that learns at once that its leases are gone need not wait until they expire."""
        answer: messages.WorkMessage
        match message:
            case messages.PlacementRequest():
                denied = self._membership.denies_submit(
                    message.grant, sender.peer_id, message.needs, message.priority, now
                )
                answer = messages.RequestRefused(message.request_id, denied or Leaving())
            case messages.Commit(lease_id):
                answer = messages.CommitRefused(lease_id, Leaving())
            case messages.Renew(lease_id) | messages.Dispatch(lease_id):
                answer = messages.LeaseEnded(lease_id, Leaving())
            case messages.Release() | messages.Cancel() | messages.ResultAck():
                return []  # all as the sender wants it
            case messages.OutputRead():
                return []  # nothing is printed here
            case _:
                assert_never(message)
        return [Send(sender, answer, cause=f"{sender.peer_id} takes this node for a worker")]


def _denies(effect: Effect) -> bool:
    """Whether it tells a peer that its grant does not allow what it asks for."""
    return (
        isinstance(effect, Send)
        and isinstance(effect.message, messages.RequestRefused)
        and isinstance(effect.message.refusal, Denied)
    )
