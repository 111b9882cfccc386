"""A task: one thing to run once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.keyspace import Key, key_of
from formation_p2p.core.resources.bounds import MAX_MEMORY_BYTES, check_amount
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.units import MIB

# A task's payload travels in one frame to the worker (core/negotiation/messages.py).
MAX_PAYLOAD_BYTES: Final = 8 * 1024 * 1024
# All are held in memory until the job ends, at about 1 KiB each without their payloads.
MAX_TASKS: Final = 100_000
MAX_PRIORITY: Final = 100
# Ids travel, a task's with the number of the attempt behind it; 128 characters are allowed there
# (core/negotiation/messages.py). Our own are `<16 hex digits>/<index>`.
MAX_TASK_ID_CHARS: Final = 100
# Of the name under which its memory is learnt: the longest name of a program's file, and its
# driver.
MAX_KIND_CHARS: Final = 300
# The least that a task has, whatever it asks for: an interpreter that imports little needs 20 MiB.
MIN_MEMORY_BYTES: Final = 64 * MIB


@dataclass(frozen=True, slots=True)
class Task:
    """`needs.driver` runs it and alone reads `shared` and `payload`; `label` names it for people.

    `shared` is what it has in common with others, and travels to a worker once for all of them.
    It waits until the tasks of its job that `after` names have succeeded. What it uses is recorded
    under `kind`; where its memory was estimated, `more_memory_bytes` is what it is tried again
    with after it was stopped at its memory limit.
    """

    task_id: str
    needs: Requirements
    payload: bytes
    label: str = ""
    shared: bytes = b""
    after: tuple[str, ...] = ()
    kind: str = ""
    more_memory_bytes: int = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.task_id) <= MAX_TASK_ID_CHARS or not self.task_id.isprintable():
            problem = f"it is not 1 to {MAX_TASK_ID_CHARS} characters that print; shorten it"
            raise InvalidInput("task id", problem)
        if self.needs.driver == "":
            raise InvalidInput("driver", "a task names the driver that runs it, such as process")
        size = len(self.payload) + len(self.shared)
        if size > MAX_PAYLOAD_BYTES:
            limit = f"{MAX_PAYLOAD_BYTES >> 20} MiB travel in one message"
            raise InvalidInput("payload", f"{size} bytes, where at most {limit}; split the input")
        if len(self.kind) > MAX_KIND_CHARS or not self.kind.isprintable():
            problem = f"it is not up to {MAX_KIND_CHARS} characters that print; shorten it"
            raise InvalidInput("kind", problem)
        check_amount("memory", self.more_memory_bytes, 0, MAX_MEMORY_BYTES)

    @property
    def names(self) -> tuple[str, ...]:
        """What hints may call it."""
        return (self.task_id, self.label) if self.label else (self.task_id,)

    @property
    def key(self) -> Key:
        """Its place in the key space: the workers nearest to it are asked first."""
        return key_of(self.task_id.encode())


def task_id(job_id: str, index: int) -> str:
    """The id of a job's task, the same on every node that knows the job."""
    return f"{job_id}/{index}"
