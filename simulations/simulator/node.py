"""One peer of a simulated world, with its clock, and what it has reported so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from formation_p2p.assembly import PeerEffect, PeerEvent
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import Identity
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.features.gangs.core.events import EndGang, FormGang, GangEvent, JoinGang
from formation_p2p.features.gangs.core.spec import GangSpec
from formation_p2p.features.services.core.events import ServiceAnswer, ServiceEvent
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import JobEvent
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.charter_news import CharterEffect
from formation_p2p.peer.core.effects import Explained, MemberMet, RejectRequest
from formation_p2p.peer.core.events import CancelJob, Explain, Leave, Submit
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.records.core.profile import SignedProfile
from formation_p2p.trust.core.admission import Charged, Tolerated
from formation_p2p.trust.core.hours import Org
from formation_p2p.trust.core.network import Network
from formation_p2p.trust.core.quota import NOTHING, Used
from formation_p2p.trust.core.renewal import GrantEffect, RenewalFailed
from formation_p2p.trust.core.shares import Account
from simulations.simulator.disk import Disk
from simulations.simulator.executor import Executor, Running
from simulations.simulator.replicas import Replicas

if TYPE_CHECKING:
    from simulations.simulator.routers import Router
    from simulations.simulator.world import World


# A timer never fires before its time on the machine's own clock, whatever rounding does.
_LATE_S: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Clock:
    """Of one machine: no two run alike. `rate` is how many of its seconds pass in one of the
    world's; `began_s` is what it showed when the world began, and `unix_off_s` by how much its
    calendar is ahead."""

    rate: float = 1.0
    began_s: float = 0.0
    unix_off_s: float = 0.0

    def mono_s(self, world_s: float) -> float:
        return world_s * self.rate + self.began_s

    def world_s(self, mono_s: float) -> float:
        """When, in the world's time, this clock has reached `mono_s`; infinity for never."""
        late_s = 0.0 if self == TRUE else _LATE_S
        return (mono_s - self.began_s) / self.rate + late_s


TRUE: Final = Clock()


class SimPeer(Protocol):
    """What a node hosts: the shipped `Peer`, or one in a disguise (simulations/liars.py)."""

    @property
    def dht(self) -> Kademlia[SignedProfile]: ...

    def handle(self, event: PeerEvent, now: Moment) -> list[PeerEffect]: ...

    def next_timeout(self) -> float: ...


@dataclass(slots=True, eq=False)
class SimNode:
    """A peer of the world, by name. `reported` is what its jobs did, `explained` its queries'; each
    of those is handed to `heard` as well. Its peer comes into being when it is first needed, and
    so does its `network`, with its grant.

    `remembered` are the peers that it dials where no gate answers, after a restart as at first.
    `incarnation` counts how often it was restarted. While it is `suspended`, events wait in its
    `inbox`. With a `disk`, what a scheduler's next incarnation needs is written before it is
    performed. What grants have `used` of a worker is kept; `tolerated` is what it reported
    of that, and `told` of its own grant; `gangs` has the newest roster of each of its leases,
    `gang_events` what those that it owns have told.

    `address` is that of its interface, behind its `router` if it has one; `contact` has where it
    is dialled.

    Two nodes of different `side` do not hear each other. `messages` counts its own requests and
    their replies, by cause; `asked` has the peers that it was ever connected to, where
    connections are not kept.
    """

    name: str
    number: int
    world: World
    identity: Identity
    contact: Contact
    address: str
    gates: tuple[Contact, ...]
    born: Callable[[int], SimPeer] = field(repr=False)
    network: Callable[[], Network] = field(repr=False)
    router: Router | None = None
    site: int = 0
    side: int = 0
    alive: bool = True
    silent: bool = False
    left: bool = False
    vacated: bool = False
    reported: list[JobEvent] = field(default_factory=list)
    gang_events: list[tuple[str, GangEvent]] = field(default_factory=list)
    refused: list[RejectRequest] = field(default_factory=list)
    used: dict[tuple[str, str], Used] = field(default_factory=dict)
    shares: dict[Account, tuple[int, int]] = field(default_factory=dict)
    received: dict[Org, tuple[int, int]] = field(default_factory=dict)
    tolerated: list[Tolerated] = field(default_factory=list)
    told: list[GrantEffect | RenewalFailed | CharterEffect] = field(default_factory=list)
    gangs: dict[str, JoinGang] = field(default_factory=dict)
    services_read: list[ServiceAnswer] = field(default_factory=list)
    service_events: list[tuple[float, ServiceEvent]] = field(default_factory=list)
    explained: list[Explained] = field(default_factory=list)
    met: Callable[[MemberMet], None] = field(default=lambda met: None, repr=False)
    heard: Callable[[Explained], None] = field(default=lambda explained: None, repr=False)
    messages: Counter[str] = field(default_factory=Counter)
    tick_s: float = float("inf")
    awake: bool = False
    serves_dht: bool = False
    asked: set[str] = field(default_factory=set)
    clock: Clock = TRUE
    remembered: tuple[Contact, ...] = ()
    incarnation: int = 0
    suspended: bool = False
    inbox: list[PeerEvent] = field(default_factory=list)
    disk: Disk | None = None
    executor: Executor = field(init=False, repr=False)
    replicas: Replicas = field(init=False, repr=False)
    _peer: SimPeer | None = None

    def __post_init__(self) -> None:
        self._boot()

    @property
    def running(self) -> dict[tuple[str, str], Running]:
        """What runs on it now, by lease and attempt."""
        return self.executor.running

    @property
    def peer(self) -> SimPeer:
        if self._peer is None:
            self._peer = self.born(self.incarnation)
        return self._peer

    @property
    def seen(self) -> Contact:
        """As others see it: with addresses only once it says that it is a server."""
        return self.contact if self.serves_dht else Contact(self.contact.peer_id)

    def submit(self, job: Job) -> None:
        self.world.deliver(self, Submit(job, durable=self.disk is not None))

    def cancel(self, job_id: str) -> None:
        self.world.deliver(self, CancelJob(job_id))

    def form(self, gang_id: str, spec: GangSpec) -> None:
        self.world.deliver(self, FormGang(gang_id, spec))

    def close(self, gang_id: str) -> None:
        self.world.deliver(self, EndGang(gang_id))

    def explain(self, needs: Requirements | None, name: str = "a task") -> None:
        self.world.deliver(self, Explain(0, None if needs is None else SchedulingKey(needs), name))

    def leave(self) -> None:
        self.world.deliver(self, Leave())

    def charge(self, charged: Charged) -> None:
        """As on a disk of its own, for its next incarnation."""
        for account in charged.accounts:
            key = (charged.month, account.name)
            self.used[key] = self.used.get(key, NOTHING) + charged.used

    @property
    def usage(self) -> tuple[tuple[str, str, Used], ...]:
        """As `Serve` has it."""
        return tuple((month, account, used) for (month, account), used in self.used.items())

    @property
    def shares_used(self) -> tuple[tuple[Account, int, int], ...]:
        """As `Serve` has it."""
        return tuple((account, *each) for account, each in self.shares.items())

    @property
    def hours_received(self) -> tuple[tuple[Org, int, int], ...]:
        """As `Serve` has it."""
        return tuple((org, *each) for org, each in self.received.items())

    def forget(self) -> None:
        """Give back the memory of one that is gone for good."""
        self._peer = None

    def begin_again(self) -> None:
        """The next incarnation: of the last one only what is on the disk is left."""
        self.incarnation += 1
        self.alive, self.silent, self.left, self.suspended = True, False, False, False
        self.vacated = False
        self.awake, self.serves_dht, self.tick_s = False, False, float("inf")
        self.inbox.clear()
        self.forget()
        self._boot()

    def _boot(self) -> None:
        self.executor = Executor(self.world, lambda event: self.world.deliver(self, event))
        self.replicas = Replicas(self)


class Residents(Protocol):
    """Nodes that have been in a world for long (simulations/residents.py). `waking` is the one
    that wakes just now."""

    @property
    def waking(self) -> SimNode | None: ...

    def __contains__(self, node: SimNode, /) -> bool: ...

    def wake(self, node: SimNode, events: Iterable[PeerEvent]) -> None: ...
