"""One run of a program in a task's folder, from its inputs to its outcome, for all drivers.

What goes in is a ProcessSpec, what comes out a ProcessResult (workload/core/process.py). The names
of files are checked there. What a task may do to its folder meanwhile leads nowhere else: a link
on the way to a file may lead to another place in the folder.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import trio

from formation_p2p.core.errors import FormationError, InvalidInput, LocalError, RemoteError
from formation_p2p.core.units import KIB, format_bytes
from formation_p2p.drivers.core.limits import MAX_PROCESSES
from formation_p2p.drivers.driver import BlobAccess, Execution, Output
from formation_p2p.drivers.ending import Ending
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.data_rule import combined
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.process import ProcessResult, ProcessSpec
from formation_p2p.workload.core.work import MAX_RESULT_BYTES


class InputLost(RemoteError):
    """No peer that has the input `name` answers."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the input {name} cannot be had: {why}")
        self.name = name


# Of stderr, in the message of a failure: a traceback's last frames, or a compiler's last errors.
MESSAGE_TAIL_BYTES: Final = 2 * KIB
# Files that come with a task are written at once up to here, as its folder is made: a script, say.
# To cross over to a thread takes longer, and the loop twice.
SMALL_FILES: Final = 4
SMALL_BYTES: Final = 32 * KIB
# How programs say that they reach no other machine (gai_strerror(3), errno(3)).
_OFFLINE: Final = (
    *("name resolution", "Network is unreachable", "Connection refused", "ECONNREFUSED"),
    *("Could not resolve", "Temporary failure resolving", "unable to resolve", "bad address"),
    *("Name or service not known", "Failed to connect", "Could not connect", "Couldn't connect"),
    *("EAI_AGAIN", "ENOTFOUND", "ENETUNREACH", "no such host"),
)
# curl(1), which may be told to be silent: it could not resolve the host, or connect to it.
_OFFLINE_CODES: Final = (6, 7)
_NEEDS_NETWORK: Final = "; the task had no network; ask for one by --needs network=1"
_NOT_THERE: Final = (
    "; the worker lacks it, or the interpreter of its first line: send it along, or run it in an "
    "image that has it"
)
# How they say that a file is larger than the task's disk (signal(7), errno(3)).
_TOO_LARGE: Final = ("File size limit exceeded", "File too large")
# What the kernel runs (execve(2)).
_MAGIC: Final = (b"#!", b"\x7fELF")
# As the kernel follows (path_resolution(7)).
_MAX_LINKS: Final = 40


@dataclass(frozen=True, slots=True)
class Program:
    """`folder` is where it runs: that of its execution, or one of its call's own."""

    spec: ProcessSpec
    execution: Execution
    output: Output
    blobs: BlobAccess | None
    folder: Path

    async def put_inputs(self) -> None:
        """Into the folder, which has no links. Raises OSError, LocalError, InputLost."""
        contents = self.spec.files_in.values()
        if len(contents) <= SMALL_FILES and sum(map(len, contents)) <= SMALL_BYTES:
            write_files(self.folder, self.spec.files_in)
        else:
            await trio.to_thread.run_sync(write_files, self.folder, self.spec.files_in)
        if not self.spec.inputs:
            return
        if self.blobs is None:
            raise LocalError("this worker keeps no data; choose another")
        for name in self.spec.inputs:
            (self.folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, blob in self.spec.inputs.items():
            try:
                await self.blobs.copies([(self.folder / name, blob)], self.execution.owner)
            except RemoteError as problem:
                raise InputLost(name, str(problem)) from problem

    def failed(self, ending: Ending, printed: Ending | None = None) -> Failed:
        """`printed` is how the program that printed has ended, where that is another."""
        last = printed or ending
        code = {"exit": last.number, "signal": -last.number}.get(last.how, -signal.SIGKILL)
        return failure(ending, self.output, self.execution, self.result(code))

    async def exited(self, code: int, last: Callable[[], None] | None = None) -> Outcome:
        """Of a program that has ended with `code`, with what it left in its folder. `last` is what
        blocks, and is to be done next: by the thread that reads its files, where one does."""
        outputs: dict[str, Blob] = {}
        programs: list[str] = []
        try:
            if code == 0:
                outputs = await self._keep_outputs(programs)
        except FormationError as problem:
            return Failed(FailureKind.OUTPUT, str(problem), self.result(code))
        except OSError as problem:
            message = f"ended well, but an output cannot be read: {problem}"
            return Failed(FailureKind.EXIT, message, self.result(code))
        if not self.spec.files_out:
            # Which reads nothing from the disk then.
            return self._with_files(code, outputs, programs)
        return await trio.to_thread.run_sync(self._read, code, outputs, programs, last)

    def result(
        self,
        code: int,
        files: Mapping[str, bytes] | None = None,
        outputs: Mapping[str, Blob] | None = None,
        programs: Sequence[str] = (),
    ) -> bytes:
        """Raises InvalidInput where the files are too large."""
        tails = (self.output.tail("stdout"), self.output.tail("stderr"))
        digest = self.output.stdout_sha256
        result = ProcessResult(code, files or {}, *tails, outputs or {}, digest, tuple(programs))
        return result.encode()

    async def _keep_outputs(self, programs: list[str]) -> dict[str, Blob]:
        """Keep files of the folder, in which nothing runs any more, for others to fetch, and add to
        `programs` those that are. Raises LocalError, and OSError, with the name, for what is not a
        plain file."""
        kept: dict[str, Blob] = {}
        # What is made of data is for those that may read all of that.
        rule = combined(x.rule for x in self.spec.inputs.values() if x.rule is not None)
        places: dict[str, str] = {}  # before any is moved
        if self.spec.outputs and self.blobs is None:
            raise LocalError("this worker keeps no data; choose another")
        for name in self.spec.outputs:
            with _naming(name):
                places[name] = real_name(self.folder, name)
        for name, place in places.items():
            if (other := next(each for each in places if places[each] == place)) != name:
                kept[name] = kept[other]  # both are links to it, or one is
                programs += [name] if other in programs else []
                continue
            with _naming(name):
                file = open_file(self.folder, place)
            try:
                assert self.blobs is not None
                programs += [name] if is_program(file) else []
                owner = self.execution.owner
                kept[name] = await self.blobs.keep(file, self.folder / place, rule, owner)
            finally:
                os.close(file)
        return kept

    def _read(
        self,
        code: int,
        outputs: Mapping[str, Blob],
        programs: Sequence[str],
        last: Callable[[], None] | None,
    ) -> Outcome:
        """To cross over to a thread twice takes longer than most files."""
        outcome = self._with_files(code, outputs, programs)
        if last is not None:
            last()
        return outcome

    def _with_files(
        self, code: int, outputs: Mapping[str, Blob], programs: Sequence[str]
    ) -> Outcome:
        files: dict[str, bytes] = {}
        programs = [*programs]
        unread: list[str] = []
        left_bytes = MAX_RESULT_BYTES
        for name in self.spec.files_out:
            try:
                with os.fdopen(open_file(self.folder, name), "rb") as file:
                    files[name] = file.read(max(left_bytes + 1, 0))
                    programs += [name] if is_program(file.fileno()) else []
            except OSError as problem:
                unread.append(f"{name} ({problem.strerror})")
            else:
                left_bytes -= len(files[name])
        try:
            result = self.result(code, files, outputs, programs)
        except InvalidInput as problem:
            result = self.result(code)
            if code == 0:
                return Failed(FailureKind.OUTPUT, str(problem), result)
        if code != 0:
            runs_curl = any("curl" in each for each in self.spec.argv)
            message = _exit_message(code, self.output, self.execution, runs_curl=runs_curl)
            return Failed(FailureKind.EXIT, message, result)
        if unread:
            message = f"ended well, but these files cannot be read: {', '.join(unread)}"
            return Failed(FailureKind.EXIT, message[:MESSAGE_TAIL_BYTES], result)
        return Succeeded(result)


def cannot_start(problem: OSError | FormationError, do: str = "start a process") -> Failed:
    """Of what kept an execution from its start."""
    if isinstance(problem, InputLost):
        return Failed(FailureKind.INPUT, str(problem), problem.name.encode())
    is_local = isinstance(problem, OSError)
    what = f"this machine cannot {do}" if is_local else "an input cannot be had"
    return Failed(FailureKind.DRIVER, f"{what}: {problem}")


def failure(ending: Ending, output: Output, execution: Execution, result: bytes = b"") -> Failed:
    """The outcome of an ending that is not the task's own success."""
    limits = execution.limits
    if ending.late:
        return Failed(FailureKind.TIMEOUT, f"ran past its {execution.timeout_s:g} s", result)
    match ending.how:
        case "exit":
            return Failed(FailureKind.EXIT, _exit_message(ending.number, output, execution), result)
        case "signal":
            message = f"ended by {_signal_name(ending.number)}{_last_words(output)}"
            return Failed(FailureKind.EXIT, message, result)
        case "memory" | "storage" as what:
            limit = limits.enforced_memory_bytes if what == "memory" else limits.storage_bytes
            message = f"stopped at its {what} limit of {format_bytes(limit)}; ask for more {what}"
            return Failed(FailureKind(what), message, result)
        case "processes":
            message = f"stopped at its limit of {MAX_PROCESSES} processes and threads; start fewer"
            return Failed(FailureKind.EXIT, message, result)
        case "start":
            hint = ""
            if ending.problem.startswith("python: "):
                hint = "; write python3, or bring an environment (env=, or --env of a command)"
            elif ending.problem.partition(": ")[0].endswith(".py"):
                hint = "; `formation run` sends a script that is a file here: is its name right?"
            elif ending.problem.endswith(os.strerror(errno.ENOENT)):
                hint = _NOT_THERE
            return Failed(FailureKind.DRIVER, f"could not start: {ending.problem}{hint}")
        case "silent":
            message = "its worker stood still for longer than its lease lives, and ended it"
            return Failed(FailureKind.LOST, message, result)
        case "lost":
            message = f"its supervisor ended without a word{_last_words(output)}"
            return Failed(FailureKind.DRIVER, message, result)


def offline_hint(words: str, execution: Execution) -> str:
    """What to say of a task that asked for no network, where its words say that it lacks one."""
    is_offline = not execution.network and any(sign in words for sign in _OFFLINE)
    return _NEEDS_NETWORK if is_offline else ""


def with_hint(failed: Failed, execution: Execution) -> Failed:
    """Of a call."""
    message = failed.message.rstrip()
    hint = offline_hint(message.rpartition("\n")[2], execution)
    return replace(failed, message=message + hint) if hint else failed


def _exit_message(
    code: int, output: Output, execution: Execution, *, runs_curl: bool = False
) -> str:
    words = _last_words(output)
    hint = offline_hint(words, execution)
    if runs_curl and not words and code in _OFFLINE_CODES and not execution.network:
        hint = _NEEDS_NETWORK
    if any(sign in words for sign in _TOO_LARGE):
        storage = format_bytes(execution.limits.storage_bytes)
        hint = f"; a file is larger than its storage limit of {storage}: ask for more storage"
    return f"ended with exit code {code}{hint}{words}"


def _last_words(output: Output) -> str:
    words = output.tail("stderr")[-MESSAGE_TAIL_BYTES:].decode(errors="replace").strip()
    return f": {words}" if words else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """New files, executable. Raises OSError, also for one that exists."""
    for name, content in files.items():
        with _parent(folder, name, make=True) as (parent, last):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            made = os.open(last, flags, 0o700, dir_fd=parent)
        with os.fdopen(made, "wb") as file:
            os.fchmod(made, 0o700)  # whatever the umask
            file.write(content)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Names the file in an OSError."""
    try:
        yield
    except OSError as problem:
        raise OSError(f"{name} ({problem.strerror})") from problem


def is_program(file: int) -> bool:
    """Whether an open file may be executed, as its task meant it. Inputs are there with 0700, and
    copies of them have that as well: such a one looks like a program."""
    mode = os.fstat(file).st_mode
    return bool(mode & 0o100) and (bool(mode & 0o011) or os.pread(file, 4, 0).startswith(_MAGIC))


def real_name(folder: Path, name: str) -> str:
    """The name below `folder` of what a name there leads to, by links. Raises OSError where one of
    them leads out of it. Another process that swaps files meanwhile gains nothing: `open_file`
    follows none."""
    left, done, links = deque(name.split("/")), list[str](), 0
    while left:
        part = left.popleft()
        if part in ("", "."):
            continue
        if part == "..":
            if not done:
                raise OSError(errno.EXDEV, "a link that leads out of the task's folder")
            done.pop()
            continue
        with _parent(folder, "/".join((*done, part))) as (parent, last):
            if not stat.S_ISLNK(os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode):
                done.append(part)
                continue
            target = os.readlink(last, dir_fd=parent)
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.startswith("/"):
            if not target.startswith(f"{folder}/"):
                raise OSError(errno.EXDEV, "a link that leads out of the task's folder")
            done, target = [], target.removeprefix(f"{folder}/")
        left = deque((*target.split("/"), *left))
    return "/".join(done)


def open_file(folder: Path, name: str) -> int:
    """A plain file below `folder`, open to be read; OSError for anything else."""
    with _parent(folder, real_name(folder, name)) as (parent, last):
        # Non-blocking: to open a pipe would wait for its writer.
        found = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.EINVAL, "not a plain file")
    return found


def read_file(folder: Path, name: str, max_bytes: int) -> bytes:
    """At most `max_bytes` of a plain file below `folder`; OSError for anything else."""
    with os.fdopen(open_file(folder, name), "rb") as content:
        return content.read(max(max_bytes, 0))


@contextmanager
def _parent(folder: Path, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """The folder of a file, open, and the file's own name."""
    *folders, last = name.split("/")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    parent = os.open(folder, flags)
    try:
        for part in folders:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=parent)
            below = os.open(part, flags, dir_fd=parent)
            os.close(parent)
            parent = below
        yield parent, last
    finally:
        os.close(parent)
