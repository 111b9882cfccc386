"""Large results on their way from their workers: what the scheduler asks of the shell, and what the
shell tells of it. An attempt is named by its worker, its lease and its own id."""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.effects import Effect
from formation_p2p.core.identity import PeerId
from formation_p2p.core.workload.content import Content
from formation_p2p.core.workload.private_blob import PrivateBlob


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


FetchEvent = ResultFetched | ResultLost
