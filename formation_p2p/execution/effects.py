"""What a worker's execution asks of the shell, and what the shell tells of it.

An execution is one attempt under one lease, named by both ids. Every `Execute` ends in exactly
one `ExecutionEnded`, unless its lease is fenced first.
"""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.effects import Effect
from formation_p2p.workload.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Execute(Effect):
    """Run `payload` with a driver, within what the lease holds. `timeout_s` None is no limit."""

    lease_id: str
    attempt_id: str
    driver: str
    payload: bytes
    cpu_milli: int
    memory_bytes: int
    device_ids: tuple[str, ...]
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Kill(Effect):
    """End one execution; it still reports `ExecutionEnded`."""

    lease_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class ExecutionStarted:
    lease_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class ExecutionOutput:
    lease_id: str
    attempt_id: str
    is_stderr: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class ExecutionEnded:
    """`ran_ms` is how long the driver had it."""

    lease_id: str
    attempt_id: str
    outcome: Outcome
    ran_ms: int
