"""How one attempt at a task ended on its worker, and what it has used there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class FailureKind(StrEnum):
    """The cause of a failed attempt; the scheduler retries all but the first two elsewhere. The
    result of `INPUT` is the name of the input, in UTF-8."""

    INVALID = "invalid"  # the payload does not parse: it will not anywhere
    CANCELLED = "cancelled"  # the owner asked for it, or its lease ended
    MOVED = "moved"  # it was given notice, and ended so that it goes on elsewhere
    LOST = "lost"  # its worker stood still for longer than a lease lives, and ended it
    EXIT = "exit"  # the process ended with a code other than 0, or a signal
    EXCEPTION = "exception"  # the callable raised
    MODULE = "module"  # a module that it imports is not there: retried once, elsewhere
    TIMEOUT = "timeout"  # it ran past its own time limit
    MEMORY = "memory"  # it was stopped at its memory limit
    STORAGE = "storage"  # it was stopped at its storage limit
    INPUT = "input"  # an input cannot be had: no peer that has it answers
    OUTPUT = "output"  # the result is larger than a result may be
    DEADLINE = "deadline"  # its job's deadline passed
    UPSTREAM = "upstream"  # a task that it waited for brought no result
    GANG = "gang"  # the gang that it ran in has ended
    CALLER = "caller"  # its caller did not hand over what it needs: not the worker's fault
    ENVIRONMENT = "environment"  # the machine could not have the packages
    DRIVER = "driver"  # the machine could not run it: no such program, no disk, …


# It ended before the task's own code ran: another task of the same kind ends alike there.
UNSTARTED: Final = frozenset(
    {FailureKind.DRIVER, FailureKind.MODULE, FailureKind.ENVIRONMENT, FailureKind.CALLER}
)


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


# In the last line of what Python says where a program imports what is not there.
_NO_MODULE: Final = ": No module named "


def lacks_module(failed: Failed) -> bool:
    """Whether its program, or its function, imports what its worker does not have."""
    if failed.kind is FailureKind.EXIT:
        return _NO_MODULE in failed.message.rpartition("\n")[2]
    return failed.kind is FailureKind.MODULE


def is_unstarted(failed: Failed) -> bool:
    """Whether it ended before the task's own code ran, as far as that can be told."""
    return failed.kind in UNSTARTED or lacks_module(failed)


Outcome = Succeeded | Failed


# A million cores for as long as a task may take.
MAX_CPU_MS: Final = 10**6 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Usage:
    """What an attempt has used, None where its worker does not know: advice that cannot be checked.
    `memory_bytes` is the largest amount that was seen in use at once."""

    memory_bytes: int | None = None
    cpu_ms: int | None = None


UNMEASURED: Final = Usage()


@dataclass(frozen=True, slots=True)
class Ended:
    """One attempt is over. `ran_us` is how long its driver had it, in microseconds."""

    attempt_id: str
    outcome: Outcome
    ran_us: int
    used: Usage = UNMEASURED
