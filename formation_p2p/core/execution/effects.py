"""What a worker's execution asks of the shell, and what the shell tells of it.

An attempt is named by its lease and its own id. The shell runs those of one lease one after the
other, in the order in which they were handed over, and those of different leases side by side.
Each ends in exactly one `Ended` (core/workload/outcome.py), unless its lease is fenced first.
"""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.effects import Effect
from formation_p2p.core.identity import PeerId
from formation_p2p.core.negotiation.session import Send
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.workload.outcome import Ended


@dataclass(frozen=True, slots=True)
class Work:
    """One attempt. `shared` is what its task has in common with others, `payload` what it has
    alone; the driver reads both. None for `timeout_s` sets no limit."""

    attempt_id: str
    shared: bytes
    payload: bytes
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Execute(Effect):
    """Run these with the driver of `needs`, within what the lease holds, after those handed over
    before. What they return is for the `owner` of the lease."""

    lease_id: str
    needs: Requirements
    device_ids: tuple[str, ...]
    work: tuple[Work, ...]
    owner: PeerId


@dataclass(frozen=True, slots=True)
class Kill(Effect):
    """Take one attempt back, or end it where it has begun and `begun` says so. It still has its
    `Ended`."""

    lease_id: str
    attempt_id: str
    begun: bool


@dataclass(frozen=True, slots=True)
class Pause(Effect):
    """Begin nothing more under the lease until `Continue`: its results are not being fetched."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Continue(Effect):
    lease_id: str


@dataclass(frozen=True, slots=True)
class FreeResults(Effect):
    """The owner of the lease has these results, of which this machine keeps the content."""

    lease_id: str
    attempt_ids: tuple[str, ...]


ExecutionEffect = Execute | Kill | Pause | Continue | FreeResults | Send


@dataclass(frozen=True, slots=True)
class ExecutionStarted:
    """Told of an attempt that runs for longer than a moment; a short one is just ended."""

    lease_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class ExecutionOutput:
    lease_id: str
    attempt_id: str
    is_stderr: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class ExecutionsEnded:
    """In the order in which they ended; as many as ended since the last one."""

    lease_id: str
    ended: tuple[Ended, ...]


ExecutionEvent = ExecutionStarted | ExecutionOutput | ExecutionsEnded
