"""Large results, outputs and checkpoints on their way from their workers: what the scheduler asks
of the shell, and what the shell tells of it. An attempt is named by its worker, its lease and its
own id.
"""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.effects import Contact, Effect
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.job_events import EmitJobEvent, ForgetLease, PersistLease
from formation_p2p.leases.core.session import Send
from formation_p2p.workload.core.blob import Blob, Content, PrivateBlob
from formation_p2p.workload.core.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class FetchResult(Effect):
    """Fetch the content of a result, for a task of this job. Ends in ResultFetched or ResultLost,
    unless StopFetch comes first."""

    lease_id: str
    attempt_id: str
    job_id: str
    blob: PrivateBlob


@dataclass(frozen=True, slots=True)
class StopFetch(Effect):
    """What comes of it is needed no more."""

    worker: PeerId
    lease_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class ResultFetched:
    """Where the job is kept on the disk, `content` is too."""

    worker: PeerId
    lease_id: str
    attempt_id: str
    content: Content


@dataclass(frozen=True, slots=True)
class ResultLost:
    """The worker does not have it any more, cannot be reached, or sends something else."""

    worker: PeerId
    lease_id: str
    attempt_id: str
    why: str


@dataclass(frozen=True, slots=True)
class CheckpointEffect(Effect):
    """About what a task has saved."""

    task_id: str


@dataclass(frozen=True, slots=True)
class KeepCheckpoint(CheckpointEffect):
    """Fetch the content, and hold it: for a job that a state keeps also for the next incarnation.
    Ends in CheckpointKept."""

    job_id: str
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class SpreadCheckpoint(CheckpointEffect):
    """Ask these `others`, one after the other, until so many as are `wanted` hold the content too.
    Ends in CheckpointSpread."""

    checkpoint: Checkpoint
    others: tuple[Contact, ...]
    wanted: int


@dataclass(frozen=True, slots=True)
class DropCheckpoints(CheckpointEffect):
    """What is held of the task up to this number can go, once what was told before is on the
    disk."""

    job_id: str
    up_to: int


@dataclass(frozen=True, slots=True)
class CheckpointKept:
    """`holder` is this node, which has it now; None where it could not be fetched."""

    task_id: str
    sequence: int
    holder: Contact | None


@dataclass(frozen=True, slots=True)
class CheckpointSpread:
    """`holders` hold it now."""

    task_id: str
    sequence: int
    holders: tuple[Contact, ...]


@dataclass(frozen=True, slots=True)
class CopyOutputs(Effect):
    """Ask these `others`, one after the other, until so many as are `wanted` hold what an attempt
    of the `worker` has made; the sources of the `blobs` have it. Ends in OutputsCopied."""

    task_id: str
    worker: PeerId
    lease_id: str
    attempt_id: str
    blobs: tuple[tuple[str, Blob], ...]
    others: tuple[Contact, ...]
    wanted: int


@dataclass(frozen=True, slots=True)
class OutputsCopied:
    """`holders` have all of it now."""

    worker: PeerId
    lease_id: str
    attempt_id: str
    holders: tuple[Contact, ...]


FetchEvent = ResultFetched | ResultLost
CheckpointEvent = CheckpointKept | CheckpointSpread


# What the scheduler asks of the shell.
SchedulerEffect = (
    EmitJobEvent
    | PersistLease
    | ForgetLease
    | FetchResult
    | CopyOutputs
    | StopFetch
    | KeepCheckpoint
    | SpreadCheckpoint
    | DropCheckpoints
    | Send
)
