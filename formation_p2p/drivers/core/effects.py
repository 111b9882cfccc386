"""What a worker's execution asks of the shell, and what the shell tells of it.

An attempt is named by its lease and its own id. The shell runs those of one lease one after the
other, in the order in which they were handed over, and those of different leases side by side.
Each ends in exactly one `Ended` (workload/core/outcome.py), unless its lease is fenced first.
"""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.effects import Effect
from formation_p2p.core.identity import PeerId
from formation_p2p.leases.core.session import Send
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.outcome import Ended


@dataclass(frozen=True, slots=True)
class Work:
    """One attempt. `shared` is what its task has in common with others, `payload` what it has
    alone; the driver reads both. None for `timeout_s` sets no limit. `restored` is the checkpoint
    that it goes on from, and `content` that itself, where it is small."""

    attempt_id: str
    shared: bytes
    payload: bytes
    timeout_s: float | None
    restored: Blob | None = None
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class LeaseEffect(Effect):
    """For what runs under one lease."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Execute(LeaseEffect):
    """Run these with the driver of `needs`, within what the lease holds, after those handed over
    before. What they return is for the `owner` of the lease."""

    needs: Requirements
    device_ids: tuple[str, ...]
    work: tuple[Work, ...]
    owner: PeerId


@dataclass(frozen=True, slots=True)
class Kill(LeaseEffect):
    """Take one attempt back, or end it where it has begun and `begun` says so: at once, or with
    `grace_s` by giving it notice, and ending it so much later. It still has its `Ended`."""

    attempt_id: str
    begun: bool
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pause(LeaseEffect):
    """Begin nothing more under the lease until `Continue`: its results are not being fetched."""


@dataclass(frozen=True, slots=True)
class Continue(LeaseEffect):
    """Its results are fetched again."""


@dataclass(frozen=True, slots=True)
class GoOnPrinting(LeaseEffect):
    """The owner has a reader for what the attempt prints, which has read, with `more`, all that
    came before the last question."""

    attempt_id: str
    more: bool


@dataclass(frozen=True, slots=True)
class FreeResults(LeaseEffect):
    """The owner of the lease has these results, of which this machine keeps the content."""

    attempt_ids: tuple[str, ...]


RunEffect = Execute | Kill | Pause | Continue | GoOnPrinting | FreeResults
ExecutionEffect = RunEffect | Send


@dataclass(frozen=True, slots=True)
class ExecutionStarted:
    """Told of an attempt that runs for longer than a moment; a short one is just ended."""

    lease_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class ExecutionOutput:
    """Without data it asks the owner whether its reader has read all."""

    lease_id: str
    attempt_id: str
    is_stderr: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class ExecutionSaved:
    """An attempt has saved a checkpoint, which this machine keeps: `content` where it is small."""

    lease_id: str
    attempt_id: str
    blob: Blob
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class ExecutionsEnded:
    """In the order in which they ended; as many as ended since the last one."""

    lease_id: str
    ended: tuple[Ended, ...]


ExecutionEvent = ExecutionStarted | ExecutionOutput | ExecutionSaved | ExecutionsEnded
