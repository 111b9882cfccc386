"""How one attempt at a task ended on the machine that ran it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureKind(StrEnum):
    """Whose doing a failed attempt was; the scheduler retries all but the first two elsewhere."""

    INVALID = "invalid"  # the payload does not parse: it will not anywhere
    CANCELLED = "cancelled"  # the owner asked for it, or its lease ended
    EXIT = "exit"  # the process ended with a code other than 0, or a signal
    EXCEPTION = "exception"  # the callable raised
    TIMEOUT = "timeout"  # it ran past its own time limit
    MEMORY = "memory"  # it was stopped at its memory limit
    STORAGE = "storage"  # it was stopped at its storage limit
    OUTPUT = "output"  # the result is larger than a result may be
    DEADLINE = "deadline"  # its job's deadline passed
    DRIVER = "driver"  # the machine could not run it: no such program, no disk, …


@dataclass(frozen=True, slots=True)
class Succeeded:
    """`result` is the driver's own encoding (see `workload/`)."""

    result: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """`message` is for people and has at most a few KiB; `result` may hold what there was."""

    kind: FailureKind
    message: str
    result: bytes = b""


Outcome = Succeeded | Failed


@dataclass(frozen=True, slots=True)
class Ended:
    """One attempt is over. `ran_us` is how long its driver had it, in microseconds."""

    attempt_id: str
    outcome: Outcome
    ran_us: int
