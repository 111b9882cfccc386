"""The kernel of a peer as one state machine: `effects = peer.handle(event, now)`.

Pure. The same object runs on a node, driven by `peer/shell.py`, and in simulations, driven by
`simulations/simulator/`. The program around it performs the effects, arms a timer for
`next_timeout`, and hands back what happens as events. Every node has the DHT and can submit; a node
that was told `Serve` works for others as well. `formation_p2p/assembly.py` adds the features, and
has the closed unions of all events and effects.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

from formation_p2p.core.effects import Contact, Effect, Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.dht.core import rpc
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.dht.core.operations import Searched
from formation_p2p.dht.core.store import RecordStore
from formation_p2p.discovery.core.finder import Finder, Found, suits
from formation_p2p.discovery.core.shard_membership import names_of
from formation_p2p.jobs.core.fetch import CheckpointEvent, FetchEvent, OutputsCopied
from formation_p2p.jobs.core.quorum_elections import Jury
from formation_p2p.jobs.core.scheduler import Scheduler
from formation_p2p.leases.core import messages
from formation_p2p.leases.core.lessee import LeaseHeld, Lessee, LesseeEvent, OffersCollected
from formation_p2p.leases.core.session import Disconnected, Received, Send, Undelivered
from formation_p2p.peer.core import events
from formation_p2p.peer.core.charter_news import CharterAdopted, CharterNews
from formation_p2p.peer.core.effects import MemberMet, RejectRequest
from formation_p2p.peer.core.events import BlobIndex, WorkerReport
from formation_p2p.peer.core.explanations import Explanations
from formation_p2p.peer.core.inbox import Inbox
from formation_p2p.peer.core.lifecycle import Lifecycle
from formation_p2p.peer.core.parameters import KernelParameters
from formation_p2p.peer.core.part import (
    Completed,
    Effects,
    Labels,
    Part,
    Table,
    Told,
    claims,
    offered,
    on,
    reads,
    told,
    types_of,
)
from formation_p2p.peer.core.placement_context import PlacementContext
from formation_p2p.peer.core.renewal import Inviter, Inviters, Issuer, Renewal, answer
from formation_p2p.peer.core.reputation_gossip import ReputationGossip
from formation_p2p.peer.core.status import Status, status_of
from formation_p2p.peer.core.story import JobTaken, Story, StoryEntry, StoryEvent, StoryStep
from formation_p2p.peer.core.wants import Wants
from formation_p2p.peer.core.worker import Worker
from formation_p2p.placement.core.round_trips import RoundTrips
from formation_p2p.records.core.profile import Profile
from formation_p2p.trust.core.hours import Reciprocity
from formation_p2p.trust.core.membership import CharterShelf, Membership
from formation_p2p.trust.core.network import Circles, Network, place_of
from formation_p2p.trust.core.renewal import OwnGrant
from formation_p2p.trust.core.reputation import Reputation
from formation_p2p.wants.core.caller import Caller
from formation_p2p.workload.core.comparers import Read, read_plain
from formation_p2p.workload.core.scope import Place

# After a new charter, leases are judged by it for as long as what was asked for before comes.
JUDGE_S: Final = 30.0

E = TypeVar("E")
F = TypeVar("F")


_NEVER: Final = float("inf")
# What a lessee is told by lessors, but for offers.
_ANSWERS: Final = tuple(each for each in types_of(messages.ToLessee) if each is not messages.Offer)


class Kernel(Generic[E, F]):
    """A peer without features: told of events `E`, it wants effects `F` done.

    `network` is as this peer joins it: its grant is bound to `identity`. `reputation` is what
    an earlier incarnation learnt of others, `name` what this node goes by, `membership` what other
    parts of the node judge peers by, too. `read` reads answers that are compared. What is public is
    for features, and read-only for others."""

    def __init__(
        self,
        identity: Identity,
        network: Network,
        rng: random.Random,
        reputation: Reputation | None,
        parameters: KernelParameters,
        name: str = "",
        membership: Membership | None = None,
        read: Read = read_plain,
    ) -> None:
        self.identity = identity
        self.network = network
        self._met: list[MemberMet] = []
        self.rng = rng
        self.membership = membership or Membership(network.root_public_key)
        self.grant = OwnGrant(network)
        self.lifecycle = Lifecycle(network, self.grant, self._employ)
        charters = CharterShelf(self.membership)
        self._parameters = parameters
        self.records = self._made_store(charters)
        self.dht = Kademlia(identity.peer_id, self.records, rng, parameters=parameters.dht)
        self.dht.charter = lambda: self.membership.version
        self.charters = CharterNews(
            self.membership, charters, self.dht, identity.peer_id, lambda: self.network.grant
        )
        inviters = Inviters(self.dht, self.membership, network.network_id)
        self.renewal = Renewal(identity.peer_id, network, rng, inviters, parameters.renews)
        self._circles = Circles(identity.peer_id, network)
        self.round_trips = RoundTrips(identity.peer_id)
        self._blobs = BlobIndex()
        self.lessee = Lessee(network.grant, rng, self.round_trips.rtt_us, parameters.lease, name)
        self.lessee.root_public_key = network.root_public_key
        self.reputation = reputation or Reputation(identity.peer_id, parameters=parameters.trust)
        self._gossip = ReputationGossip(identity, network.grant, self.membership, self.reputation)
        self.context = PlacementContext(
            network, self.membership, self.reputation, self._circles, self.round_trips
        )
        self._story = Story(parameters.story)
        self._reciprocity = Reciprocity(lambda: self._place_of(self.network.grant))
        self._reciprocity.met(identity.peer_id, self._place_of(network.grant))
        self.finder = Finder(
            self.dht, network.network_id, self.context.labels, parameters.discovery
        )
        self._wants = self._made_wants()
        self.scheduler = self._made_scheduler(read)
        self._inbox = Inbox(
            identity.peer_id,
            self.lifecycle,
            self.dht,
            self.membership,
            self.reputation,
            parameters.trust.submit_milli,
        )
        self._issuer = self._made_inviter() if parameters.renews else None
        self._explanations = Explanations(self.finder, self.scheduler)
        self._judge_until_s = float("-inf")
        self._due_s = float("inf")
        self._assemble()

    def _made_store(self, charters: CharterShelf) -> RecordStore:
        parameters, network_id = self._parameters, self.network.network_id
        return RecordStore(
            self.membership.denies_work,
            lambda profile: names_of(profile, network_id, parameters.discovery.shards),
            suits,
            parameters.dht,
            self._met_worker,
            [charters],
        )

    def _made_wants(self) -> Wants:
        return Wants(
            self.identity.peer_id,
            self.dht,
            self.records,
            self.membership,
            lambda peer, now: self._inbox.distrusts(peer, now),
            lambda: self.worker,
            self.rng,
            self._parameters.announce,
        )

    def _made_scheduler(self, read: Read) -> Scheduler:
        parameters = self._parameters
        return Scheduler(
            self.finder,
            self.lessee,
            self.context.authorised,
            self.context.candidate,
            self.reputation.note,
            self._story.note,
            Caller(
                self.identity,
                self.lessee,
                self._wants.relay,
                lambda: self.lifecycle.own,
                self._wants.size,
                parameters.announce,
            ),
            Jury(
                self.rng,
                self.context.marks,
                self.context.is_trusted,
                self.reputation.doubt,
                read,
            ),
            parameters.dispatch,
            self._reciprocity.gave,
        )

    def _made_inviter(self) -> Issuer:
        return Inviter(
            self.identity,
            self.network.root_public_key,
            self.reputation,
            self._parameters.trust.submit_milli,
            lambda: self.membership.charter,
        )

    # -- the table --------------------------------------------------------------------------------

    def _assemble(self, *features: Part) -> None:
        """Join these parts with the kernel's own, once all are there."""
        before, after = self._before_features(), (*self._of_submitter(), *self._of_node())
        self.table = Table((*before, *features, *after))

    def _before_features(self) -> tuple[Part, ...]:
        dht, lessee = self.dht, self.lessee
        return (
            Part(  # the DHT
                handles=on(self._of_dht, *types_of(rpc.DhtEvent))
                | on(lambda each, now: dht.found_nearby(each.contacts, now), events.FoundNearby),
                tick=dht.tick,
                next_timeout=dht.next_timeout,
                disconnected=dht.disconnected,
            ),
            Part(  # leases that this peer has of others
                reads=reads(self._offered, messages.Offer) | reads(lessee.received, *_ANSWERS),
                handles=on(
                    lambda each, now: self.round_trips.measured(each.peer_id, each.rtt_us, now),
                    events.Measured,
                ),
                tick=lessee.tick,
                next_timeout=lessee.next_timeout,
                undelivered=lessee.undelivered,
                disconnected=lessee.disconnected,
                validate=lessee.validate,
            ),
        )

    def _of_submitter(self) -> tuple[Part, ...]:
        scheduler, renewal = self.scheduler, self.renewal
        return (
            Part(  # the charter
                handles=on(
                    lambda each, now: self.charters.offered(each.raw, now), events.OfferCharter
                ),
                tick=self.charters.tick,
                next_timeout=self.charters.next_timeout,
                settle=self._chartered,
                ended=claims(self.charters.ended),
            ),
            Part(  # jobs
                reads=reads(scheduler.received, *types_of(messages.ToScheduler)),
                handles=on(self._submit, events.Submit)
                | on(self._resume, events.Resume)
                | on(
                    lambda each, now: scheduler.cancel(each.job_id, each.waiting, now),
                    events.CancelJob,
                )
                | on(self._move, events.MoveTask)
                | on(self._output_seen, events.OutputSeen)
                | on(scheduler.checkpoint_told, *types_of(CheckpointEvent))
                | on(scheduler.outputs_copied, OutputsCopied)
                | on(scheduler.fetch_ended, *types_of(FetchEvent))
                | on(self._explanations.ask, events.Explain),
                tick=scheduler.tick,
                next_timeout=scheduler.next_timeout,
                found=self._found,
                negotiated=self._negotiated,
                leave=lambda now: scheduler.leave(),
                validate=scheduler.validate,
            ),
            Part(  # grants, and who renews them
                reads=reads(self._asked_for_grant, messages.AskGrant)
                | reads(renewal.answered, *types_of(messages.GrantIssued | messages.GrantRefused)),
                handles=on(self._issue, events.Issue)
                | on(self._renewed, events.Renewed)
                | on(lambda each, now: renewal.begin(now), events.AskRenewal),
                tick=renewal.tick,
                next_timeout=renewal.next_timeout,
                ended=renewal.ended,
                undelivered=lambda each, now: renewal.undelivered(each.to, each.reason, now),
            ),
        )

    def _of_node(self) -> tuple[Part, ...]:
        wants, lifecycle = self._wants, self.lifecycle
        at_work = lifecycle.at_work
        return (
            Part(  # this node's place in its network
                handles=on(self._joined, events.Joined)
                | on(self._moved, events.AddressesChanged)
                | on(lifecycle.serves, events.Serve)
                | on(lifecycle.vacate, events.Vacate)
                | on(lambda each, now: lifecycle.reopen(), events.Reopen)
                | on(lambda each, now: self._leave(now), events.Leave)
                | on(lambda each, now: self._tick(now), events.Tick),
                tick=self._look_at_grant,
                next_timeout=self.grant.next_timeout,
                ended=self._bootstrapped,
            ),
            Part(  # work for others
                reads=reads(self._inbox.received, *types_of(messages.ToWorker)),
                handles=on(at_work(Worker.handle_report), *types_of(WorkerReport))
                | on(at_work(Worker.rate_measured), events.RateMeasured)
                | on(at_work(Worker.environments_changed), events.EnvironmentsChanged)
                | on(lambda each, now: self._blobs.changed(each), events.BlobsChanged),
                tick=lambda now: None if self.worker is None else self.worker.tick(now),
                next_timeout=lambda: _NEVER if self.worker is None else self.worker.next_timeout(),
                settle=self._inbox.gates_met,
                ended=self._inbox.ended,
                undelivered=at_work(Worker.undelivered),
                disconnected=at_work(Worker.disconnected),
                validate=lambda: None if self.worker is None else self.worker.validate(),
            ),
            Part(  # wants of others
                reads=reads(wants.received, *types_of(messages.ToListener)),
                settle=wants.settle,
                undelivered=lambda each, now: wants.undelivered(each.to, now),
            ),
            Part(  # reputation
                reads=reads(self._gossip.received, *types_of(messages.ToPeer)),
            ),
            Part(  # discovery: the last, which knows of each search whether it is its own
                ended=self._searched,
            ),
        )

    @property
    def worker(self) -> Worker | None:
        """There once this peer works for others."""
        return self.lifecycle.worker

    @property
    def own(self) -> Contact:
        """Where this peer is reached, as far as it is known."""
        return self.lifecycle.own or Contact(self.identity.peer_id)

    def handle(self, event: E, now: Moment) -> list[F]:
        """What is to be done about an event, in order. `now` never goes back."""
        effects: list[Any] = []
        if now.mono_s >= self._due_s and not isinstance(event, events.Tick):
            # What has run out while the machine slept has run out before anything arrives now.
            effects += self._tick(now)
            effects += self._settle(now)
        effects += self._dispatch(event, now)
        effects += self._settle(now)
        effects = [*self._loop_back(effects, now), *self._met]
        self._met = []
        effects += self.lifecycle.completed()
        self._due_s = min([due() for due in self.table.timeouts])
        self._story.emitted(effects, now)
        if self._parameters.validate:
            self.validate()
        return effects

    def _dispatch(self, event: object, now: Moment) -> Sequence[Effect]:
        match event:
            case Received(sender, message):
                read = self.table.reads.get(type(message))
                return () if read is None else read(sender, message, now) or ()
            case Undelivered():
                return told(event, self.table.undelivered, now)
            case Disconnected(peer_id):
                return told(peer_id, self.table.disconnected, now)
            case _:
                return self.table.handles[type(event)](event, now) or ()

    def _settle(self, now: Moment) -> list[Effect]:
        """Carry what parts complete to those that wait for it, until nothing is left to carry."""
        effects: list[Effect] = []
        while True:
            for settle in self.table.settles:
                effects += settle(now) or ()
            asked, completed = self.dht.take()
            sent, negotiated = self.lessee.take()
            effects += [*asked, *sent]
            found = self.finder.take()
            if not completed and not negotiated and not found:
                return effects
            for operation in completed:
                effects += offered(operation, self.table.ended, now)
            for event in negotiated:
                effects += self._noted(event, now)
                effects += offered(event, self.table.negotiated, now)
            for search in found:
                effects += offered(search, self.table.found, now)

    def _noted(self, event: LesseeEvent, now: Moment) -> Sequence[Effect]:
        """Of whomever the lease is."""
        if not isinstance(event, OffersCollected):
            self._story.note(event, now)
        return self._gossip.met(event.lease.lessor, now) if isinstance(event, LeaseHeld) else ()

    def _tick(self, now: Moment) -> list[Effect]:
        return [effect for tick in self.table.ticks for effect in tick(now) or ()]

    def _loop_back(self, effects: list[Any], now: Moment) -> list[Any]:
        """A node may work for itself: what it sends to itself it receives at once."""
        outward: list[Any] = []
        for effect in effects:  # which grows on the way
            if isinstance(effect, Send) and effect.to.peer_id == self.identity.peer_id:
                effects += self._dispatch(Received(effect.to, effect.message), now)
                effects += self._settle(now)
            else:
                outward.append(effect)
        return outward

    def status(self, now: Moment) -> Status:
        """What it is doing, for `formation top` and metrics. Changes nothing."""
        return status_of(self.scheduler, self.worker, self.grant.expires_unix_s, now)

    def told(self) -> list[Told]:
        """What features add to that."""
        return [told() for told in self.table.told]

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
        for validate in self.table.validates:
            validate()

    def next_timeout(self) -> float:
        """When to hand in a Tick, on the monotonic clock; infinity for never."""
        return self._due_s

    # -- the DHT, discovery -----------------------------------------------------------------------

    def _of_dht(self, event: rpc.DhtEvent, now: Moment) -> None:
        self.dht.handle(event, now)
        if isinstance(event, rpc.RequestReceived | rpc.ResponseReceived):
            self.scheduler.heard(event.sender.peer_id)
            self.charters.heard(event.sender, event.charter, now)

    def _searched(self, completed: Completed, now: Moment) -> Effects:
        if isinstance(completed, Searched):
            self.finder.searched(completed, now)
        return ()

    def _place_of(self, grant: bytes) -> Place:
        return place_of(grant, self.network.root_public_key)

    def _met_worker(self, profile: Profile) -> None:
        if profile.peer_id != self.identity.peer_id:
            self.dht.met(profile.peer_id)
            self._wants.met(profile)
            self._reciprocity.met(profile.peer_id, self._place_of(profile.grant))
            who = profile.peer_id, profile.name, profile.grant, profile.withdrawn
            met = MemberMet(*who, cause="its profile")
            self._met.append(met)

    # -- jobs, and the leases that they run under -------------------------------------------------

    def _submit(self, event: events.Submit, now: Moment) -> Effects:
        job_id = event.job.job_id
        if self.lifecycle.is_leaving:
            return [RejectRequest(job_id, "the node is leaving", cause="submit")]
        try:
            for check in self.table.checks:
                check(event.job)
            effects = self.scheduler.submit(event.job, now, durable=event.durable)
        except InvalidInput as error:
            return [RejectRequest(job_id, str(error), cause="submit")]
        self._story.note(JobTaken(job_id, StoryStep.SUBMITTED), now)
        return effects

    def _resume(self, event: events.Resume, now: Moment) -> Effects:
        incarnation = f".{self.rng.getrandbits(24):06x}"
        for saved in event.jobs:
            self._story.note(JobTaken(saved.job.job_id, StoryStep.RESUMED), now)
        return self.scheduler.resume(event.jobs, event.leases, incarnation, now)

    def _move(self, event: events.MoveTask, now: Moment) -> Effects:
        return self.scheduler.move(event.job_id, event.task_id, event.grace_s, now)

    def _output_seen(self, event: events.OutputSeen, now: Moment) -> Effects:
        seen = event.job_id, event.task_id, event.worker
        return self.scheduler.output_seen(*seen, more=event.more)

    def _offered(self, sender: Contact, offer: messages.Offer, now: Moment) -> Effects:
        """Also by a worker that was not asked, with its profile: it counts where a call stands."""
        told: Effects = ()
        if offer.profile is not None and self.lessee.called(offer.request_id, now) is not None:
            profile = self._wants.volunteer(sender.peer_id, offer.profile, now)
            if profile is not None:
                worker = Contact(sender.peer_id, profile.addresses)
                told = self.scheduler.volunteered(worker, offer.request_id, profile, now)
        self.lessee.received(sender, offer, now)
        return told

    def _found(self, found: Found, now: Moment) -> Effects:
        explained = self._explanations.found(found, now)
        return self.scheduler.found(found, now) if explained is None else [explained]

    def _negotiated(self, event: LesseeEvent, now: Moment) -> Effects:
        if isinstance(event, OffersCollected):
            self.lessee.turn_down(event.offers, "they are not waited for any more")
            return ()
        return self.scheduler.negotiated([event], now)

    # -- this node in its network -----------------------------------------------------------------

    def _joined(self, event: events.Joined, now: Moment) -> Effects:
        self.lifecycle.is_at(Contact(self.identity.peer_id, event.addresses))
        for joined in self.table.joined:
            joined(now)
        self.dht.moved(event.addresses, now)
        known = event.remembered
        self.lifecycle.joins(self.dht.bootstrap(event.gates, now, "join", remembered=known))
        self.scheduler.licensed(self.grant.expires_unix_s, now)
        if not self.grant.is_foreign:
            self.renewal.granted(self.network, now)
        return self.lifecycle.licensed(self.grant.look(now), now)

    def _bootstrapped(self, completed: Completed, now: Moment) -> Effects:
        if not self.lifecycle.is_joining_by(completed.operation):
            return None
        again = self.dht.fall_back(now)
        if again is None:
            self.charters.begin(now)
        return self.lifecycle.joined(again, now)

    def _moved(self, event: events.AddressesChanged, now: Moment) -> None:
        if self.lifecycle.own is None:
            return  # `Joined` tells where we are by then
        own = Contact(self.identity.peer_id, event.announced)
        self.lifecycle.is_at(own)
        self.dht.moved(event.direct, now)
        for moved in self.table.moved:
            moved(now)
        if self.worker is not None:
            self.worker.moved(own, now)

    def _leave(self, now: Moment) -> Sequence[Effect]:
        if self.lifecycle.is_leaving:
            return ()
        effects = [effect for leave in self.table.leaves for effect in leave(now) or ()]
        self.lessee.leave("leave", now)
        return [*effects, *self.lifecycle.leave(now)]

    # -- grants, the charter ----------------------------------------------------------------------

    def _look_at_grant(self, now: Moment) -> Effects:
        if now.mono_s < self.grant.next_timeout():
            return ()
        return self.lifecycle.licensed(self.grant.look(now), now)

    def _issue(self, event: events.Issue, now: Moment) -> None:
        self._issuer = Issuer(
            event.root,
            event.withdrawn,
            self.reputation,
            self._parameters.trust.submit_milli,
            lambda: self.membership.charter,
        )

    def _asked_for_grant(self, sender: Contact, message: messages.AskGrant, now: Moment) -> Effects:
        answered = answer(self._issuer, sender, message, now)
        return [Send(sender, answered, cause=f"{sender.peer_id} asks for a new grant")]

    def _renewed(self, event: events.Renewed, now: Moment) -> Effects:
        """Show the new grant from now on."""
        self.network = network = event.network
        self.context.renewed(network)
        self.lifecycle.renewed(network)
        self.lessee.grant = self._gossip.grant = network.grant
        self._circles.moved(network)
        self.renewal.granted(network, now)
        self.finder.labels = self.context.labels
        taken = self.grant.taken(network, now)
        self.scheduler.licensed(self.grant.expires_unix_s, now)
        return self.lifecycle.licensed(taken, now)

    def _chartered(self, now: Moment) -> Effects:
        """What came of charters. Where there is a new one, who is banned is here no more."""
        news = self.charters.take()
        if any(isinstance(each, CharterAdopted) for each in news):
            self.records.judge_again(now)
            self.renewal.judged(now)
            self._judge_until_s = now.mono_s + JUDGE_S
        if now.mono_s < self._judge_until_s:  # offers that are being taken up, too
            self.lessee.forsake(lambda lease: self.context.refuses(lease, now))
        return news

    # -- work for others --------------------------------------------------------------------------

    @property
    def labels(self) -> Labels:
        """Of what this node's worker serves as."""
        return tuple(label for of in self.table.labels for label in of())

    def _employ(self, serve: events.Serve, own: Contact) -> Worker:
        labels = self.labels
        worker = Worker(
            self.identity,
            own,
            self.network,
            serve.serving(labels) if labels else serve,
            self.dht,
            self.membership,
            self._circles,
            self._blobs,
            self.round_trips,
            self._reciprocity,
            self.rng,
            self._parameters,
        )
        for employed in self.table.employed:
            employed(worker)
        return worker
