"""What the services part of a peer is told, and what it wants done."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from formation_p2p.core.effects import Effect
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.features.services.core.claim import SignedClaim
from formation_p2p.features.services.core.signed_spec import SignedSpec
from formation_p2p.features.services.core.spec import MAX_SERVICES, WorkerType
from formation_p2p.machine.core.bounds import check_amount
from formation_p2p.records.core.codec import MAX_INT

# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """What the services part of a peer is told."""


@dataclass(frozen=True, slots=True)
class ServeServices(ServiceRequest):
    """Run services that ask for workers of these types, at most so many at once. Raises
    InvalidInput."""

    types: frozenset[WorkerType]
    max_services: int = 4

    def __post_init__(self) -> None:
        if not self.types:
            raise InvalidInput("serve", f"names no type; name some of {', '.join(WorkerType)}")
        check_amount("max_services", self.max_services, 1, MAX_SERVICES)


@dataclass(frozen=True, slots=True)
class StopServing(ServiceRequest):
    """Run services no more: those that run are drained."""


class ReplicaState(StrEnum):
    """What the shell tells of a replica."""

    STARTING = "starting"
    READY = "ready"
    UNREADY = "unready"  # it runs, and its readiness check fails
    STOPPED = "stopped"  # as asked for
    FAILED = "failed"  # and is not started again


@dataclass(frozen=True, slots=True)
class ReplicaReported(ServiceRequest):
    """Of the replica that a StartReplica of this slot and epoch began. `why` is for people. On the
    average since the last report `busy` requests were under way, or refused and waiting."""

    service: str
    slot: int
    epoch: int
    state: ReplicaState
    outstanding: int = 0
    why: str = ""
    busy: float = 0.0


@dataclass(frozen=True, slots=True)
class PublishSpec(ServiceRequest):
    """Put a spec into the catalog. Ends in SpecPublished."""

    signed: SignedSpec


@dataclass(frozen=True, slots=True)
class Had:
    """A slot of a service, for which a replica was started on this worker."""

    service: str
    slot: int


@dataclass(frozen=True, slots=True)
class DrainReplica(ServiceRequest):
    """Stop the replica of a service that runs here, and start no other one for a while."""

    service: str


@dataclass(frozen=True, slots=True)
class ReadServices(ServiceRequest):
    """Which services are there, and where? Of those `named`, or of all. To be `sure`, those who
    claim to be ready are asked as well, and those who do not answer are left out. Ends in
    ServicesRead."""

    query: int
    named: tuple[str, ...] = ()
    sure: bool = False


@dataclass(frozen=True, slots=True)
class MembersServe(ServiceRequest):
    """So many members behind the gateway of this node serve a service, with so many requests; with
    none of them it is served here no more. Raises InvalidInput."""

    service: str
    members: int
    outstanding: int = 0

    def __post_init__(self) -> None:
        check_amount("members", self.members, 0, MAX_INT)


ServiceRequestEvent = (
    ServeServices
    | StopServing
    | ReplicaReported
    | PublishSpec
    | DrainReplica
    | ReadServices
    | MembersServe
)


# -- effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartReplica(Effect):
    """Start a replica, and tell by ReplicaReported what becomes of it. It may use these devices.
    Where it is to run `beside` the one that runs, that serves until it is told to stop; else it
    ends first."""

    signed: SignedSpec
    slot: int
    epoch: int
    device_ids: tuple[str, ...] = ()
    beside: bool = False


@dataclass(frozen=True, slots=True)
class StopReplica(Effect):
    """Have a replica finish what it serves, for so long at most, and end it. Ends in
    ReplicaReported with STOPPED."""

    service: str
    slot: int
    epoch: int
    drain_s: int


@dataclass(frozen=True, slots=True)
class ServicesRead(Effect):
    """What was found. Of the services `unknown` no peer answered; nothing is said of them here.
    Without `heard` not even the catalog was read: it is as this node remembers it."""

    query: int
    catalog: tuple[SignedSpec, ...]
    claims: tuple[SignedClaim, ...]
    unknown: tuple[str, ...] = ()
    heard: bool = True


@dataclass(frozen=True, slots=True)
class SpecPublished(Effect):
    """So many peers hold the spec by now. `why` is for people: empty where one does, and the spec
    is what counts for its service."""

    digest: bytes
    stored: int
    why: str = ""


class ServiceStep(StrEnum):
    """What happened to a slot, as this peer saw it."""

    PUBLISHED = "published"
    SUSPECTED = "suspected"
    GAP = "gap"
    CLAIMED = "claimed"
    YIELDED = "yielded"
    STARTED = "started"
    READY = "ready"
    UNREADY = "unready"
    SCALED = "scaled"
    RENEWED = "renewed"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ServiceEvent:
    """`why` is for people; `peer_id` is whom it is about, where that is another peer."""

    at_unix_s: float

    service: str
    slot: int
    step: ServiceStep
    why: str = ""
    peer_id: PeerId | None = field(default=None)


@dataclass(frozen=True, slots=True)
class EmitServiceEvent(Effect):
    """For the history that people read."""

    event: ServiceEvent


@dataclass(frozen=True, slots=True)
class Recalled:
    """What this node's disk has of an earlier run: the specs that it knew, as they were signed, and
    the slots that it had."""

    specs: tuple[bytes, ...]
    had: tuple[Had, ...] = ()


ToServices = ServiceRequestEvent | Recalled
ReplicaEffect = StartReplica | StopReplica
ServiceAnswer = ServicesRead | SpecPublished
ServiceEffect = ReplicaEffect | ServiceAnswer | EmitServiceEvent
