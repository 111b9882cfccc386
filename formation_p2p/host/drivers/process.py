"""The `process` driver: one program, in a folder of its own. Payload and result: workload/process.

What the program is held to, and what is not guaranteed, stands in `supervised.py`. Whatever it
left running when it ended is killed.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from formation_p2p.core.errors import FormationError, InvalidInput, LocalError
from formation_p2p.core.units import KIB, format_bytes
from formation_p2p.core.workload.blob import Blob
from formation_p2p.core.workload.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.core.workload.payload import MAX_RESULT_BYTES
from formation_p2p.core.workload.process import ProcessResult, ProcessSpec
from formation_p2p.host.drivers.blob_access import BlobAccess
from formation_p2p.host.drivers.driver import DriverMaker, Execution, Report
from formation_p2p.host.drivers.machine import Machine, base_environment, device_environment
from formation_p2p.host.drivers.output import Output
from formation_p2p.host.drivers.supervised import Ending, Launch, Supervised

# Of stderr, in the message of a failure: a traceback's last frames, or a compiler's last errors.
MESSAGE_TAIL_BYTES: Final = 2 * KIB


def set_up(machine: Machine) -> DriverMaker:
    return lambda: ProcessDriver(machine)


class ProcessDriver:
    """Keeps nothing between executions. `blobs` is for inputs and outputs by content."""

    name = "process"

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.blobs: BlobAccess | None = None

    async def run(self, execution: Execution, report: Report) -> Outcome:
        try:
            spec = ProcessSpec.decode(execution.payload)
        except InvalidInput as problem:
            return Failed(FailureKind.INVALID, str(problem))
        output = Output(report)
        try:
            await trio.to_thread.run_sync(write_files, execution.scratch, spec.files_in)
            await fetch_inputs(self.blobs, execution.scratch, spec.inputs)
            task = await Supervised.start(self._machine, _launch(execution, spec))
        except OSError as problem:
            return Failed(FailureKind.DRIVER, f"this machine cannot start a process: {problem}")
        except FormationError as problem:
            return Failed(FailureKind.DRIVER, f"an input cannot be had: {problem}")
        try:
            ending, timed_out = await task.run_to_end(output, execution.timeout_s)
        finally:
            await task.close()
        report.used(ending.used)
        if timed_out:
            message = f"ran past its {execution.timeout_s:g} s"
            return Failed(FailureKind.TIMEOUT, message, printed(ending, output))
        if ending.how == "exit":
            return await exited(ending.number, output, execution.scratch, spec, self.blobs)
        return failure(ending, output, execution, printed(ending, output))

    async def end_lease(self, lease_id: str) -> None:
        """Nothing is kept: the caller cancels executions that still run."""


def failure(ending: Ending, output: Output, execution: Execution, result: bytes = b"") -> Failed:
    """The outcome of an ending that is not the task's own success."""
    match ending.how:
        case "exit":
            return Failed(FailureKind.EXIT, _exit_message(ending.number, output), result)
        case "signal":
            message = f"ended by {_signal_name(ending.number)}{_last_words(output)}"
            return Failed(FailureKind.EXIT, message, result)
        case "memory":
            limit = format_bytes(execution.limits.enforced_memory_bytes)
            message = f"stopped at its memory limit of {limit}; ask for more memory"
            return Failed(FailureKind.MEMORY, message, result)
        case "storage":
            limit = format_bytes(execution.limits.storage_bytes)
            message = f"stopped at its storage limit of {limit}; ask for more storage"
            return Failed(FailureKind.STORAGE, message, result)
        case "start":
            return Failed(FailureKind.DRIVER, f"could not start: {ending.problem}")
        case "lost":
            message = f"its supervisor ended without a word{_last_words(output)}"
            return Failed(FailureKind.DRIVER, message, result)


def _launch(execution: Execution, spec: ProcessSpec) -> Launch:
    return Launch(
        argv=spec.argv,
        # The devices come last: they are the lease's to give.
        environment={
            **base_environment(execution.scratch),
            **spec.env,
            **device_environment(execution.device_ids),
        },
        folder=execution.scratch,
        limits=execution.limits,
        stdin=spec.stdin or b"",
    )


def printed(ending: Ending, output: Output) -> bytes:
    code = {"exit": ending.number, "signal": -ending.number}.get(ending.how, -signal.SIGKILL)
    return result_of(code, output, {}).encode()


def result_of(
    code: int, output: Output, files: Mapping[str, bytes], outputs: Mapping[str, Blob] | None = None
) -> ProcessResult:
    tails = (output.tail("stdout"), output.tail("stderr"))
    return ProcessResult(code, files, *tails, outputs or {})


async def exited(
    code: int, output: Output, folder: Path, spec: ProcessSpec, blobs: BlobAccess | None
) -> Outcome:
    """The outcome of a program that has ended with `code`, with what it left in `folder`."""
    outputs: dict[str, Blob] = {}
    try:
        if code == 0:
            outputs = await keep_outputs(blobs, folder, spec.outputs)
    except FormationError as problem:
        result = result_of(code, output, {}).encode()
        return Failed(FailureKind.OUTPUT, str(problem), result)
    except OSError as problem:
        result = result_of(code, output, {}).encode()
        message = f"ended well, but an output cannot be read: {problem}"
        return Failed(FailureKind.EXIT, message, result)
    return await trio.to_thread.run_sync(_with_files, code, output, folder, spec.files_out, outputs)


def _with_files(
    code: int, output: Output, folder: Path, names: Iterable[str], outputs: Mapping[str, Blob]
) -> Outcome:
    files: dict[str, bytes] = {}
    unread: list[str] = []
    left_bytes = MAX_RESULT_BYTES
    for name in names:
        try:
            files[name] = _read_file(folder, name, left_bytes + 1)
        except OSError as problem:
            unread.append(f"{name} ({problem.strerror})")
        else:
            left_bytes -= len(files[name])
    try:
        result = result_of(code, output, files, outputs).encode()
    except InvalidInput as problem:
        if code == 0:
            return Failed(FailureKind.OUTPUT, str(problem), result_of(code, output, {}).encode())
        result = result_of(code, output, {}).encode()
    if code != 0:
        return Failed(FailureKind.EXIT, _exit_message(code, output), result)
    if unread:
        message = f"ended well, but these files cannot be read: {', '.join(unread)}"
        return Failed(FailureKind.EXIT, message[:MESSAGE_TAIL_BYTES], result)
    return Succeeded(result)


def _read_file(folder: Path, name: str, max_bytes: int) -> bytes:
    """At most `max_bytes` of a plain file below `folder`; OSError for anything else."""
    with open(open_file(folder, name), "rb") as content:
        return content.read(max(max_bytes, 0))


def open_file(folder: Path, name: str) -> int:
    """A plain file below `folder`, open to be read; OSError for anything else.

    Nothing on the way may be a link: it could lead to a file of the node's own.
    """
    *folders, file = name.split("/")
    way = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in folders:
            step = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=way)
            os.close(way)
            way = step
        # Non-blocking: to open a pipe would wait for its writer.
        found = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=way)
    finally:
        os.close(way)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.EINVAL, "not a plain file")
    return found


async def fetch_inputs(blobs: BlobAccess | None, folder: Path, inputs: Mapping[str, Blob]) -> None:
    """Put inputs into `folder`, which has no links. Raises OSError, LocalError, RemoteError."""
    if not inputs:
        return
    if blobs is None:
        raise LocalError("this worker keeps no data; choose another")
    for name in inputs:
        (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    await blobs.copies((folder / name, blob) for name, blob in inputs.items())


async def keep_outputs(
    blobs: BlobAccess | None, folder: Path, names: Iterable[str]
) -> dict[str, Blob]:
    """Keep files of `folder`, in which nothing runs any more, for others to fetch. Raises
    LocalError, and OSError, with the name, for what is not a plain file."""
    kept: dict[str, Blob] = {}
    for name in names:
        if blobs is None:
            raise LocalError("this worker keeps no data; choose another")
        try:
            file = open_file(folder, name)
        except OSError as problem:
            raise OSError(f"{name} ({problem.strerror})") from problem
        try:
            kept[name] = await blobs.keep(file, folder / name)
        finally:
            os.close(file)
    return kept


def _exit_message(code: int, output: Output) -> str:
    return f"ended with exit code {code}{_last_words(output)}"


def _last_words(output: Output) -> str:
    words = output.tail("stderr")[-MESSAGE_TAIL_BYTES:].decode(errors="replace").strip()
    return f": {words}" if words else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """The names are checked. What a task of the same lease may still do to the folder meanwhile
    leads nowhere else: nothing on the way may be a link, and no file may be there."""
    for name, content in files.items():
        with open(make_file(folder, name), "wb") as file:
            file.write(content)


def make_file(folder: Path, name: str) -> int:
    """A new file below `folder`, executable, open to be written. Raises OSError."""
    *folders, file = name.split("/")
    way = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for part in folders:
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=way)
            step = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=way)
            os.close(way)
            way = step
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        made = os.open(file, flags, 0o700, dir_fd=way)
    finally:
        os.close(way)
    os.fchmod(made, 0o700)  # whatever the umask
    return made
