"""A small world for driver tests: one machine, one scratch root, and what was reported."""

import gc
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import trio

from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import MIB
from formation_p2p.drivers.core.effects import Execute, ExecutionOutput, ExecutionsEnded, Work
from formation_p2p.drivers.driver import Driver, Execution, LeaseDriver, Reader
from formation_p2p.drivers.heartbeat import Heartbeat
from formation_p2p.drivers.machine import Cores, Machine
from formation_p2p.drivers.place import Place
from formation_p2p.drivers.process import ProcessDriver
from formation_p2p.drivers.scratch import scratch_folder
from formation_p2p.leases.lease_runs import LeaseEvent, LeaseRun
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.outcome import UNMEASURED, Outcome, Succeeded, Usage
from formation_p2p.workload.core.process import ProcessResult, ProcessSpec
from tests.support.waiting import HANGS_S, RunningTime, run

# Of leases.
OWNER = PeerId("owner")

_numbers = itertools.count()


def bare_machine() -> Machine:
    """One where no control groups are to be had: everything must work on it."""
    return Machine(Cores.of_this_process(), None)


def within(seconds: float, story: Callable[[], Awaitable[None]]) -> None:
    """Runs an async story in trio, and fails it when it takes too long."""
    run(story, seconds)


@dataclass
class Recorder:
    """A report that keeps what it is told, and may react to it while the task runs."""

    react: Callable[[bytes], None] = lambda _: None
    pieces: list[tuple[str, bytes]] = field(default_factory=list)
    usage: Usage = UNMEASURED
    kept: list[Blob] = field(default_factory=list)

    def saved(self, blob: Blob, content: bytes | None = None) -> None:
        self.kept.append(blob)

    def used(self, usage: Usage) -> None:
        self.usage = usage

    def output(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        self.pieces.append((stream, data))
        self.react(data)

    def text(self, stream: str = "stdout") -> str:
        return b"".join(data for name, data in self.pieces if name == stream).decode()


# Of a task whose time is up as soon as it says something, however long it took to start.
SPOKEN_S = 50.0


def spoken(data: bytes) -> None:
    """How a report reacts where a task has SPOKEN_S until it says something."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, RunningTime)
    clock.jump(SPOKEN_S)


@asynccontextmanager
async def an_execution(
    root: Path,
    payload: bytes,
    *,
    lease_id: str = "lease",
    cpu_milli: int = 1000,
    memory_bytes: int = 256 * MIB,
    device_ids: tuple[str, ...] = (),
    timeout_s: float | None = HANGS_S,
    shared: bytes = b"",
    storage_bytes: int = 0,
    network: bool = False,
    place: Place | None = None,
    reader: Reader | None = None,
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
            shared,
            storage_bytes,
            network,
            place=place,
            reader=reader or Reader(),
        )


def outcome_of_process(
    machine: Machine, root: Path, *argv: str, report: Recorder | None = None, **held: Any
) -> Outcome:
    """Of one process, below a folder that is there."""
    outcomes: list[Outcome] = []

    async def story() -> None:
        async with an_execution(root, ProcessSpec(argv).encode(), **held) as execution:
            driver = ProcessDriver(machine)
            outcomes.append(await driver.run(execution, report or Recorder()))
            await driver.end_lease("lease")

    within(HANGS_S, story)
    return outcomes[0]


def printed(outcome: Outcome) -> str:
    assert isinstance(outcome, Succeeded), outcome
    return ProcessResult.decode(outcome.result).stdout_tail.decode()


class ALease:
    """A lease, whose executions a driver runs as the shell has it do."""

    def __init__(
        self,
        driver: Driver | LeaseDriver,
        root: Path,
        *,
        lease_id: str = "lease",
        memory_bytes: int = 256 * MIB,
        device_ids: tuple[str, ...] = (),
        python: str = "",
        owner: PeerId = OWNER,
    ) -> None:
        holds = Requirements(memory_bytes=memory_bytes, driver=driver.name, python=python)
        self._held = Execute(lease_id, holds, device_ids, (), owner, cause="a test")
        self._run = LeaseRun(self._held, driver, root, self._take)
        self._reports: dict[str, Recorder] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._ended: dict[str, trio.Event] = {}
        self.told: list[int] = []  # how many had ended, each time

    async def serve(self) -> None:
        """Until `end`."""
        await self._run.run()

    async def outcome(
        self,
        shared: bytes,
        payload: bytes,
        *,
        timeout_s: float | None = HANGS_S,
        report: Recorder | None = None,
    ) -> Outcome:
        attempt = f"execution-{next(_numbers)}"
        self._reports[attempt] = report or Recorder()
        self._ended[attempt] = trio.Event()
        self._run.add(replace(self._held, work=(Work(attempt, shared, payload, timeout_s),)))
        await self._ended[attempt].wait()
        del self._ended[attempt]
        return self._outcomes.pop(attempt)

    def kill(self, *, begun: bool = True) -> None:
        """End all that is under way, as its owner may ask, or take back what has not begun."""
        for attempt in list(self._ended):
            self._run.kill(attempt, begun=begun)

    def pause(self) -> None:
        self._run.pause()

    def go_on(self) -> None:
        self._run.go_on()

    async def end(self) -> None:
        await self._run.stop()

    def _take(self, event: LeaseEvent) -> None:
        match event:
            case ExecutionOutput(_, attempt, is_stderr, data):
                self._reports[attempt].output("stderr" if is_stderr else "stdout", data)
            case ExecutionsEnded(_, ended):
                self.told.append(len(ended))
                for each in ended:
                    self._outcomes[each.attempt_id] = each.outcome
                    self._reports[each.attempt_id].used(each.used)
                    self._ended[each.attempt_id].set()


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def open_descriptors() -> int:
    Heartbeat.of_this_process()  # one for all tasks, made with the first
    gc.collect()  # else what another test has left may go between two counts
    gc.freeze()  # and the next count looks through new objects alone
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def holds_nothing(folder: Path) -> bool:
    return not any(folder.iterdir())


class LeaseWorld(Protocol):
    """A lease whose calls have large data in memory, and where that is held."""

    lease: ALease

    @property
    def held(self) -> PrivateBlobs: ...


W = TypeVar("W", bound=LeaseWorld)


def lease_story(make: Callable[[], W], scenario: Callable[[W], Awaitable[None]]) -> None:
    """Serves the lease of a world that is made for the scenario; nothing is held afterwards, and
    no file is open."""

    async def bounded() -> None:
        world = make()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.lease.serve)
            try:
                await scenario(world)
            finally:
                with trio.CancelScope(shield=True):
                    await world.lease.end()
        world.held.close()
        assert (world.held.memory.used_bytes, len(world.held)) == (0, 0)

    bare_machine()
    before = open_descriptors()
    within(HANGS_S, bounded)
    assert open_descriptors() <= before


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
