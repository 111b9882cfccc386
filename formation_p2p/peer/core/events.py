"""Everything that the kernel of a peer is told: the closed union of its events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.dht.core.rpc import DhtEvent
from formation_p2p.drivers.core.effects import ExecutionEvent
from formation_p2p.jobs.core.fetch import CheckpointEvent, FetchEvent, OutputsCopied
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.saved import SavedJob, SavedLease
from formation_p2p.leases.core.session import Disconnected, Fenced, Received, Undelivered
from formation_p2p.machine.core.capability import Capability
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.records.core.profile import SERVES
from formation_p2p.trust.core.hours import Org
from formation_p2p.trust.core.network import Network
from formation_p2p.trust.core.quota import Used
from formation_p2p.trust.core.shares import Account
from formation_p2p.workload.core.blob import Cid
from formation_p2p.workload.core.scope import EVERYTHING, ScopeShares


@dataclass(frozen=True, slots=True)
class Joined:
    """The network is up. `addresses` is where we are reached; `gates` are peers to join through,
    and `remembered` those to try where none of these answers."""

    addresses: tuple[str, ...]
    gates: tuple[Contact, ...]
    remembered: tuple[Contact, ...] = ()


@dataclass(frozen=True, slots=True)
class AddressesChanged:
    """Others reach us elsewhere from now on. `direct` is where they may be able to dial us, for the
    DHT; `announced` what our record says, with circuits. See `reach/core/own_addresses.py`."""

    direct: tuple[str, ...]
    announced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoundNearby:
    """Peers of this network may be on the same LAN: nothing is known of them but where to dial."""

    contacts: tuple[Contact, ...]


@dataclass(frozen=True, slots=True)
class Serve:
    """Become a worker: lease this machine to others. `price_micro` is as in the profile.

    `used` is what earlier incarnations charged, by month and account; `permissive` is as for an
    AdmissionController; `shares` is what each circle may have of its cores. `shares_used` is what
    each account has used of the machine, in milliseconds, and as of which Unix time;
    `hours_received` is what organisations have given this node, likewise.
    """

    capability: Capability
    drivers: tuple[str, ...]
    labels: tuple[tuple[str, str], ...] = ()
    price_micro: int = 0
    used: tuple[tuple[str, str, Used], ...] = ()
    permissive: bool = False
    shares: ScopeShares = EVERYTHING
    shares_used: tuple[tuple[Account, int, int], ...] = ()
    hours_received: tuple[tuple[Org, int, int], ...] = ()

    def serving(self, labels: tuple[tuple[str, str], ...]) -> Serve:
        """With these labels of what it serves as, and no others of that kind."""
        own = (each for each in self.labels if not each[0].startswith(SERVES))
        return replace(self, labels=(*own, *labels))


@dataclass(frozen=True, slots=True)
class Renewed:
    """This node has a new grant: `network` is as it joins the same network now."""

    network: Network


@dataclass(frozen=True, slots=True)
class Issue:
    """The network's root key is here: renew the grants of members, but for those `withdrawn`, which
    are peers, or invitations by the first block of what was made of them."""

    root: Identity
    withdrawn: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class OfferCharter:
    """A person put a charter in here: go by it, if it counts, and hand it to others."""

    raw: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AskRenewal:
    """Have this node's grant renewed now."""


@dataclass(frozen=True, slots=True)
class Submit:
    """`durable` where the job is on the disk: it waits while no worker is in sight."""

    job: Job
    durable: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with what an earlier incarnation of this scheduler left: its jobs, and its leases.

    The first event but for `Joined`; each job then tells what follows as if it had been submitted.
    """

    jobs: tuple[SavedJob, ...]
    leases: tuple[SavedLease, ...]


@dataclass(frozen=True, slots=True)
class CancelJob:
    """All of it; or those of the tasks `waiting` alone that no worker has been sent."""

    job_id: str
    waiting: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Explain:
    """Who could run a task of this name and these terms, in what order, and why not the others?
    Ends in Explained, or RejectRequest.

    Without terms: who is there at all.
    """

    query: int
    terms: SchedulingKey | None
    name: str


@dataclass(frozen=True, slots=True)
class Vacate:
    """Take no more work, and have what runs for others go on elsewhere: it is given notice, and so
    long to save what it has. `owners` have this machine hold content, and are told as well. Ends in
    Vacated."""

    grace_s: float
    owners: tuple[Contact, ...] = ()


@dataclass(frozen=True, slots=True)
class Reopen:
    """Take work again, after Vacate."""


@dataclass(frozen=True, slots=True)
class MoveTask:
    """Have a task that runs go on elsewhere, after notice."""

    job_id: str
    task_id: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class OutputSeen:
    """What a task prints on a worker has a reader here, which has read, with `more`, all that came
    before its worker asked."""

    job_id: str
    task_id: str
    worker: PeerId
    more: bool


@dataclass(frozen=True, slots=True)
class Leave:
    """Go, in good order: jobs under way end as cancelled, leases end. Ends in Left."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A round trip on a connection with a peer took so long."""

    peer_id: PeerId
    rtt_us: int


@dataclass(frozen=True, slots=True)
class RateMeasured:
    """Bytes of a test came from a peer at this rate; 0 where it failed."""

    peer_id: PeerId
    bytes_per_s: int


@dataclass(frozen=True, slots=True)
class BlobsChanged:
    """Content that is on this machine by now, whole, and content that is gone."""

    here: tuple[Cid, ...] = ()
    gone: tuple[Cid, ...] = ()


@dataclass(frozen=True, slots=True)
class EnvironmentsChanged:
    """The environments that are on this machine by now, the latest used first."""

    warm: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """`next_timeout` has passed."""


# What a worker's shell tells of what runs.
WorkerReport = ExecutionEvent | Fenced
KernelEvent = (
    Joined
    | AddressesChanged
    | FoundNearby
    | Serve
    | Renewed
    | Issue
    | OfferCharter
    | AskRenewal
    | Submit
    | Resume
    | CancelJob
    | Explain
    | MoveTask
    | OutputSeen
    | Vacate
    | Reopen
    | Leave
    | Measured
    | RateMeasured
    | BlobsChanged
    | EnvironmentsChanged
    | Tick
    | DhtEvent
    | Received
    | Undelivered
    | Disconnected
    | FetchEvent
    | OutputsCopied
    | CheckpointEvent
    | WorkerReport
)


# As many as the cache holds (content/store.py).
MAX_BLOBS: Final = 16_384


class BlobIndex:
    """Which content is on this machine, whole: what its workers would not have to fetch."""

    def __init__(self) -> None:
        self._here: dict[Cid, None] = {}  # the latest at the end

    def changed(self, event: BlobsChanged) -> None:
        for cid in event.gone:
            self._here.pop(cid, None)
        for cid in event.here:
            self._here.pop(cid, None)
            self._here[cid] = None
        while len(self._here) > MAX_BLOBS:
            del self._here[next(iter(self._here))]

    def places(self, near: Sequence[Cid]) -> tuple[int, ...]:
        """Where in a list those stand that are here."""
        return tuple(place for place, cid in enumerate(near) if cid in self._here)
