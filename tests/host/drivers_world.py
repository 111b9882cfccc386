"""A small world for driver tests: one machine, one scratch root, and what was reported."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import trio

from formation_p2p.host.drivers.cores import Cores
from formation_p2p.host.drivers.driver import Execution
from formation_p2p.host.drivers.scratch import scratch_folder
from formation_p2p.host.drivers.supervised import Machine
from formation_p2p.units import MIB

_numbers = itertools.count()


def bare_machine() -> Machine:
    """One where no control groups are to be had: everything must work on it."""
    return Machine(Cores.of_this_process(), None)


def within(seconds: float, story: Callable[[], Awaitable[None]]) -> None:
    """Runs an async story in trio, and fails it when it takes too long."""

    async def bounded() -> None:
        with trio.fail_after(seconds):
            await story()

    trio.run(bounded)


@dataclass
class Recorder:
    """A report that keeps what it is told, and may react to it while the task runs."""

    react: Callable[[bytes], None] = lambda _: None
    pieces: list[tuple[str, bytes]] = field(default_factory=list)

    def output(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        self.pieces.append((stream, data))
        self.react(data)

    def text(self, stream: str = "stdout") -> str:
        return b"".join(data for name, data in self.pieces if name == stream).decode()


@asynccontextmanager
async def an_execution(
    root: Path,
    payload: bytes,
    *,
    lease_id: str = "lease",
    cpu_milli: int = 1000,
    memory_bytes: int = 256 * MIB,
    device_ids: tuple[str, ...] = (),
    timeout_s: float | None = 10.0,
) -> AsyncIterator[Execution]:
    async with scratch_folder(root) as scratch:
        yield Execution(
            f"execution-{next(_numbers)}",
            lease_id,
            payload,
            cpu_milli,
            memory_bytes,
            device_ids,
            timeout_s,
            scratch,
        )


async def eventually(true: Callable[[], bool], seconds: float = 5.0) -> None:
    with trio.fail_after(seconds):
        while not true():  # noqa: ASYNC110 - other processes set no event
            await trio.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def holds_nothing(folder: Path) -> bool:
    return not any(folder.iterdir())


# Leaves its group and its session and is nobody's child: what a daemon does. Its pid goes into
# the file named first.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1] + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        time.sleep(600)
    os._exit(0)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.005)
"""
