"""What a peer is doing right now, for `formation top` and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.dispatch.task_run import JobRun, TaskState
from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.negotiation.lease import Lease, LeaseState
from formation_p2p.core.resources.capability import Capacity
from formation_p2p.core.resources.requirements import Requirements


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
    """A lease that this peer has given, to whom, and how many attempts are under way on it."""

    lease_id: str
    owner: PeerId
    needs: Requirements
    priority: int
    in_flight: int
    expires_in_s: float
    ending: bool


@dataclass(frozen=True, slots=True)
class Status:
    """`free` is what a worker has left to lease; None for a peer that is none."""

    jobs: tuple[JobStatus, ...]
    held: tuple[HeldStatus, ...]
    granted: tuple[GrantedStatus, ...]
    free: Capacity | None


def status_of(
    jobs: Iterable[JobRun],
    leases: Iterable[ActiveLease],
    granted: Iterable[tuple[Lease, int]],
    free: Capacity | None,
    now: Moment,
) -> Status:
    """`granted` has with each lease how many attempts are under way on it."""
    held = tuple(leases)
    # A task of which two attempts are under way is one task.
    tasks = {run.task.task_id: run for active in held for run in active.attempts.values()}
    in_flight = Counter(run.job.job.job_id for run in tasks.values() if run.is_wanted)
    return Status(
        tuple(_job_status(run, in_flight[run.job.job_id]) for run in jobs),
        tuple(_held_status(active) for active in held),
        tuple(
            _granted_status(lease, attempts, now)
            for lease, attempts in granted
            if lease.state is not LeaseState.OFFERED
        ),
        free,
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
    lease = active.lease
    return HeldStatus(
        lease.lease_id,
        active.worker,
        lease.scheduling_key.needs,
        lease.scheduling_key.priority,
        len(active.attempts),
        lease.is_suspect,
    )


def _granted_status(lease: Lease, attempts: int, now: Moment) -> GrantedStatus:
    return GrantedStatus(
        lease.lease_id,
        lease.owner.peer_id,
        lease.needs,
        lease.request.priority,
        attempts,
        max(lease.expires_s - now.mono_s, 0.0),
        lease.state is not LeaseState.LEASED,
    )
