"""The working half of a peer: it leases its machine, runs what comes, and announces itself."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.keyspace import Span
from formation_p2p.core.refusals import GrantEnded
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.discovery.core.announcer import Announcer
from formation_p2p.drivers.core.effects import ExecutionsEnded
from formation_p2p.drivers.core.executions import Executions
from formation_p2p.leases.core import messages
from formation_p2p.leases.core.budget import Budget
from formation_p2p.leases.core.lease import Lease, LeaseState
from formation_p2p.leases.core.lessor import Lessor
from formation_p2p.leases.core.session import Fence, Fenced, Send, Undelivered
from formation_p2p.machine.core.fits import fits_now
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.edge_link import EdgeLink
from formation_p2p.peer.core.effects import WorkerEffect
from formation_p2p.peer.core.events import (
    BlobIndex,
    EnvironmentsChanged,
    RateMeasured,
    Serve,
    WorkerReport,
)
from formation_p2p.peer.core.parameters import KernelParameters
from formation_p2p.placement.core.round_trips import RoundTrips
from formation_p2p.records.core.buckets import buckets_of
from formation_p2p.records.core.profile import Profile, SignedProfile, seal_profile
from formation_p2p.trust.core.admission import AdmissionController
from formation_p2p.trust.core.hours import Reciprocity
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.network import Circles, Network
from formation_p2p.trust.core.shares import Shares, Weights
from formation_p2p.wants.core.offers import OfferCounts, Offers
from formation_p2p.wants.core.want import Want


class Worker:
    """`own` is where this machine is reached; the grant of `network` shows that it may work."""

    def __init__(
        self,
        identity: Identity,
        own: Contact,
        network: Network,
        serve: Serve,
        dht: Kademlia[SignedProfile],
        membership: Membership,
        circles: Circles,
        blobs: BlobIndex,
        round_trips: RoundTrips,
        reciprocity: Reciprocity,
        rng: random.Random,
        parameters: KernelParameters,
    ) -> None:
        self._identity = identity
        self._own = own
        self._network = network
        self._link = EdgeLink(identity.peer_id, dht, round_trips)
        self._is_paused = self._is_left = False
        self._serve = serve
        self._sequence = 0
        self.announced: bytes | None = None  # the newest profile, from `start` on
        self.volunteered = Offers()
        self._environments: tuple[str, ...] = ()
        self.executions = Executions(parameters.lease)
        self._reciprocity = reciprocity
        reciprocity.begin(serve.hours_received)
        self.admission = AdmissionController(
            membership, dict(serve.labels), serve.used, serve.permissive, parameters.trust
        )
        self.lessor = Lessor(
            serve.capability,
            dict(serve.labels),
            serve.drivers,
            self.admission,
            rng,
            Budget(serve.shares, serve.capability.cpu_milli, circles.scope_of),
            self.executions.is_idle,
            serve.price_micro,
            blobs.places,
            parameters.lease,
            Shares(Weights(membership.share_of, reciprocity.factor).of, serve.shares_used),
            self.executions.saves,
        )
        buckets = self._buckets()
        self._ttl_s = parameters.discovery.ttl_s
        self.announcer = Announcer(
            own,
            dht,
            network.network_id,
            buckets,
            serve.capability,
            self._issue,
            rng,
            parameters.discovery,
        )

    def _buckets(self) -> tuple[str, ...]:
        serve = self._serve
        return buckets_of(serve.capability, dict(serve.labels), serve.drivers)

    def serving(self, labels: tuple[tuple[str, str], ...], now: Moment) -> None:
        """This worker is to be found by these labels as one that runs services."""
        serve = self._serve.serving(labels)
        if serve != self._serve and not self._is_left:
            self._serve = serve
            self._link.serves(labels, now)
            self.announcer.pause(now)
            self.announcer.buckets = self._buckets()
            if not self._is_paused:
                self.announcer.start(now)

    def suits(self, needs: Requirements) -> bool:
        """Whether this machine meets the needs of a replica, and has room for it now."""
        serve = self._serve
        has = needs, serve.capability, dict(serve.labels), serve.drivers
        return fits_now(*has, self.lessor.ledger.free) is None

    @property
    def offers(self) -> OfferCounts:
        """What became of those made for wants."""
        return self.volunteered.counts({lease.lease_id for lease in self.lessor})

    def volunteer(self, want: Want, now: Moment) -> list[WorkerEffect]:
        """Offer what is wanted, where that suits. It says nothing where it does not."""
        request = messages.PlacementRequest(want.number, want.needs, want.grant, want.priority)
        [answer, *effects] = self.lessor.requested(want.author, request, now)
        if isinstance(answer, Send) and isinstance(answer.message, messages.Offer):
            shown = replace(answer.message, profile=self.announced)
            effects.append(Send(answer.to, shown, cause="it has what is wanted"))
            self.volunteered.offered(shown.lease_id)
        return self._after(effects, now)

    def set_aside(self, name: str, needs: Requirements, now: Moment) -> tuple[str, ...] | None:
        """Reserve what a replica needs; the ids of its devices, None without room."""
        held = self.lessor.ledger.set_aside(f"service {name}", needs)
        self.announcer.changed(self.lessor.ledger.free, now)
        return None if held is None else tuple(claim.device_id for claim in held.gpus)

    def give_back(self, name: str, now: Moment) -> None:
        self.lessor.ledger.release(f"service {name}")
        self.announcer.changed(self.lessor.ledger.free, now)

    def start(self, now: Moment) -> None:
        """Raises InvalidInput where the profile would be too large."""
        self.lessor.begin(now)
        self._issue(now, (), False)
        self.announcer.start(now)

    def received(
        self, sender: Contact, message: messages.ToWorker, now: Moment
    ) -> list[WorkerEffect]:
        effects: list[WorkerEffect] = []
        match message:
            case messages.PlacementRequest():
                effects += self.lessor.requested(sender, message, now)
            case messages.Commit(lease_id, extension):
                self._extended(sender, extension, self.lessor.grant_of(sender, lease_id), now)
                effects += self.lessor.committed(sender, message, now)
                if any(map(_grants, effects)):
                    self.volunteered.committed(message.lease_id)
            case messages.Release():
                effects += self.lessor.released(sender, message, now)
            case messages.Renew(lease_id, _, grant, extension):
                held = self.lessor.grant_of(sender, lease_id)
                self._extended(sender, extension, held and (grant or held), now)
                effects += self.lessor.renewed(sender, message, now)
                lease = self.lessor.lease(sender, message.lease_id, message.fence)
                if isinstance(lease, Lease):
                    effects += self.executions.renewed(lease)
            case messages.Dispatch():
                lease = self.lessor.lease(sender, message.lease_id, message.fence)
                if isinstance(lease, Lease):
                    grant = lease.request.grant
                    refuses = partial(self.admission.refuses_read, grant, sender.peer_id, now)
                    effects += self.executions.dispatched(lease, message, refuses)
                else:
                    ended = messages.LeaseEnded(message.lease_id, lease)
                    effects.append(Send(sender, ended, cause=f"dispatch under {message.lease_id}"))
            case messages.Cancel() | messages.ResultAck() | messages.OutputRead():
                effects += self.executions.received(sender.peer_id, message)
            case _:
                assert_never(message)
        return self._after(effects, now)

    def _extended(
        self, sender: Contact, extension: bytes | None, grant: bytes | None, now: Moment
    ) -> None:
        if extension is not None and grant:
            accounts = self.admission.shared(grant, sender.peer_id)
            self.admission.network.extended(sender.peer_id, accounts, grant, extension, now)

    def moved(self, own: Contact, now: Moment) -> None:
        """Others reach this machine elsewhere, and are told at once."""
        if own != self._own:
            self._own = own
            self.announcer.moved(own, now)

    def environments_changed(self, event: EnvironmentsChanged, now: Moment) -> None:
        if set(event.warm) != set(self._environments):
            self.announcer.altered()
        self._environments = event.warm

    def rate_measured(self, event: RateMeasured, now: Moment) -> None:
        if self._link.measured(event.bytes_per_s, now):
            self.announcer.altered()

    def handle_report(self, event: WorkerReport, now: Moment) -> list[WorkerEffect]:
        effects: Sequence[WorkerEffect] = ()
        if isinstance(event, Fenced):
            self.lessor.fenced(event.lease_id)
        else:
            if isinstance(event, ExecutionsEnded):
                for ended in event.ended:
                    self.lessor.ended(event.lease_id, ended.outcome, now)
            effects = self.executions.handle_report(event)
        return self._after(effects, now)

    def undelivered(self, event: Undelivered, now: Moment) -> None:
        self.executions.interrupted(event.to)  # it may not have got the last

    def disconnected(self, peer_id: PeerId, now: Moment) -> list[WorkerEffect]:
        self.executions.interrupted(peer_id)
        self.announcer.disconnected(peer_id, now)
        return self._after(self.lessor.disconnected(peer_id, now), now)

    def vacate(self, grace_s: float, now: Moment) -> list[WorkerEffect]:
        """Take no more work, and have what runs for others go on elsewhere."""
        return self._after(self.lessor.leave(now, grace_s=grace_s, own=self._own.peer_id), now)

    def reopen(self) -> None:
        """Take work again."""
        if not (self._is_paused or self._is_left):
            self.lessor.reopen()

    @property
    def is_vacant(self) -> bool:
        """Whether no other node has a lease."""
        return all(lease.owner.peer_id == self._own.peer_id for lease in self.lessor)

    def leave(self, now: Moment) -> list[WorkerEffect]:
        self._is_left = True
        ended = self.lessor.leave(now)
        self.admission.network.leave(now)
        effects = self._after(ended, now)
        self.announcer.withdraw(now, "leave")
        return effects

    def licensed(self, network: Network, may_work: bool, now: Moment) -> list[WorkerEffect]:
        """`network` is as this node joins it now, with the grant that it shows, which lets it work
        or does not: then every lease ends, and nothing is announced until one does."""
        renewed, self._network = network.grant != self._network.grant, network
        effects: list[WorkerEffect] = []
        if self._is_left:
            return effects
        if not may_work and not self._is_paused:
            effects = self._after(self.lessor.leave(now, GrantEnded()), now)
            self.announcer.pause(now)
        elif may_work and self._is_paused:
            self.lessor.reopen()
            self.announcer.start(now)
        elif may_work and renewed:
            self.announcer.altered()
            effects = self._after((), now)
        self._is_paused = not may_work
        return effects

    def tick(self, now: Moment) -> list[WorkerEffect]:
        effects = self._after([*self.lessor.tick(now), *self._link.tick(now)], now)
        self.announcer.tick(now)
        return effects

    def next_timeout(self) -> float:
        return min(
            self.lessor.next_timeout(),
            self.announcer.next_timeout(),
            self._link.next_timeout(),
        )

    @property
    def has_leases(self) -> bool:
        return len(self.lessor) > 0

    def validate(self) -> None:
        """Raises InvariantBroken."""
        self.lessor.validate()
        self.executions.validate(
            {lease.lease_id for lease in self.lessor if lease.state is LeaseState.LEASED}
        )

    def _after(self, effects: Sequence[WorkerEffect], now: Moment) -> list[WorkerEffect]:
        for effect in effects:
            if isinstance(effect, Fence):
                self.executions.drop(effect.lease_id)
        notices = [self.executions.noticed(*each) for each in self.lessor.notices.take()]
        effects = [*effects, *(each for notice in notices for each in notice)]
        self.announcer.changed(self.lessor.ledger.free, now)
        return [
            *effects,
            *self.admission.take(),
            *self.lessor.shares.take(now),
            *self._reciprocity.take(now),
        ]

    def _issue(self, now: Moment, spans: tuple[Span, ...], withdrawn: bool) -> SignedProfile:
        """The profile as of now, signed. Each has a higher sequence number than the last, also
        across restarts: it starts from the Unix time in milliseconds."""
        self._sequence = max(self._sequence + 1, int(now.unix_s * 1000))
        profile = Profile(
            peer_id=self._identity.peer_id,
            sequence=self._sequence,
            issued_unix_s=int(now.unix_s),
            expires_unix_s=self._until_unix_s(now),
            capability=self._serve.capability,
            capacity=self.lessor.ledger.free,
            labels=self._serve.labels,
            drivers=self._serve.drivers,
            price_micro=self._serve.price_micro,
            addresses=self._own.addresses,
            grant=self._network.grant,
            withdrawn=withdrawn,
            spans=spans,
            mix=self.lessor.seen.mix,
            environments=self._environments,
            link=self._link.link(now),
        )
        signed = SignedProfile(profile, seal_profile(self._identity, profile))
        self.announced = signed.raw
        return signed

    def _until_unix_s(self, now: Moment) -> int:
        """No profile is good for longer than its grant."""
        issued_unix_s = int(now.unix_s)
        until_unix_s = min(issued_unix_s + int(self._ttl_s), self._network.rights.expires_unix_s)
        return max(until_unix_s, issued_unix_s + 1)


def _grants(effect: WorkerEffect) -> bool:
    """Whether it tells a scheduler that it has a lease."""
    return isinstance(effect, Send) and isinstance(effect.message, messages.Leased)
