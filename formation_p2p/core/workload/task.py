"""What a person submits: a job is a list of tasks, and a task is one thing to run once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.keyspace import Key, key_of
from formation_p2p.core.resources.bounds import MAX_MEMORY_BYTES, check_amount, shown
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.units import MIB
from formation_p2p.core.workload.graph import refuse_cycles, refuse_many
from formation_p2p.core.workload.hints import NO_HINTS, Hints
from formation_p2p.core.workload.scope import Scope

# A task's payload travels in one frame to the worker (core/negotiation/messages.py).
MAX_PAYLOAD_BYTES: Final = 8 * 1024 * 1024
# All are held in memory until the job ends, at about 1 KiB each without their payloads.
MAX_TASKS: Final = 100_000
# A task that failed on this many machines will fail on the next.
MAX_ATTEMPTS: Final = 20
MAX_TIMEOUT_S: Final = 24 * 3600
MAX_PRIORITY: Final = 100
# A year: longer than any scheduler's process lives.
MAX_DEADLINE_S: Final = 365 * 24 * 3600
# A signed 64-bit integer, as a profile holds.
MAX_PRICE_MICRO: Final = 2**63 - 1
# Ids travel, a task's with the number of the attempt behind it; 128 characters are allowed there
# (core/negotiation/messages.py). Our own are `<16 hex digits>/<index>`.
MAX_TASK_ID_CHARS: Final = 100
# Of the name under which its sizes are learnt: as long as the longest name of a program's file,
# with its driver in front.
MAX_KIND_CHARS: Final = 300
# What a task has of a machine at the least, whatever it asks for: an interpreter that imports
# little needs 20 MiB.
MIN_MEMORY_BYTES: Final = 64 * MIB


@dataclass(frozen=True, slots=True)
class Task:
    """`needs.driver` runs it and alone reads `shared` and `payload`; `label` names it for people.

    `shared` is what it has in common with others, and travels to a worker once for all of them.
    `max_attempts` counts the attempts that ended in failure, not those whose worker died.
    It waits until the tasks of its job that `after` names have succeeded. What it uses is learnt
    under `kind`; where its memory was learnt, `more_memory_bytes` is what it is tried again with
    once it has been stopped at its memory limit.
    """

    task_id: str
    needs: Requirements
    payload: bytes
    label: str = ""
    timeout_s: float | None = None
    max_attempts: int = 3
    shared: bytes = b""
    after: tuple[str, ...] = ()
    kind: str = ""
    more_memory_bytes: int = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.task_id) <= MAX_TASK_ID_CHARS or not self.task_id.isprintable():
            raise InvalidInput(
                "task id", f"it is not 1 to {MAX_TASK_ID_CHARS} characters that print; shorten it"
            )
        if self.needs.driver == "":
            raise InvalidInput("driver", "a task names the driver that runs it, such as process")
        size = len(self.payload) + len(self.shared)
        if size > MAX_PAYLOAD_BYTES:
            limit = f"{MAX_PAYLOAD_BYTES >> 20} MiB travel in one message"
            raise InvalidInput("payload", f"{size} bytes, where at most {limit}; split the input")
        check_amount("attempts", self.max_attempts, 1, MAX_ATTEMPTS)
        _check_time("timeout", self.timeout_s, MAX_TIMEOUT_S)
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
        """Where the task stands in the key space: the workers nearest to it are asked first."""
        return key_of(self.task_id.encode())


@dataclass(frozen=True, slots=True)
class Job:
    """`deadline_s` counts from the submission: what has not ended by then is given up.
    `speculate` allows a second attempt of a task that takes much longer than others of its kind,
    on another worker, while the first goes on; the first result counts. No worker is taken that
    asks more than `max_price_micro`, in the unit of profiles; nobody but this node learns it.
    `policy` is how placement ranks workers (placement/names.py reads it), `hints` where the tasks
    should run, and `scope` how far from home they may.
    """

    job_id: str
    tasks: tuple[Task, ...]
    name: str = ""
    priority: int = 0
    deadline_s: float | None = None
    speculate: bool = False
    max_price_micro: int | None = None
    policy: str = "xor"
    hints: Hints = NO_HINTS
    scope: Scope = Scope.COMMONS

    def __post_init__(self) -> None:
        if not 1 <= len(self.tasks) <= MAX_TASKS:
            raise InvalidInput("tasks", f"a job has 1 to {MAX_TASKS} tasks, not {len(self.tasks)}")
        if len({task.task_id for task in self.tasks}) < len(self.tasks):
            raise InvalidInput("tasks", "two of them have the same id")
        if any(task.after for task in self.tasks):
            _check_order(self.tasks)
        check_amount("priority", self.priority, 0, MAX_PRIORITY)
        _check_time("deadline", self.deadline_s, MAX_DEADLINE_S)
        check_price(self.max_price_micro)
        if not isinstance(self.scope, Scope):
            raise InvalidInput("scope", f"{shown(self.scope)} is no Scope; write Scope.COMMONS")


def check_price(most_micro: int | None) -> None:
    """Raises InvalidInput for what is no price to pay at the most."""
    if most_micro is not None:
        check_amount("price", most_micro, 0, MAX_PRICE_MICRO)


def _check_time(field: str, value: object, most_s: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(field, f"{shown(value)} is no number of seconds; write 90 or 0.5")
    if not 0 < value <= most_s:
        raise InvalidInput(field, f"{shown(value)} s is not in 0 to {most_s} s")


def _check_order(tasks: tuple[Task, ...]) -> None:
    """That each waits for others of its job alone, and none for itself in the end."""
    index = {task.task_id: number for number, task in enumerate(tasks)}
    refuse_many(sum(len(task.after) for task in tasks))
    unknown = next((name for task in tasks for name in task.after if name not in index), None)
    if unknown is not None:
        raise InvalidInput("after", f"{shown(unknown)} is no task of this job")
    refuse_cycles(list(index), [tuple(index[name] for name in task.after) for task in tasks])


def task_id(job_id: str, index: int) -> str:
    """The id of a job's task, the same on every node that knows the job."""
    return f"{job_id}/{index}"
