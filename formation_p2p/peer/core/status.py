"""What a peer is doing right now, for `formation top` and metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.active_lease import ActiveLease
from formation_p2p.jobs.core.scheduler import Scheduler
from formation_p2p.jobs.core.task_run import JobRun, TaskState
from formation_p2p.leases.core.lease import LeaseState
from formation_p2p.machine.core.capability import Capacity
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.worker import Worker
from formation_p2p.trust.core.shares import ShareStatus
from formation_p2p.wants.core.offers import OfferCounts


@dataclass(frozen=True, slots=True)
class JobStatus:
    """`waiting` and the others count its tasks, and make up `tasks`."""

    job_id: str
    name: str
    priority: int
    tasks: int
    waiting: int
    in_flight: int
    succeeded: int
    failed: int
    unplaceable: int
    cancelled: int


@dataclass(frozen=True, slots=True)
class HeldStatus:
    """A lease that this peer has of a worker, and how many attempts are under way on it."""

    lease_id: str
    worker: PeerId
    needs: Requirements
    priority: int
    in_flight: int
    suspect: bool


@dataclass(frozen=True, slots=True)
class GrantedStatus:
    """A lease that this peer has granted, its owner, and how many attempts are under way on it. One
    that `yields` gives way to an equal."""

    lease_id: str
    owner: PeerId
    needs: Requirements
    priority: int
    in_flight: int
    expires_in_s: float
    ending: bool
    yields: bool = False


@dataclass(frozen=True, slots=True)
class WaitStatus:
    """Work that waits for room here, and the answer that its owner got last."""

    owner: PeerId
    priority: int
    aged: int
    waited_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Status:
    """`free` is what a worker has left to lease; None for a peer that is none. The peer's own grant
    ends at `grant_expires_unix_s`. `offers` are those that a worker made for wants, `shares` what
    has been used of it, and `waiting` what waits for room there. `copies` counts those
    of the peer's tasks with a quorum, by what became of them."""

    jobs: tuple[JobStatus, ...]
    held: tuple[HeldStatus, ...]
    granted: tuple[GrantedStatus, ...]
    free: Capacity | None
    grant_expires_unix_s: int
    offers: OfferCounts = OfferCounts()  # noqa: RUF009 - it is frozen
    shares: tuple[ShareStatus, ...] = ()
    waiting: tuple[WaitStatus, ...] = ()
    copies: tuple[tuple[str, int], ...] = (("sent", 0), ("agreed", 0), ("disagreed", 0))


def status_of(
    scheduler: Scheduler,
    worker: Worker | None,
    grant_expires_unix_s: int,
    now: Moment,
) -> Status:
    held = tuple(scheduler.leases())
    # A task of which two attempts are under way is one task.
    tasks = {run.task.task_id: run for active in held for run in active.runs}
    in_flight = Counter(run.job.job.job_id for run in tasks.values() if run.is_wanted)
    return Status(
        tuple(_job_status(run, in_flight[run.job.job_id]) for run in scheduler.jobs()),
        tuple(map(_held_status, held)),
        () if worker is None else _granted(worker, now),
        None if worker is None else worker.lessor.ledger.free,
        grant_expires_unix_s,
        OfferCounts() if worker is None else worker.offers,
        () if worker is None else tuple(worker.lessor.shares.standings(now)),
        () if worker is None else _waiting(worker, now),
        tuple(scheduler.copies.items()),
    )


def _job_status(run: JobRun, in_flight: int) -> JobStatus:
    job, ended = run.job, run.ended
    return JobStatus(
        job.job_id,
        job.name,
        job.options.priority,
        len(job.tasks),
        len(job.tasks) - in_flight - sum(ended.values()),
        in_flight,
        ended[TaskState.SUCCEEDED],
        ended[TaskState.FAILED],
        ended[TaskState.UNPLACEABLE],
        ended[TaskState.CANCELLED],
    )


def _held_status(active: ActiveLease) -> HeldStatus:
    lease, key = active.lease, active.lease.scheduling_key
    in_flight = len(active.attempts)
    return HeldStatus(
        lease.lease_id, active.worker, key.needs, key.priority, in_flight, lease.is_suspect
    )


def _waiting(worker: Worker, now: Moment) -> tuple[WaitStatus, ...]:
    return tuple(
        WaitStatus(
            each.owner, each.priority, each.aged, now.mono_s - each.since_s, str(each.answer)
        )
        for each in worker.lessor.waits(now)
    )


def _granted(worker: Worker, now: Moment) -> tuple[GrantedStatus, ...]:
    given = (lease for lease in worker.lessor if lease.state is not LeaseState.OFFERED)
    return tuple(
        GrantedStatus(
            lease.lease_id,
            lease.owner.peer_id,
            lease.needs,
            lease.request.priority,
            worker.executions.in_flight(lease.lease_id),
            max(lease.expires_s - now.mono_s, 0.0),
            lease.state is not LeaseState.LEASED,
            lease.yields_s is not None,
        )
        for lease in given
    )
