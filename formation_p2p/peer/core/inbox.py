"""Which part of a peer each message of the work protocol is for, and what it is answered where
that part is missing: by a peer that does not work, or not for this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import BadRecord
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Denied, Leaving
from formation_p2p.dht.core.store import RecordStore
from formation_p2p.features.gangs.core.gangs import Gangs
from formation_p2p.features.quotas.core.quota_holder import QuotaHolder
from formation_p2p.jobs.core.scheduler import Scheduler
from formation_p2p.leases.core import messages
from formation_p2p.leases.core.lessee import Lessee
from formation_p2p.leases.core.session import Send
from formation_p2p.peer.core.effects import MemberMet, PeerEffect
from formation_p2p.peer.core.renewal import Issuer, Renewal
from formation_p2p.peer.core.renewal import answer as answer_renewal
from formation_p2p.peer.core.reputation_gossip import ReputationGossip
from formation_p2p.peer.core.wants import Wants
from formation_p2p.peer.core.worker import Worker
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.reputation import Reputation


class Inbox:
    """`submit_milli`: the trust that a peer needs to submit here. `issuer` renews the grants of
    others, where there is one."""

    def __init__(
        self,
        me: PeerId,
        lessee: Lessee,
        scheduler: Scheduler,
        gangs: Gangs,
        renewal: Renewal,
        gossip: ReputationGossip,
        membership: Membership,
        reputation: Reputation,
        submit_milli: int,
        store: RecordStore,
        wants: Wants,
        quotas: QuotaHolder,
    ) -> None:
        self._quotas = quotas
        self._store = store
        self._wants = wants
        self.issuer: Issuer | None = None
        self._me = me
        self._lessee = lessee
        self._scheduler = scheduler
        self._gangs = gangs
        self._renewal = renewal
        self._gossip = gossip
        self._membership = membership
        self._reputation = reputation
        self._submit_milli = submit_milli

    def received(
        self, sender: Contact, message: messages.WorkMessage, worker: Worker | None, now: Moment
    ) -> Sequence[PeerEffect]:
        """`worker` as it is now: it begins after the peer has joined."""
        if isinstance(message, messages.ToLessee):
            told: Sequence[PeerEffect] = ()
            if isinstance(message, messages.Offer) and message.profile is not None:
                told = self._volunteered(sender, message, now)
            self._lessee.received(sender, message, now)
            return told
        if isinstance(message, messages.ToScheduler):
            return self._scheduler.received(sender, message, now)
        if isinstance(message, messages.ToOwner):
            return self._gangs.reported(sender.peer_id, message.reports)
        if isinstance(message, messages.ToPeer):
            return self._gossip.received(sender, message, now)
        if isinstance(message, messages.ToHolder):
            return self._quotas.received(sender, message, now)
        if isinstance(message, messages.SliceAnswer):
            if worker is None:
                return []
            worker.escrow.answered(sender, message, now)
            return worker.escrowed(now)
        if isinstance(message, messages.ToListener):
            return self._wants.received(sender, message, worker, now)
        if isinstance(message, messages.AskGrant):
            answer = answer_renewal(self.issuer, sender, message, now)
            return [Send(sender, answer, cause=f"{sender.peer_id} asks for a new grant")]
        if isinstance(message, messages.GrantIssued | messages.GrantRefused):
            return self._renewal.answered(sender, message, now)
        if isinstance(message, messages.PlacementRequest) and self.distrusts(sender, now):
            denied = Denied("submit", "this node has had bad experience with you")
            refused = messages.RequestRefused(message.request_id, denied)
            return [Send(sender, refused, cause=f"{sender.peer_id} is not trusted")]
        if worker is None:
            return self._without_worker(sender, message, now)
        effects: list[PeerEffect] = [*worker.received(sender, message, now)]
        if isinstance(message, messages.PlacementRequest) and not any(map(_denies, effects)):
            cause = "it asks for a lease"
            effects.append(MemberMet(sender.peer_id, message.name, message.grant, cause=cause))
        return effects

    def _volunteered(
        self, sender: Contact, offer: messages.Offer, now: Moment
    ) -> Sequence[PeerEffect]:
        """An offer of a worker that was not asked, with its profile."""
        if offer.profile is None or self._lessee.called(offer.request_id, now) is None:
            return []  # none was called for: its profile is not worth a look
        try:
            profile = self._store.check(offer.profile, (), now).signed.profile
        except BadRecord:
            return []
        if profile.peer_id != sender.peer_id or profile.withdrawn:
            return []
        worker = Contact(sender.peer_id, profile.addresses)
        return self._scheduler.volunteered(worker, offer.request_id, profile, now)

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
            case messages.Release() | messages.Cancel() | messages.ResultAck() | messages.Enlist():
                return []  # all as the sender wants it
            case messages.OutputRead():
                return []  # nothing is printed here
            case _:
                assert_never(message)
        return [Send(sender, answer, cause=f"{sender.peer_id} takes this node for a worker")]


def _denies(effect: PeerEffect) -> bool:
    """Whether it tells a peer that its grant does not allow what it asks for."""
    return (
        isinstance(effect, Send)
        and isinstance(effect.message, messages.RequestRefused)
        and isinstance(effect.message.refusal, Denied)
    )
