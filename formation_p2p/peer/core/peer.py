"""The whole peer as one state machine: `effects = peer.handle(event, now)`.

Pure. The same object runs in production, driven by `host/`, and in simulations, driven by
`sim/`. Its shell performs the effects, arms a timer for `next_timeout`, and hands back
what happens as events. Every node has the DHT and can submit; one that was told `Serve` works
for others as well.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import assert_never

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.dht.core import rpc
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.dht.core.store import RecordStore
from formation_p2p.discovery.core.finder import Finder, suits
from formation_p2p.discovery.core.publication import names_of
from formation_p2p.features.gangs.core.candidates import Means
from formation_p2p.features.gangs.core.events import EndGang, FormGang, ResizeGang
from formation_p2p.features.gangs.core.gangs import Gangs
from formation_p2p.features.quotas.core.quota_holder import QuotaHolder
from formation_p2p.features.quotas.core.vouching import Vouching
from formation_p2p.features.services.core.events import ServiceRequest
from formation_p2p.features.services.core.services import Services
from formation_p2p.features.services.core.shelf import Shelf
from formation_p2p.jobs.core.fetch import (
    CheckpointKept,
    CheckpointSpread,
    OutputsCopied,
    ResultFetched,
    ResultLost,
)
from formation_p2p.jobs.core.quorum_elections import Jury
from formation_p2p.jobs.core.scheduler import Scheduler
from formation_p2p.leases.core.lessee import Lessee
from formation_p2p.leases.core.session import Disconnected, Received, Send, Undelivered
from formation_p2p.peer.core import events
from formation_p2p.peer.core.charter_news import CharterNews
from formation_p2p.peer.core.completions import Completions
from formation_p2p.peer.core.effects import MemberMet, PeerEffect, RejectRequest
from formation_p2p.peer.core.events import BlobIndex
from formation_p2p.peer.core.inbox import Inbox
from formation_p2p.peer.core.lifecycle import Lifecycle
from formation_p2p.peer.core.parameters import DEFAULT_PARAMETERS, PeerParameters
from formation_p2p.peer.core.placement_context import PlacementContext
from formation_p2p.peer.core.renewal import Inviter, Inviters, Issuer, Renewal
from formation_p2p.peer.core.reports import Explanations, Reports
from formation_p2p.peer.core.reputation_gossip import ReputationGossip
from formation_p2p.peer.core.status import Status, status_of
from formation_p2p.peer.core.story import JobTaken, Story, StoryEntry, StoryEvent, StoryStep
from formation_p2p.peer.core.wants import Wants
from formation_p2p.peer.core.worker import Worker
from formation_p2p.placement.core.round_trips import RoundTrips
from formation_p2p.records.core.profile import Profile
from formation_p2p.trust.core.membership import CharterShelf, Membership
from formation_p2p.trust.core.network import Circles, Network, place_of
from formation_p2p.trust.core.own_grant import OwnGrant
from formation_p2p.trust.core.reciprocity import Reciprocity
from formation_p2p.trust.core.reputation import Reputation
from formation_p2p.wants.core.caller import Caller
from formation_p2p.workload.core.comparers import Read, read_plain
from formation_p2p.workload.core.scope import Place


class Peer:
    """`network` is as this peer joins it: its grant is bound to `identity`. `reputation` is what
    an earlier incarnation learnt of others, `name` what this node goes by, `membership` what other
    parts of the node judge peers by, too. `read` reads answers that are compared. Parts are
    read-only."""

    def __init__(
        self,
        identity: Identity,
        network: Network,
        rng: random.Random,
        reputation: Reputation | None = None,
        parameters: PeerParameters = DEFAULT_PARAMETERS,
        name: str = "",
        membership: Membership | None = None,
        read: Read = read_plain,
    ) -> None:
        self._identity = identity
        self.network = network
        self._met: list[MemberMet] = []
        self._rng = rng
        self.membership = membership or Membership(network.root_public_key)
        self.grant = OwnGrant(network)
        self._lifecycle = Lifecycle(network, self.grant, self._employ)
        shelf = Shelf(
            network.network_id, self.membership.denies_claim, self.membership.denies_publish
        )
        charters = CharterShelf(self.membership)
        store = RecordStore(
            self.membership.denies_work,
            lambda profile: names_of(profile, network.network_id, parameters.discovery.shards),
            suits,
            parameters.dht,
            self._met_worker,
            shelf,
            charters,
        )
        self._parameters = parameters
        self._records = store, shelf
        self.dht = Kademlia(identity.peer_id, store, rng, parameters=parameters.dht)
        self.dht.charter = lambda: self.membership.version
        self.charters = CharterNews(
            self.membership, charters, self.dht, identity.peer_id, lambda: self.network.grant
        )
        inviters = Inviters(self.dht, self.membership, network.network_id)
        self.renewal = Renewal(identity.peer_id, network, rng, inviters, parameters.renews)
        self._circles = Circles(identity.peer_id, network)
        self._round_trips = RoundTrips(identity.peer_id)
        self._blobs = BlobIndex()
        self.lessee = Lessee(network.grant, rng, self._round_trips.rtt_us, parameters.lease, name)
        self.lessee.root_public_key = network.root_public_key
        self.reputation = reputation or Reputation(identity.peer_id, parameters=parameters.trust)
        self._gossip = ReputationGossip(identity, network.grant, self.membership, self.reputation)
        self._context = PlacementContext(
            network, self.membership, self.reputation, self._circles, self._round_trips
        )
        self._story = Story(parameters.story)
        self._reciprocity = Reciprocity(lambda: self._place_of(self.network.grant))
        self._reciprocity.met(identity.peer_id, self._place_of(network.grant))
        self._finder = Finder(
            self.dht, network.network_id, self._context.labels, parameters.discovery
        )
        self.services = Services.of(
            identity,
            self.dht,
            self._finder,
            shelf,
            rng,
            parameters.services,
            lambda: self._lifecycle.own or Contact(identity.peer_id),
            lambda: self.network.grant,
            lambda: self.worker if self.grant.may_work else None,
        )
        self._wants = Wants(
            identity.peer_id,
            self.dht,
            store,
            self.membership,
            lambda peer, now: self._inbox.distrusts(peer, now),
            rng,
            parameters.announce,
        )
        self.scheduler = Scheduler(
            self._finder,
            self.lessee,
            self._context.authorised,
            self._context.candidate,
            self.reputation.note,
            self._story.note,
            Caller(
                identity,
                self.lessee,
                self._wants.relay,
                lambda: self._lifecycle.own,
                self._wants.size,
                parameters.announce,
            ),
            Jury(
                rng,
                self._context.marks,
                self._context.is_trusted,
                self.reputation.doubt,
                read,
            ),
            parameters.dispatch,
            self._reciprocity.gave,
        )
        facts = self._context.authorised, self._context.candidate
        means = Means(self._finder, self.lessee, *facts, rng, parameters.gang)
        self.gangs = Gangs(means, lambda: self._lifecycle.own or Contact(identity.peer_id))
        self.lessee.vouch = Vouching(
            identity, self.membership, lambda: self.lessee.grant, self.lessee.held.values
        ).voucher
        self.quotas = QuotaHolder(
            identity.peer_id,
            self.dht,
            self.membership,
            lambda: self.network.grant,
            parameters.escrow,
        )
        self._inbox = Inbox(
            identity.peer_id,
            self.lessee,
            self.scheduler,
            self.gangs,
            self.renewal,
            self._gossip,
            self.membership,
            self.reputation,
            parameters.trust.submit_milli,
            store,
            self._wants,
            self.quotas,
        )
        if parameters.renews:
            self._inbox.issuer = Inviter(
                identity,
                network.root_public_key,
                self.reputation,
                parameters.trust.submit_milli,
                lambda: self.membership.charter,
            )
        self._explanations = Explanations(self._finder, self.scheduler)
        self._reports = Reports(
            self._explanations, self.gangs, self.scheduler, self._gossip, self._story
        )
        self._completions = Completions(
            self.dht,
            store,
            self._finder,
            self.lessee,
            self.services,
            self._wants,
            self.charters,
            self._reports,
            self._context,
            self._lifecycle,
            self.renewal,
            inviters,
        )
        self._due_s = float("inf")

    @property
    def worker(self) -> Worker | None:
        """There once this peer works for others."""
        return self._lifecycle.worker

    def handle(self, event: events.PeerEvent, now: Moment) -> list[PeerEffect]:
        """What is to be done about an event, in order. `now` never goes back."""
        effects: list[PeerEffect] = []
        if now.mono_s >= self._due_s and not isinstance(event, events.Tick):
            # What has run out while the machine slept has run out before anything arrives now.
            effects += self._tick(now)
            effects += self._completions.settle(now)
        effects += self._dispatch(event, now)
        effects += self._completions.settle(now)
        effects = [*self._loop_back(effects, now), *self._met]
        self._met = []
        effects += self._lifecycle.completed()
        self._due_s = min(
            self.dht.next_timeout(),
            self.lessee.next_timeout(),
            self.scheduler.next_timeout(),
            self.gangs.next_timeout(),
            self.grant.next_timeout(),
            self.renewal.next_timeout(),
            self.services.next_timeout(),
            self.charters.next_timeout(),
            self.quotas.next_timeout(),
            float("inf") if self.worker is None else self.worker.next_timeout(),
        )
        self._story.emitted(effects, now)
        if self._parameters.validate:
            self.validate()
        return effects

    @property
    def untimely(self) -> int:
        """How many records came that are not of this time, by this machine's clock."""
        return sum(each.untimely for each in self._records)

    def status(self, now: Moment) -> Status:
        """What it is doing, for `formation top` and metrics. Changes nothing."""
        return status_of(self.scheduler, self.worker, self.gangs, self.grant.expires_unix_s, now)

    def story(self, task_id: str) -> tuple[StoryEntry, ...]:
        """The way of a task that was submitted here, as far as it is remembered."""
        return self._story.of(task_id, self.scheduler.live(task_id))

    def newest_steps(self, count: int) -> Sequence[tuple[Moment, StoryEvent]]:
        """What happened last to the tasks that were submitted here. From any thread."""
        return self._story.newest(count)

    def leases_of(self, peer_id: PeerId) -> bool:
        """Whether this node has a lease of a peer."""
        return any(each.lessor.peer_id == peer_id for each in self.lessee.held.values())

    def grant_of_owner(self, peer_id: PeerId) -> bytes | None:
        """That one showed who has a lease here."""
        return None if self.worker is None else self.worker.lessor.grant_shown_by(peer_id)

    def validate(self) -> None:
        """Raises InvariantBroken where two of its parts disagree: of leases, or of what runs."""
        self.lessee.validate()
        self.scheduler.validate()
        self.gangs.validate()
        self.services.validate()
        if self.worker is not None:
            self.worker.validate()

    def next_timeout(self) -> float:
        """When to hand in a Tick, on the monotonic clock; infinity for never."""
        return self._due_s

    def _dispatch(self, event: events.PeerEvent, now: Moment) -> Sequence[PeerEffect]:
        if isinstance(event, events.WorkerReport):
            return [] if self.worker is None else self.worker.handle_report(event, now)
        match event:
            case rpc.RequestReceived(sender=sender) | rpc.ResponseReceived(sender=sender):
                self.dht.handle(event, now)
                self.scheduler.heard(sender.peer_id)
                self.charters.heard(sender, event.charter, now)
            case (
                rpc.RequestFailed()
                | rpc.ReachabilityProbed()
                | rpc.InboundConnection()
                | rpc.PeerIdentified()
            ):
                self.dht.handle(event, now)
            case Received(sender, message):
                return self._inbox.received(sender, message, self.worker, now)
            case Undelivered(to):
                self.lessee.undelivered(event, now)
                if self.worker is not None:
                    self.worker.executions.interrupted(to)  # it may not have got the last
                again = [*self._wants.undelivered(to, now), *self.quotas.undelivered(to, now)]
                return [*self.renewal.undelivered(to, event.reason, now), *again]
            case Disconnected(sender):
                self.dht.disconnected(sender, now)
                self.lessee.disconnected(sender, now)
                if self.worker is not None:
                    return self.worker.disconnected(sender, now)
            case CheckpointKept() | CheckpointSpread():
                return self.scheduler.checkpoint_told(event, now)
            case OutputsCopied():
                return self.scheduler.outputs_copied(event, now)
            case ResultFetched() | ResultLost():
                return self.scheduler.fetch_ended(event, now)
            case ServiceRequest():
                self.services.handle(event, now)
                if self.worker is not None:
                    self.worker.serving(self.services.labels, now)
            case events.Measured(peer_id, rtt_us):
                self._round_trips.measured(peer_id, rtt_us, now)
            case events.RateMeasured(_, bytes_per_s):
                if self.worker is not None:
                    self.worker.rate_measured(bytes_per_s, now)
            case events.BlobsChanged():
                self._blobs.changed(event)
            case events.EnvironmentsChanged(warm):
                if self.worker is not None:
                    self.worker.environments_changed(warm)
            case events.Tick():
                return self._tick(now)
            case events.Joined(addresses, gates, remembered):
                self._lifecycle.is_at(Contact(self._identity.peer_id, addresses))
                self.services.begin(now)
                self.dht.moved(addresses, now)
                joining = self.dht.bootstrap(gates, now, "join", remembered=remembered)
                self._lifecycle.joins(joining)
                self.scheduler.licensed(self.grant.expires_unix_s, now)
                if not self.grant.is_foreign:
                    self.renewal.granted(self.network, now)
                return self._lifecycle.licensed(self.grant.look(now), now)
            case events.Recalled(specs, had, accounts):
                self.services.recalled(specs, had, now)
                self.quotas.recalled(accounts, now)
            case events.AddressesChanged():
                self._moved(event, now)
            case events.FoundNearby(contacts):
                self.dht.found_nearby(contacts, now)
            case events.Renewed(network):
                return self._renewed(network, now)
            case events.Issue(root, withdrawn):
                least_milli = self._parameters.trust.submit_milli
                self._inbox.issuer = Issuer(
                    root,
                    withdrawn,
                    self.reputation,
                    least_milli,
                    lambda: self.membership.charter,
                )
            case events.OfferCharter(raw):
                self.charters.offered(raw, now)
            case events.AskRenewal():
                return self.renewal.begin(now)
            case events.Serve():
                return self._lifecycle.serves(event, now)
            case events.Submit():
                return self._submit(event, now)
            case events.Resume(jobs, leases):
                incarnation = f".{self._rng.getrandbits(24):06x}"
                for saved in jobs:
                    self._story.note(JobTaken(saved.job.job_id, StoryStep.RESUMED), now)
                return self.scheduler.resume(jobs, leases, incarnation, now)
            case events.CancelJob(job_id):
                return self.scheduler.cancel(job_id, now)
            case FormGang() | EndGang() | ResizeGang():
                self.gangs.handle(event, now)
            case events.MoveTask(job_id, task_id, grace_s):
                return self.scheduler.move(job_id, task_id, grace_s, now)
            case events.OutputSeen(job_id, task_id, worker, more):
                return self.scheduler.output_seen(job_id, task_id, worker, more=more)
            case events.Vacate(grace_s, owners):
                return self._lifecycle.vacate(grace_s, owners, now)
            case events.Reopen():
                self._lifecycle.reopen()
            case events.Explain():
                return self._explanations.ask(event, now)
            case events.Leave():
                return self._leave(now)
            case _:
                assert_never(event)
        return []

    def _place_of(self, grant: bytes) -> Place:
        return place_of(grant, self.network.root_public_key)

    def _met_worker(self, profile: Profile) -> None:
        if profile.peer_id != self._identity.peer_id:
            self.dht.met(profile.peer_id)
            self._wants.met(profile)
            self._reciprocity.met(profile.peer_id, self._place_of(profile.grant))
            who = profile.peer_id, profile.name, profile.grant, profile.withdrawn
            met = MemberMet(*who, cause="its profile")
            self._met.append(met)

    def _moved(self, event: events.AddressesChanged, now: Moment) -> None:
        if self._lifecycle.own is None:
            return  # `Joined` tells where we are by then
        own = Contact(self._identity.peer_id, event.announced)
        self._lifecycle.is_at(own)
        self.dht.moved(event.direct, now)
        self.services.moved(now)
        if self.worker is not None:
            self.worker.moved(own, now)

    def _tick(self, now: Moment) -> list[PeerEffect]:
        self.dht.tick(now)
        self.lessee.tick(now)
        self.gangs.tick(now)
        self.services.tick(now)
        self.charters.tick(now)
        effects: list[PeerEffect] = [*self.scheduler.tick(now), *self.quotas.tick(now)]
        effects += self.renewal.tick(now)
        if now.mono_s >= self.grant.next_timeout():
            effects += self._lifecycle.licensed(self.grant.look(now), now)
        if self.worker is not None:
            effects += self.worker.tick(now)
        return effects

    def _renewed(self, network: Network, now: Moment) -> list[PeerEffect]:
        """Show the new grant from now on."""
        self.network = network
        self._context.renewed(network)
        self._lifecycle.renewed(network)
        self.lessee.grant = self._gossip.grant = network.grant
        self._circles.moved(network)
        self.renewal.granted(network, now)
        self._finder.labels = self._context.labels
        told = self.grant.taken(network, now)
        self.scheduler.licensed(self.grant.expires_unix_s, now)
        return self._lifecycle.licensed(told, now)

    def _employ(self, serve: events.Serve, own: Contact) -> Worker:
        labels = self.services.labels
        return Worker(
            self._identity,
            own,
            self.network,
            serve.serving(labels) if labels else serve,
            self.dht,
            self.membership,
            self._circles,
            self._blobs,
            self._round_trips,
            self._reciprocity,
            self._rng,
            self._parameters,
        )

    def _submit(self, event: events.Submit, now: Moment) -> Sequence[PeerEffect]:
        job_id = event.job.job_id
        if self._lifecycle.is_leaving:
            return [RejectRequest(job_id, "the node is leaving", cause="submit")]
        try:
            self.gangs.check(event.job.options, event.job.tasks)
            effects = self.scheduler.submit(event.job, now, durable=event.durable)
        except InvalidInput as error:
            return [RejectRequest(job_id, str(error), cause="submit")]
        self._story.note(JobTaken(job_id, StoryStep.SUBMITTED), now)
        return effects

    def _leave(self, now: Moment) -> list[PeerEffect]:
        if self._lifecycle.is_leaving:
            return []
        self.gangs.leave()
        self.services.stop(now)
        effects: list[PeerEffect] = [*self.scheduler.leave()]
        self.lessee.leave("leave", now)
        return [*effects, *self._lifecycle.leave(now)]

    def _loop_back(self, effects: list[PeerEffect], now: Moment) -> list[PeerEffect]:
        """A node may work for itself: what it sends to itself it receives at once."""
        outward: list[PeerEffect] = []
        for effect in effects:  # which grows on the way
            if isinstance(effect, Send) and effect.to.peer_id == self._identity.peer_id:
                effects += self._inbox.received(effect.to, effect.message, self.worker, now)
                effects += self._completions.settle(now)
            else:
                outward.append(effect)
        return outward
