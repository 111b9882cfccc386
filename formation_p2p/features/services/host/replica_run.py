"""One replica on this machine: its program, run by a driver as tasks are, under supervision.

The program has the sandbox and the limits of a task with the same needs. What it prints goes to the
log of its service.
"""

from __future__ import annotations

import logging
import re
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol, assert_never

import trio

from formation_p2p.core.errors import FormationError, LocalError, RemoteError
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB, MIB
from formation_p2p.drivers.driver import (
    Driver,
    Execution,
    HasNetworks,
    LeaseDriver,
    Stream,
)
from formation_p2p.drivers.scratch import scratch_folder
from formation_p2p.features.services.core.events import ReplicaReported, ReplicaState, StartReplica
from formation_p2p.features.services.core.spec import Check, CheckKind, ServiceSpec
from formation_p2p.features.services.core.supervision import (
    Ask,
    End,
    Floor,
    Launch,
    Order,
    Probe,
    ReplicaPhase,
    Supervision,
    Told,
)
from formation_p2p.features.services.host.log_file import LogFile, log_of
from formation_p2p.features.services.host.place import ReplicaPlace, lead
from formation_p2p.features.services.host.router import Router
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.environment import Environment
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Usage
from formation_p2p.workload.core.process import ContainerSpec, ProcessSpec
from formation_p2p.workload.core.scope import Scope

# Asking a replica whether it is well: over HTTP, or whether it takes a connection.

# The first line of an answer, with some room; what follows is not looked at.
_MAX_ANSWER_BYTES: Final = 4096
REST_S: Final = 0.2
MAX_REST_BYTES: Final = 64 * KIB
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)\b")

Connect = Callable[[], Awaitable[socket.socket]]


async def why_not(check: Check, service: str, connect: Connect) -> str:
    """Empty where the check, which is no exec check, holds."""
    timeout_s = check.timeout_ms / 1000
    try:
        async with AsyncExitStack() as held:
            with trio.fail_after(timeout_s):
                end = trio.socket.from_stdlib_socket(await connect())
                stream = await held.enter_async_context(trio.SocketStream(end))
                if not _is_http(check):
                    return ""
                why = await _status(stream, check, service)
            await _heard_out(stream)
            return why
    except trio.TooSlowError:
        return f"no answer within {timeout_s:g} s"
    except (OSError, trio.BrokenResourceError) as problem:
        return str(problem) or type(problem).__name__


def _is_http(check: Check) -> bool:
    return check.kind is CheckKind.HTTP


async def _heard_out(stream: trio.SocketStream) -> None:
    """The rest of an answer: a program whose asker hangs up amid it fills its log with that."""
    size = 0
    with trio.move_on_after(REST_S), suppress(trio.BrokenResourceError):
        while size < MAX_REST_BYTES and (data := await stream.receive_some(_MAX_ANSWER_BYTES)):
            size += len(data)


async def _status(stream: trio.SocketStream, check: Check, service: str) -> str:
    head = f"GET {check.path} HTTP/1.1\r\nHost: {service}\r\nUser-Agent: formation\r\n"
    await stream.send_all(f"{head}Accept: */*\r\nConnection: close\r\n\r\n".encode())
    answer = b""
    while b"\n" not in answer and len(answer) < _MAX_ANSWER_BYTES:
        data = await stream.receive_some(_MAX_ANSWER_BYTES)
        if not data:
            break
        answer += data
    status = _STATUS.match(answer)
    if status is None:
        return f"GET {check.path} is not answered in HTTP"
    number = int(status[1])
    return "" if 200 <= number < 400 else f"GET {check.path} is answered with {number}"


# What the replicas of one machine share.


class Files(Protocol):
    """Content on this machine's disk, which others fetch from here."""

    def shows(self, owner: PeerId, grant: bytes) -> None:
        """Content is to come for a peer that has no lease here: as far as it may read it."""
        ...

    async def take(
        self, blob: Blob, holder: str, owner: PeerId | None = None, *, durable: bool = False
    ) -> None:
        """Have it here until `holder` is released, also after a restart where it is `durable`.
        Raises LocalError, RemoteError."""
        ...

    async def release(self, holder: str) -> None:
        """Raises LocalError."""
        ...


@dataclass(frozen=True, slots=True)
class Means:
    """What the replicas of a machine share. `root` is the folder of its services, `scratch_root`
    that of what runs for a while; `router` leads to the services that they use, and `files` keeps
    their files here, for other workers too."""

    drivers: Mapping[str, Driver | LeaseDriver]
    scratch_root: Path
    root: Path
    floor: Floor
    report: Callable[[ReplicaReported], None]
    router: Router | None = None
    files: Files | None = None


log = logging.getLogger(__name__)

# How many requests are under way is told this often, where that has changed.
REPORT_S: Final = 2.0
# What a check that is a program may take.
_CHECK_MEMORY_BYTES: Final = 256 * MIB
# The file with a service's function, among those of its program.
_CALL: Final = "formation-call"
_RUN_CALL: Final = (
    "import sys, cloudpickle\nwith open(sys.argv[1], 'rb') as file:\n"
    "    call = cloudpickle.load(file)\ncall()\n"
)
# Of outcomes after which the same machine would have no more success.
_FOR_GOOD: Final = frozenset({FailureKind.INVALID, FailureKind.DRIVER, FailureKind.ENVIRONMENT})
_STATES: Final[Mapping[ReplicaPhase, ReplicaState]] = {
    ReplicaPhase.STARTING: ReplicaState.STARTING,
    ReplicaPhase.READY: ReplicaState.READY,
    ReplicaPhase.UNREADY: ReplicaState.UNREADY,
    ReplicaPhase.WAITING: ReplicaState.UNREADY,
    ReplicaPhase.ENDING: ReplicaState.UNREADY,
}


class ReplicaRun:
    """`run` it, once; it returns when the replica has stopped or failed and nothing of it is left.
    Other methods return at once."""

    def __init__(self, start: StartReplica, means: Means) -> None:
        self.start = start
        self.spec: ServiceSpec = start.signed.spec
        self.digest = start.signed.digest
        self.outstanding = 0
        self._busy_s = 0.0  # of all requests together, since the last report
        self._counted_s = trio.current_time()
        self.supervision = Supervision(self.spec, means.floor, trio.current_time())
        self._means = means
        self._log: LogFile = log_of(means.root, self.spec.name)
        self._driver = means.drivers.get(_driver_of(self.spec))
        self._place: ReplicaPlace | None = None
        self._news = trio.Event()
        self._told_outstanding = 0
        self._last_state = ReplicaState.STARTING
        self._told_s = trio.current_time()
        self._nursery: trio.Nursery | None = None

    # -- as those who call it are led to it -------------------------------------------------------

    @property
    def scope(self) -> Scope:
        return self.spec.scope

    @property
    def max_requests(self) -> int:
        return self.spec.max_requests

    @property
    def is_stopping(self) -> bool:
        return self.supervision.phase is ReplicaPhase.STOPPING or self.supervision.is_over

    async def connect(self) -> socket.socket:
        """To its program. Raises OSError."""
        if self._place is None:
            raise ConnectionRefusedError(f"{self.spec.name} is being started")
        return await self._place.connect()

    async def begin(self, argv: Sequence[str], fds: Sequence[int]) -> None:
        """A program beside that of the replica, in its sandbox. Raises OSError."""
        if self._place is None:
            raise OSError(f"{self.spec.name} is being started")
        if not self._place.own_network:
            raise OSError("it has no sandbox with a network of its own, where others can be begun")
        await self._place.ports.begin(argv, fds)

    def count(self, change: int) -> None:
        """So many more requests are under way."""
        self._count_busy()
        self.outstanding += change
        self._perform(self.supervision.has_outstanding(self.outstanding, trio.current_time()))
        self._news.set()

    def refused(self) -> None:
        """One came that is more than it takes. Its caller waits, and asks again about once a
        second."""
        self._busy_s += 1.0

    def _count_busy(self) -> None:
        now_s = trio.current_time()
        self._busy_s += self.outstanding * (now_s - self._counted_s)
        self._counted_s = now_s

    def stop(self, drain_s: float) -> None:
        self._perform(self.supervision.stop(drain_s, trio.current_time()))
        self._news.set()

    # -- its life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._keep_files)
                while not self.supervision.is_over:
                    self._perform(self.supervision.tick(trio.current_time()))
                    self._tell_outstanding()
                    self._news = trio.Event()
                    with trio.move_on_at(self._next_s()):
                        await self._news.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            with trio.CancelScope(shield=True):
                await self._close()
        is_failed = self.supervision.phase is ReplicaPhase.FAILED
        self._report(ReplicaState.FAILED if is_failed else ReplicaState.STOPPED)

    async def _keep_files(self) -> None:
        """While a replica runs, a worker that is to have another one finds its files here, and so
        does this one after a power cut: its publisher may be gone by then."""
        program, files = self.spec.program, self._means.files
        blobs = [blob for _, blob in program.files]
        blobs += [] if program.call is None else [program.call]
        if files is None:
            return
        files.shows(self.start.signed.publisher, self.start.signed.grant)
        for blob in blobs:
            try:
                await files.take(blob, self._holder, self.start.signed.publisher, durable=True)
            except (LocalError, RemoteError) as problem:  # it runs all the same
                log.warning("the files of %s are not kept: %s", self.spec.name, problem)

    @property
    def _holder(self) -> str:
        """The same after a restart, so that what is held by a run that was killed is released."""
        return f"service-{self.start.signed.digest.hex()}"

    async def _close(self) -> None:
        if self._means.files is not None:
            await self._means.files.release(self._holder)
        if self._driver is not None and not isinstance(self._driver, LeaseDriver):
            for lease_id in (self._lease_id, f"{self._lease_id} check"):
                await self._driver.end_lease(lease_id)
        if self._place is not None:
            await self._place.close()

    def _next_s(self) -> float:
        due_s = self.supervision.next_timeout_s
        if self._has_news:
            due_s = min(due_s, self._told_s + REPORT_S)
        return due_s

    def _perform(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Launch():
                    self._do(self._program)
                case Ask(probe):
                    self._do(partial(self._ask, probe))
                case End():
                    if self._place is not None:
                        self._place.ending.set()
                case Told(phase, why):
                    said = f"{phase}: {why}" if why else str(phase)
                    self._log.note(f"{said} (version {self.spec.version}, slot {self.start.slot})")
                    if phase in _STATES:
                        self._report(_STATES[phase])
                case _:
                    assert_never(order)

    def _do(self, function: Callable[[], object]) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(function)  # type: ignore[arg-type]  # they are coroutines

    def _report(self, state: ReplicaState) -> None:
        self._count_busy()
        now_s = trio.current_time()
        busy = self._busy_s / max(now_s - self._told_s, REPORT_S)
        self._last_state, self._told_s, self._busy_s = state, now_s, 0.0
        self._told_outstanding = self.outstanding
        name, start, why = self.spec.name, self.start, self.supervision.why
        self._means.report(
            ReplicaReported(name, start.slot, start.epoch, state, self.outstanding, why, busy)
        )

    def _tell_outstanding(self) -> None:
        if self._has_news and trio.current_time() >= self._told_s + REPORT_S:
            self._report(self._last_state)

    @property
    def _has_news(self) -> bool:
        return self.outstanding != self._told_outstanding or self._busy_s > 0

    # -- its program ------------------------------------------------------------------------------

    async def _program(self) -> None:
        outcome = await self._outcome()
        now_s = trio.current_time()
        match outcome:
            case Failed(kind, message):
                orders = self.supervision.ended(message, now_s, for_good=kind in _FOR_GOOD)
            case _:
                why = "ended with exit code 0; a service is to go on until it is told to end"
                orders = self.supervision.ended(why, now_s)
        self._perform(orders)
        self._news.set()

    async def _outcome(self) -> Outcome:
        driver = self._driver
        if driver is None or isinstance(driver, LeaseDriver):
            name = self.spec.program.driver
            return Failed(FailureKind.DRIVER, f"this worker has no driver {name}; add --driver")
        try:
            if self._place is None:
                self._place = self._new_place(driver)
            self._place.again()
            async with scratch_folder(self._means.scratch_root) as scratch:
                execution = self._execution(scratch, self._place)
                return await driver.run(execution, _Printed(self._log))
        except OSError as problem:
            return Failed(FailureKind.EXIT, f"this machine cannot start it: {problem}")
        except FormationError as problem:
            return Failed(FailureKind.INVALID, str(problem))

    def _new_place(self, driver: Driver) -> ReplicaPlace:
        spec, pinned = self.spec, self.spec.pinned
        volume = None if pinned is None else self._means.root / "volumes" / pinned.volume
        own = isinstance(driver, HasNetworks) and driver.has_own_network(spec.needs)
        root = self._means.scratch_root
        place = ReplicaPlace.made(root, spec, self.start.slot, volume, own_network=own)
        place.running = self._running
        if spec.uses and self._means.router is not None:
            self._do(partial(lead, place.folder, self.start.signed, self._means.router))
        return place

    def _running(self) -> None:
        self._perform(self.supervision.started(trio.current_time()))
        self._news.set()

    @property
    def _lease_id(self) -> str:
        return f"service {self.spec.name} {self.start.slot} {self.start.epoch}"

    def _execution(self, scratch: Path, place: ReplicaPlace) -> Execution:
        spec, needs = self.spec, self.spec.needs
        payload, shared = _work_of(spec)
        return Execution(
            f"{self._lease_id} {self.supervision.starts}",
            self._lease_id,
            payload,
            needs.cpu_milli,
            needs.memory_bytes,
            self.start.device_ids,
            None,
            scratch,
            shared,
            needs.storage_bytes,
            needs.network_mbps > 0,
            needs.python,
            owner=self.start.signed.publisher,
            place=place,
            resident=place,
        )

    # -- its checks -------------------------------------------------------------------------------

    async def _ask(self, probe: Probe) -> None:
        health = self.supervision.health.get(probe)
        place = self._place
        if health is None or place is None:
            return
        check = health.check
        if check.kind is CheckKind.EXEC:
            why = await self._run_check(check, place)
        else:
            why = await why_not(check, self.spec.name, place.connect)
        if self.supervision.health.get(probe) is health:  # it has not been started again since
            self._perform(self.supervision.answered(probe, why, trio.current_time()))
            self._news.set()

    async def _run_check(self, check: Check, place: ReplicaPlace) -> str:
        driver = self._driver
        if driver is None or isinstance(driver, LeaseDriver):
            return "this worker has no driver for it"
        beside = _beside(place)
        try:
            async with scratch_folder(self._means.scratch_root) as scratch:
                execution = replace(
                    self._execution(scratch, beside),
                    lease_id=f"{self._lease_id} check",
                    payload=_check_of(self.spec, check),
                    memory_bytes=_CHECK_MEMORY_BYTES,
                    timeout_s=check.timeout_ms / 1000,
                )
                outcome = await driver.run(execution, _Printed(None))
        except OSError as problem:
            return str(problem)
        return outcome.message if isinstance(outcome, Failed) else ""


def _beside(place: ReplicaPlace) -> ReplicaPlace:
    """The same folder, for what runs beside the program."""
    return ReplicaPlace(place.folder, place.variables, place.port, place.own_network, place.volume)


def _driver_of(spec: ServiceSpec) -> str:
    """A function is run by an interpreter, as a process."""
    return "container" if spec.program.driver == "container" else "process"


def _work_of(spec: ServiceSpec) -> tuple[bytes, bytes]:
    """The payload for its driver, and what that has in common with others: its packages."""
    program, packages = spec.program, spec.program.environment
    argv, inputs = program.argv, dict(program.files)
    if program.call is not None:
        inputs[_CALL] = program.call
        python = "python3" if packages else sys.executable
        argv = (python, "-c", _RUN_CALL, _CALL)
        packages = (*packages, "cloudpickle>=3.1,<4") if packages else ()
    secrets = dict(program.secrets)
    process = ProcessSpec(argv, dict(program.variables), inputs=inputs, secrets=secrets)
    shared = Environment(packages).encode() if packages else b""
    return _packed(spec, process), shared


def _check_of(spec: ServiceSpec, check: Check) -> bytes:
    program = spec.program
    inputs = dict(program.files)
    return _packed(spec, ProcessSpec(check.argv, dict(program.variables), inputs=inputs))


def _packed(spec: ServiceSpec, process: ProcessSpec) -> bytes:
    image = spec.program.image
    return ContainerSpec(image, process).encode() if image else process.encode()


@dataclass(frozen=True, slots=True)
class _Printed:
    """A driver's report of what a program prints; without a log it goes nowhere."""

    log: LogFile | None

    def output(self, stream: Stream, data: bytes) -> None:
        if self.log is not None:
            self.log.write(data)

    def saved(self, blob: Blob, content: bytes | None = None) -> None:
        """A replica goes on from its volume, if from anything."""

    def used(self, usage: Usage) -> None:
        """It is counted while it runs, by its group."""
