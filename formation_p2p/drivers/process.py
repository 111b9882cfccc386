"""The `process` driver: one program, in a folder of its own. Payload and result:
workload/core/process.py. What tasks have in common are the packages that they need
(workload/core/environment.py), if any.

What the program is held to, and what is not guaranteed, stands in `supervised.py`. What it left
running when it ended is killed. Its sandbox stays for the next task of the lease, which takes a
third of the time then.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

import cbor2
import trio

from formation_p2p.core.errors import FormationError, InvalidInput, RemoteError
from formation_p2p.core.units import MIB, format_bytes
from formation_p2p.drivers.driver import (
    MAX_OUTPUT_BYTES,
    BlobAccess,
    DriverMaker,
    Execution,
    Notice,
    Output,
    Report,
)
from formation_p2p.drivers.ending import Ending
from formation_p2p.drivers.environment_build import BuiltEnvironment, environment_for
from formation_p2p.drivers.launch import Launch
from formation_p2p.drivers.machine import Machine, base_environment, device_environment
from formation_p2p.drivers.program import Program, cannot_start, read_file, write_files
from formation_p2p.drivers.saves import (
    FILE,
    PAUSE_S,
    PAUSE_TIMES,
    RESTORED,
    VARIABLE,
    Saves,
    holder_of,
)
from formation_p2p.drivers.supervised import Supervised
from formation_p2p.drivers.supervisor import GRACE_S
from formation_p2p.environments.cache import EnvironmentCache
from formation_p2p.environments.uv import EnvironmentFailed
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.machine.folders import remove_folder, remove_folder_now
from formation_p2p.secrets.shown import VARIABLE as SECRETS
from formation_p2p.secrets.shown import NoSecret, SecretOf, secrets_of
from formation_p2p.workload.core.checkpoint import MAX_CHECKPOINT_BYTES
from formation_p2p.workload.core.environment import Environment
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome
from formation_p2p.workload.core.process import ProcessSpec
from formation_p2p.workload.core.work import decode_plain

# Of the files of a task that another runs before, fetched and laid out meanwhile: in moments. More
# is fetched in its turn: a task that begins now is not to wait for those of tasks to come.
MAX_AHEAD_BYTES: Final = 64 * MIB


def set_up(machine: Machine) -> DriverMaker:
    return lambda: ProcessDriver(machine)


@dataclass(slots=True)
class _Place:
    """Where the tasks of a lease run, one after the other: each in a folder below `root`, which the
    sandbox shows as theirs. `shown` says what else it shows."""

    root: Path
    shown: tuple[tuple[Path, int], ...]
    task: Supervised | None = None

    @classmethod
    def made(cls, execution: Execution, shown: tuple[tuple[Path, int], ...]) -> Self:
        """Raises OSError."""
        return cls(Path(tempfile.mkdtemp(prefix="process-", dir=execution.scratch.parent)), shown)

    async def start(self, machine: Machine, launch: Launch) -> Supervised:
        """Raises OSError where this machine cannot start a process."""
        if self.task is not None:
            try:
                self.task.again(launch)
            except OSError:  # its supervisor has ended meanwhile
                await self.task.close()
                self.task = None
        if self.task is None:
            self.task = await Supervised.start(machine, launch)
        return self.task

    @property
    def fits_another(self) -> bool:
        """Whether a task of the same lease may follow, and finds nothing of those before."""
        if self.task is None or not self.task.is_idle or self.task.over:
            return False
        return next(self.root.iterdir(), None) is None

    async def close(self) -> None:
        if self.task is not None:
            await self.task.close()
        await remove_folder(self.root)


@dataclass(frozen=True, slots=True)
class _LaidOut:
    """The files of a task that has not begun, in the folder that becomes its own."""

    execution_id: str
    folder: Path


class ProcessDriver:
    """Keeps a sandbox for each lease that has used one, until `end_lease`. The shell runs the tasks
    of one lease one after the other. `blobs` is for inputs and outputs by content."""

    name = "process"

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.blobs: BlobAccess | None = None
        # As many as the worker has leases.
        self._places: dict[str, _Place] = {}
        self._laid_out: dict[str, _LaidOut] = {}  # likewise

    @property
    def environments(self) -> EnvironmentCache | None:
        return self._machine.environments

    def has_own_network(self, needs: Requirements) -> bool:
        return self._machine.sandbox is not None and needs.network_mbps == 0

    async def look_ahead(self, execution: Execution) -> None:
        """Lays out its files beside those of the task that runs, which does not see them."""
        with suppress(FormationError, OSError):  # `run` meets it too
            spec = ProcessSpec.decode(execution.payload)
            size = sum(map(len, spec.files_in.values()))
            size += sum(each.size_bytes for each in spec.inputs.values())
            if self.blobs is None or size > MAX_AHEAD_BYTES:
                return
            await self._drop_laid_out(execution.lease_id)
            folder = Path(tempfile.mkdtemp(prefix="next-", dir=execution.scratch))
            try:
                output = Output(lambda stream, data: None, MAX_OUTPUT_BYTES)
                await Program(spec, execution, output, self.blobs, folder).put_inputs()
            except BaseException:
                with trio.CancelScope(shield=True):
                    await remove_folder(folder)
                raise
            self._laid_out[execution.lease_id] = _LaidOut(execution.execution_id, folder)

    async def run(self, execution: Execution, report: Report) -> Outcome:
        try:
            spec = ProcessSpec.decode(execution.payload)
            environment = Environment.decode(execution.shared) if execution.shared else None
        except InvalidInput as problem:
            return Failed(FailureKind.INVALID, str(problem))
        if environment is None:
            return await self._run(spec, execution, report, None)
        try:
            async with environment_for(
                self._machine,
                environment,
                execution.python,
                self.blobs,
                report.output,
                execution.owner,
            ) as built:
                return await self._run(spec, execution, report, built)
        except EnvironmentFailed as problem:
            return Failed(FailureKind.ENVIRONMENT, str(problem))
        except RemoteError as problem:
            why = f"the caller did not hand over what it needs: {problem}"
            return Failed(FailureKind.CALLER, why)

    async def _run(
        self,
        spec: ProcessSpec,
        execution: Execution,
        report: Report,
        built: BuiltEnvironment | None,
    ) -> Outcome:
        try:
            async with secrets_of(spec, self._secret_for(execution)) as secrets:
                return await self._run_with(spec, execution, report, built, secrets)
        except NoSecret as problem:
            return Failed(FailureKind.CALLER, str(problem))

    def _secret_for(self, execution: Execution) -> SecretOf | None:
        if self.blobs is None:
            return None
        resident = execution.resident
        service = "" if resident is None else resident.service
        return partial(self.blobs.secret, owner=execution.owner, service=service)

    async def _run_with(
        self,
        spec: ProcessSpec,
        execution: Execution,
        report: Report,
        built: BuiltEnvironment | None,
        secrets: Path | None,
    ) -> Outcome:
        try:
            shown, programs = self._programs(execution, built)
            if secrets is not None:
                shown, programs = (*shown, secrets), {**programs, SECRETS: str(secrets)}
            # An environment that was made anew has the same path, and is another folder.
            seen = tuple((path, path.stat().st_ino) for path in shown)
            place = await self._place(execution, seen)
        except OSError as problem:
            return cannot_start(problem)
        folder = place.root / "task"
        try:
            is_laid_out = await self._take_laid_out(execution, folder)
            if not is_laid_out:
                folder.mkdir(mode=0o700)
            if execution.resident is None:
                output = Output(report.output, reader=execution.reader)
            else:
                output = Output(report.output, None)
            program = Program(spec, execution, output, self.blobs, folder)
            launch = _launch(program, place.root, shown, programs)
            return await self._to_end(place, launch, program, report, is_laid_out=is_laid_out)
        finally:
            with trio.CancelScope(shield=True):
                if folder.exists():
                    await remove_folder(folder)
                if place.fits_another and execution.lease_id not in self._places:
                    self._places[execution.lease_id] = place
                else:
                    await place.close()

    def _programs(
        self, execution: Execution, built: BuiltEnvironment | None
    ) -> tuple[tuple[Path, ...], dict[str, str]]:
        """The folders with what it asks for, and the variables by which it finds that. Raises
        OSError."""
        if built is not None:
            return (built.folder,), built.variables
        interpreter = self._machine.pythons.get(execution.python)
        if interpreter is None or self.environments is None:
            return (), {}
        folder = self.environments.programs(interpreter)
        return (folder,), {"PATH": f"{folder}:{base_environment(folder)['PATH']}"}

    async def _place(self, execution: Execution, shown: tuple[tuple[Path, int], ...]) -> _Place:
        place = self._places.pop(execution.lease_id, None)
        if place is not None and (place.shown != shown or not place.fits_another):
            await place.close()
            place = None
        return place or _Place.made(execution, shown)

    async def _take_laid_out(self, execution: Execution, folder: Path) -> bool:
        """Whether `folder` is there now, with its files."""
        laid_out = self._laid_out.get(execution.lease_id)
        if laid_out is not None and laid_out.execution_id == execution.execution_id:
            with suppress(OSError):
                laid_out.folder.rename(folder)
                del self._laid_out[execution.lease_id]
                return True
        await self._drop_laid_out(execution.lease_id)
        return False

    async def _drop_laid_out(self, lease_id: str) -> None:
        """Of a task that was taken back, or whose lease has ended."""
        if laid_out := self._laid_out.pop(lease_id, None):
            await remove_folder(laid_out.folder)

    async def _to_end(
        self,
        place: _Place,
        launch: Launch,
        program: Program,
        report: Report,
        *,
        is_laid_out: bool,
    ) -> Outcome:
        execution, folder = program.execution, program.folder
        holder = holder_of(execution.lease_id)
        saves = Saves(self.blobs, holder, report.saved, report.output, execution.owner)
        try:
            if not is_laid_out:
                await program.put_inputs()
            await saves.restore(execution.restored, execution.content, folder)
            if program.spec.checkpoint_files:
                await trio.to_thread.run_sync(_put_restored, program.spec, folder)
        except (OSError, FormationError) as problem:
            return cannot_start(problem)
        due_s = math.inf if execution.timeout_s is None else execution.timeout_s
        due_s += trio.current_time()
        while True:
            began_s = trio.current_time()
            try:
                task = await place.start(self._machine, launch)
            except (OSError, FormationError) as problem:
                return cannot_start(problem)
            ending = await self._once(task, program, saves, due_s)
            report.used(ending.used)
            code = ending.number if ending.how == "exit" and not ending.late else None
            if code is None or not program.spec.checkpoint_files or self.blobs is None:
                break
            if code != program.spec.checkpoint_exit:
                break
            saving_s = trio.current_time()
            try:
                content = await trio.to_thread.run_sync(packed_files, program.spec, folder)
            except (OSError, InvalidInput) as problem:
                return Failed(FailureKind.OUTPUT, f"a checkpoint cannot be taken: {problem}")
            await saves.keep(self.blobs, content)
            saved_s = trio.current_time()
            pause_s = PAUSE_TIMES * (saved_s - saving_s)
            with trio.move_on_at(min(due_s, max(began_s + PAUSE_S, saved_s + pause_s))):
                await execution.notice.given.wait()
                break
        if code is None:
            return program.failed(ending)
        return await program.exited(code, partial(remove_folder_now, folder))

    async def _once(self, task: Supervised, program: Program, saves: Saves, due_s: float) -> Ending:
        """From its start to its end."""
        execution, folder = program.execution, program.folder
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(saves.watch, folder)
                nursery.start_soon(_notify, execution.notice, task, folder)
                resident = execution.resident
                if resident is not None:
                    resident.running()
                to_end = None if resident is None else resident.ending
                left_s = None if due_s == math.inf else max(0.0, due_s - trio.current_time())
                ending = await task.run_to_end(program.output, left_s, to_end)
                nursery.cancel_scope.cancel()
        finally:
            if not task.is_idle:
                await task.close()
        if ending.how != "exit" or ending.number != 0:
            await saves.take(folder)  # the last, from which it is tried again
        return ending

    async def end_lease(self, lease_id: str) -> None:
        await self._drop_laid_out(lease_id)
        if place := self._places.pop(lease_id, None):
            await place.close()
        if self.blobs is not None:
            await self.blobs.release(holder_of(lease_id))


def _launch(
    program: Program, root: Path, shown: tuple[Path, ...], programs: Mapping[str, str]
) -> Launch:
    """Of a program in its folder below `root`, with the variables by which it finds what it asks
    for."""
    spec, execution, folder = program.spec, program.execution, program.folder
    at = execution.place
    # The devices come last: they are the lease's to give.
    environment = {
        **base_environment(folder),
        VARIABLE: str(folder / FILE),
        **programs,
        **spec.env,
        **device_environment(execution.device_ids),
        **({} if at is None else at.variables),
    }
    return Launch(
        spec.argv,
        environment,
        folder,
        execution.limits,
        spec.stdin or b"",
        shown=shown,
        root=root,
        writable=() if at is None else at.writable,
        counted=() if at is None else at.writable,
        network=None if at is None else at.network,
        ports=None if at is None else at.ports,
        lease_id=execution.lease_id,
        grace_s=GRACE_S if execution.resident is None else execution.resident.grace_s,
    )


def _put_restored(spec: ProcessSpec, folder: Path) -> None:
    """The files that it has saved, if any. Raises OSError, InvalidInput."""
    packed = take_restored(folder, FILE + RESTORED)
    if packed is not None:
        put_files(spec, folder, packed)


async def _notify(notice: Notice, task: Supervised, folder: Path) -> None:
    """Once it is given."""
    await notice.given.wait()
    notice.leave(folder, FILE)
    task.notify()


# Processes that save by ending: with an exit code of their own, after which their files are taken,
# and they are started again.
#
# What is saved is a CBOR map from the names that the process declared to the content of the files.


def packed_files(spec: ProcessSpec, folder: Path) -> bytes:
    """Those that are there. Raises OSError; InvalidInput where they are more than is kept."""
    files: dict[str, bytes] = {}
    left_bytes = MAX_CHECKPOINT_BYTES
    for name in spec.checkpoint_files:
        with suppress(FileNotFoundError):
            files[name] = read_file(folder, name, left_bytes + 1)
            left_bytes -= len(files[name])
    packed = cbor2.dumps(files)
    if left_bytes < 0 or len(packed) > MAX_CHECKPOINT_BYTES:
        most = format_bytes(MAX_CHECKPOINT_BYTES)
        raise InvalidInput("checkpoint", f"its files have more than {most}; save less")
    return packed


def put_files(spec: ProcessSpec, folder: Path, packed: bytes) -> None:
    """In the place of those that are there. Raises OSError; InvalidInput for what is no checkpoint
    of such a process."""
    files = decode_plain("checkpoint", packed)
    if not isinstance(files, dict) or not set(files) <= set(spec.checkpoint_files):
        raise InvalidInput("checkpoint", "holds other files than the process declares")
    for name, content in files.items():
        if type(content) is not bytes:
            raise InvalidInput("checkpoint", f"holds no content of {name}")
        (folder / name).unlink(missing_ok=True)
    write_files(folder, files)


def take_restored(folder: Path, name: str) -> bytes | None:
    """What was put there, which is removed. Raises OSError."""
    try:
        content = read_file(folder, name, MAX_CHECKPOINT_BYTES)
    except FileNotFoundError:
        return None
    os.unlink(folder / name)  # noqa: PTH108
    return content
