"""The services part of a peer: its catalog, the gaps that it fills, the replicas that it holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, assert_never

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import ensure
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.dht.core.operations import Published
from formation_p2p.discovery.core.finder import Found
from formation_p2p.features.services.core import events
from formation_p2p.features.services.core.autoscaling import Autoscaling
from formation_p2p.features.services.core.catalog import CatalogReader
from formation_p2p.features.services.core.claim import Claim, SignedClaim
from formation_p2p.features.services.core.filler import Filler
from formation_p2p.features.services.core.guards import Guards, Watcher
from formation_p2p.features.services.core.holders import Holders
from formation_p2p.features.services.core.holding import Holding
from formation_p2p.features.services.core.keeping import Keeping, Surge
from formation_p2p.features.services.core.means import Inquiries, Means, density, ignored
from formation_p2p.features.services.core.members import Members
from formation_p2p.features.services.core.parameters import ServiceParameters
from formation_p2p.features.services.core.queries import Queries
from formation_p2p.features.services.core.replica import Replica
from formation_p2p.features.services.core.shelf import HISTORY_S, Catalog, Shelf, catalog_name
from formation_p2p.features.services.core.signed_spec import SignedSpec
from formation_p2p.features.services.core.spec import WorkerType, labels_of, of_type
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.part import Completed, Labels, Part, claims, on, types_of
from formation_p2p.peer.core.peer import Kernel
from formation_p2p.peer.core.worker import Worker

# The nearest workers by which it is estimated how many there are: within a quarter.
COUNTED: Final = 16


class Services:
    """Call `settle` and `take` after each of the others, and when the DHT has kept something."""

    def __init__(self, means: Means, tell: Callable[[Labels, Moment], object]) -> None:
        """`tell` is told by which labels this worker is to be found."""
        self._means = means
        self._tell = tell
        means.shelf.kept = self._noticed
        self._catalog = CatalogReader(means)
        self._queries = Queries(means, self._catalog)
        self._serve: events.ServeServices | None = None
        self.holding = Holding(means, self._gone)
        self._keeping = Keeping(means, self.holding)
        self._members = Members(means, self.holding)
        self.autoscaling = Autoscaling(means, self.holding)
        self._filler = Filler(means, self.holding, self._may_run, self._wanted, self._look_soon)
        self._watcher = Watcher(means, self._seen)
        self._guards = Guards(means, self._filler.suspect)
        self._surge = Surge(means)
        self._avoided: dict[str, float] = {}  # until when, by the service
        self._crowded_since: dict[str, float] = {}
        self._count_s = float("inf")
        self._kept: list[Claim] = []
        self._known = (b"", False)
        self._due_s = float("inf")
        self._is_touched = True  # since `_due_s` was reckoned

    @classmethod
    def of(cls, kernel: Kernel[Any, Any], parameters: ServiceParameters) -> Services:
        """As a part of that peer."""
        identity, dht, admits = kernel.identity, kernel.dht, kernel.membership
        shelf = Shelf(kernel.network.network_id, admits.denies_claim, admits.denies_publish)
        kernel.records.shelve(shelf)
        return cls(
            Means(
                identity=identity,
                dht=dht,
                inquiries=Inquiries(dht, kernel.finder),
                holders=Holders(identity.peer_id, dht, parameters),
                shelf=shelf,
                rng=kernel.rng,
                parameters=parameters,
                own=lambda: kernel.own,
                grant=lambda: kernel.network.grant,
                machine=lambda: kernel.worker if kernel.grant.may_work else None,
            ),
            kernel.lifecycle.at_work(Worker.serving),
        )

    @property
    def part(self) -> Part:
        return Part(
            handles=on(self.handle, *types_of(events.ServiceRequestEvent))
            | on(self.recalled, events.Recalled),
            tick=self.tick,
            next_timeout=self.next_timeout,
            settle=self.settle,
            ended=claims(self.ended),
            found=claims(self.found),
            joined=self.begin,
            moved=self.moved,
            disconnected=self._disconnected,
            leave=self.stop,
            labels=lambda: self.labels,
            validate=self.validate,
        )

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """By which this worker is found as one that runs services."""
        return () if self._serve is None else labels_of(self._serve.types)

    def settle(self, now: Moment) -> list[events.ServiceEffect]:
        """Take note of what others have written here. What is to be done."""
        if self._kept:
            self._is_touched = True
            self._notice(now)
        known = self._means.shelf.catalog.hash, self._means.machine() is not None
        if (
            known != self._known
        ):  # the catalog may have come from the disk, before there is a worker
            self._known, self._is_touched = known, True
            self._learnt(now)
        effects, self._means.effects = self._means.effects, []
        return effects

    def recalled(self, event: events.Recalled, now: Moment) -> None:
        self._is_touched = True
        for raw in event.specs:
            self._means.shelf.keep(catalog_name(self._means.network_id), raw, now)
        self._means.had.update({each.service: each.slot for each in event.had})

    @property
    def catalog(self) -> Catalog:
        """What this node knows, and keeps for others."""
        return self._means.shelf.catalog

    @property
    def had(self) -> tuple[events.Had, ...]:
        """What the next run is to have again."""
        return tuple(events.Had(*each) for each in self._means.had.items())

    def begin(self, now: Moment) -> None:
        """The network is up."""
        self._means.shelf.begin(now)

    def handle(self, event: events.ServiceRequestEvent, now: Moment) -> None:
        self._is_touched = True
        match event:
            case events.ServeServices():
                self._serve = event
                self.holding.stops = False
                self._count_s = now.mono_s
                self._drain_others(event.types, now)
                self._catalog.start(now)
                self._learnt(now)
            case events.StopServing():
                self.stop(now)
            case events.ReplicaReported():
                self.holding.reported(event, now)
            case events.PublishSpec(signed):
                self._catalog.publish(signed, now)
            case events.DrainReplica(service):
                self._avoid(service, now)
                self.holding.drain(service, now, "asked for")
            case events.MembersServe():
                self._members.changed(event, now)
            case events.ReadServices():
                self._queries.read(event, now)
            case _:
                assert_never(event)
        self._tell(self.labels, now)

    def stop(self, now: Moment) -> None:
        """Run services no more."""
        self._is_touched = True
        self._serve = None
        self.holding.stops = True
        self._catalog.stop()
        self._guards.clear()
        for signed in self._means.specs():
            self._watcher.forget(signed.spec.name)
            self._filler.drop(signed.spec.name)
        for replica in self.holding:
            self.holding.drain(replica.service, now, "the worker stops serving")

    def _drain_others(self, types: frozenset[WorkerType], now: Moment) -> None:
        """What is of another type is for other workers from now on."""
        for replica in self.holding:
            if replica.signed.spec.worker_type not in types:
                why = "the worker serves other types of services now"
                self.holding.drain(replica.service, now, why)

    def moved(self, now: Moment) -> None:
        """This node is reached elsewhere."""
        self._is_touched = True
        self.holding.moved(now)

    def _disconnected(self, peer_id: PeerId, now: Moment) -> None:
        self._is_touched = True
        self._guards.disconnected(peer_id, now)

    def ended(self, ended: Completed, now: Moment) -> bool:
        """Whether it was asked for here."""
        is_ours = not isinstance(ended, Published) and self._means.inquiries.ended(ended, now)
        self._is_touched |= is_ours
        return is_ours

    def found(self, found: Found, now: Moment) -> bool:
        is_ours = self._means.inquiries.found(found, now)
        self._is_touched |= is_ours
        return is_ours

    def tick(self, now: Moment) -> None:
        self._is_touched = True
        self._catalog.tick(now)
        self._watcher.tick(now)
        self._guards.tick(now)
        self._filler.tick(now)
        self._members.tick(now)
        for replica in self.holding.tick(now):
            self._look(replica, now)
        if now.mono_s >= self._count_s:
            self._count(now)

    def next_timeout(self) -> float:
        """Reckoned anew only once this part was told of something: most of what a peer is asked
        does not concern it."""
        if self._is_touched:
            self._is_touched = False
            self._due_s = self._reckoned_due_s()
        return self._due_s

    def _reckoned_due_s(self) -> float:
        return min(
            self._catalog.next_timeout(),
            self._watcher.next_timeout(),
            self._guards.next_timeout(),
            self._filler.next_timeout(),
            self.holding.next_timeout(),
            self._members.next_timeout(),
            self._count_s,
        )

    def validate(self) -> None:
        """Raises InvariantBroken."""
        self.holding.validate()
        due_s = self._reckoned_due_s()
        ensure(self.next_timeout() == due_s, "services are due at another time than reckoned")

    # -- what is to be run ----------------------------------------------------------------------

    def _may_run(self, signed: SignedSpec) -> bool:
        """Whether this worker would start a replica now."""
        spec, machine = signed.spec, self._means.machine()
        if self._serve is None or spec.withdrawn or machine is None or spec.name in self.holding:
            return False
        if spec.worker_type not in self._serve.types or spec.name in self._avoided:
            return False
        if spec.pinned is not None and spec.pinned.home != self._means.peer_id:
            return False
        return len(self.holding) < self._serve.max_services and machine.suits(spec.needs)

    def _wanted(self, signed: SignedSpec, now: Moment) -> int:
        """How many replicas are to run. One more where a worker without any would take it from one
        that has several, for a while."""
        wanted = self._means.wanted(signed, now)
        if not self._surge.may(signed, wanted, now):
            return 0
        since_s = self._crowded_since.get(signed.spec.name)
        if since_s is None or now.mono_s - since_s < self._means.parameters.surplus_s:
            return wanted
        return wanted + 1 if signed.spec.pinned is None else wanted

    def _learnt(self, now: Moment) -> None:
        """The catalog has changed, or what this worker runs."""
        if self._serve is None:
            return
        for signed in self._means.shelf.catalog.specs.values():
            spec = signed.spec
            if spec.name in self.holding:
                self._keeping.judge(spec.name, now)
            if spec.withdrawn or spec.worker_type not in self._serve.types:
                self._watcher.forget(spec.name)
                self._filler.drop(spec.name)
                self.holding.unclaim(spec.name, now, "it is not to run here any more")
            elif spec.pinned is not None:
                if spec.pinned.home == self._means.peer_id:
                    self._start_pinned(signed, now)
                else:
                    self._filler.drop(spec.name)
                    self.holding.unclaim(spec.name, now, "it is pinned to another worker")
            else:
                self._watcher.watch(spec, now)

    def _start_pinned(self, signed: SignedSpec, now: Moment) -> None:
        """It asks no other peer: the spec says that this one alone may run it."""
        name = signed.spec.name
        if not self._may_run(signed):
            return
        if self.holding.claim(signed, 0, self._means.next_epoch(name, 0, now), now, ignored, 1):
            self.holding.start(name, now, "pinned to this worker")

    # -- what is seen ---------------------------------------------------------------------------

    def _noticed(self, signed: SignedClaim) -> None:
        """A claim is new on the shelf. It is looked at once the DHT has done with it."""
        self._kept.append(signed.claim)
        self._means.sight(signed.claim.service).take(signed)

    def _notice(self, now: Moment) -> None:
        kept, self._kept = self._kept, []
        if self._serve is None:
            return
        for service in dict.fromkeys(claim.service for claim in kept):
            self._means.see_refused(service, now)
        for claim in (each for each in kept if each.peer_id != self._means.peer_id):
            self._guards.noticed(claim, now)
            if claim.is_live:
                self.holding.disputed(claim, now)
                self._lacks(claim, now)

    def _lacks(self, claim: Claim, now: Moment) -> None:
        """A holder wants more replicas than there are: do not wait for the next look."""
        signed = self._means.spec(claim.service)
        if signed is not None and claim.wanted and self._may_run(signed):
            live = self._means.sight(claim.service).live(now.unix_s)
            if len(live) < self._means.wanted(signed, now):
                self._watcher.soon(claim.service, now, self._means.rng.random())

    def _look(self, replica: Replica, now: Moment) -> None:
        self._watcher.look(replica.service, now, "look")

    def _seen(self, service: str, now: Moment) -> None:
        """The claims of a service were read at one of their holders."""
        self._expire(now)
        self._means.see_refused(service, now)
        signed = self._means.spec(service)
        if service in self.holding:  # also one whose spec has expired: it ends
            self._crowded_since.pop(service, None)
            self._keeping.judge(service, now)
            self.autoscaling.judge(service, now)
        elif signed is not None:
            self._see_crowded(signed, now)
            overdue_s = now.unix_s - self._means.parameters.overdue_s
            overdue = self._means.sight(service).overdue(overdue_s)
            self._filler.consider(service, now, overdue)

    def _look_soon(self, service: str, now: Moment) -> None:
        self._watcher.soon(service, now, self._means.parameters.retry_s)

    def _see_crowded(self, signed: SignedSpec, now: Moment) -> None:
        """Whether a worker has more than its share while this one has nothing."""
        name = signed.spec.name
        live = self._means.sight(name).live(now.unix_s)
        idle = not len(self.holding) and not len(self._filler) and self._may_run(signed)
        share = self._means.share(signed.spec.worker_type)
        crowded = any(claim.services_held > share for claim in live.values())
        if idle and crowded and len(live) <= self._means.wanted(signed, now):
            self._crowded_since.setdefault(name, now.mono_s)
        else:
            self._crowded_since.pop(name, None)

    def _gone(self, service: str, failed: bool, now: Moment) -> None:
        self._filler.drop(service)
        if failed:
            self._avoid(service, now)
        signed = self._means.spec(service)
        if self._serve is not None and signed is not None:
            self._watcher.forget(service)
            self._learnt(now)

    def _avoid(self, service: str, now: Moment) -> None:
        self._avoided[service] = now.mono_s + self._means.parameters.avoid_s
        self._filler.drop(service)

    def _expire(self, now: Moment) -> None:
        for service, until_s in list(self._avoided.items()):
            if now.mono_s >= until_s:
                del self._avoided[service]
        for sight in self._means.sights.values():
            sight.expire(now.unix_s - HISTORY_S)

    # -- how many workers there are ---------------------------------------------------------------

    def _count(self, now: Moment) -> None:
        """Estimate it for each type that this worker serves."""
        ours = self._means.parameters
        self._count_s = float("inf")
        if self._serve is None:
            return
        self._count_s = now.mono_s + ours.count_s * (0.8 + 0.4 * self._means.rng.random())
        for kind in sorted(self._serve.types):
            then = partial(self._counted, kind)
            needs, key = of_type(Requirements(), kind), self._means.identity.key
            if not self._means.inquiries.find(needs, key, now, "count", then, COUNTED):
                self._count_s = now.mono_s + ours.retry_s

    def _counted(self, kind: WorkerType, found: Found, now: Moment) -> None:
        if not found.heard or not found.suited or not found.profiles:
            self._means.counts.pop(kind, None)
            if self._serve is not None:
                self._count_s = min(self._count_s, now.mono_s + self._means.parameters.retry_s * 3)
            return
        own = self._means.identity.key
        far = sorted(key_of_peer(profile.peer_id) ^ own for profile in found.profiles)
        # Beyond those that were asked for, only samples of the workers are found.
        few = far[:COUNTED]
        count = len(far) if found.complete else density(len(few), few[-1])
        self._means.counts[kind] = count
