"""What runs a task on this machine: the protocol that every driver implements.

A driver of one's own is a class with a name and two methods:

    class Sleep:
        name = "sleep"

        async def run(self, execution: Execution, report: Report) -> Outcome:
            if not execution.payload.isdigit():
                return Failed(FailureKind.INVALID, "the payload is no number of seconds")
            report.output("stdout", b"good night\\n")
            await trio.sleep(int(execution.payload))
            return Succeeded(b"")

        async def end_lease(self, lease_id: str) -> None:
            pass
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from formation_p2p.execution.limits import TaskLimits
from formation_p2p.workload.outcome import Outcome

Stream = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class Execution:
    """One attempt at one task, as the worker hands it to a driver.

    `payload` is a stranger's: the driver alone reads it, in one place, and answers
    `Failed(INVALID)` where it does not parse. Executions of one lease may share what a driver
    keeps warm. `cpu_milli`, `memory_bytes` and `device_ids` are what the lease holds; a device
    id of a GPU is what CUDA_VISIBLE_DEVICES takes.

    `scratch` is an empty folder of mode 0700. Whoever calls `Driver.run` makes it and removes it
    afterwards (`scratch.py` does both). What a driver keeps for a whole lease it keeps beside
    that folder and removes in `end_lease`.
    """

    execution_id: str
    lease_id: str
    payload: bytes
    cpu_milli: int
    memory_bytes: int
    device_ids: tuple[str, ...]
    timeout_s: float | None
    scratch: Path

    @property
    def limits(self) -> TaskLimits:
        return TaskLimits(self.cpu_milli, self.memory_bytes)


class Report(Protocol):
    """Where a driver tells of an execution while it runs."""

    def output(self, stream: Stream, data: bytes) -> None:
        """Live, in pieces of at most 64 KiB (output.py). Must not block, nor raise."""
        ...


class Driver(Protocol):
    """Runs in the trio thread of the node; see the module for an example."""

    @property
    def name(self) -> str: ...

    async def run(self, execution: Execution, report: Report) -> Outcome:
        """Runs one execution to its end, within its limits and its time.

        Every failure of the task is an outcome, not an exception. Cancelling kills whatever
        runs, and is over only when it is dead.
        """
        ...

    async def end_lease(self, lease_id: str) -> None:
        """Kills what is kept warm for a lease. One that it never heard of is no error."""
        ...
