"""Files that go with a task and come back from it."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from formation_p2p.core.errors import InvalidInput, LocalError, TaskFailed
from formation_p2p.core.units import format_bytes
from formation_p2p.core.workload.process import MAX_TAIL_BYTES
from formation_p2p.core.workload.task import MAX_PAYLOAD_BYTES


def named(field: str, paths: Iterable[Path]) -> dict[str, Path]:
    """Files by the base name that the task will see. Raises InvalidInput where two share one."""
    files: dict[str, Path] = {}
    for path in paths:
        if path.name in files:
            problem = f"{files[path.name]} and {path} would both be {path.name}; rename one"
            raise InvalidInput(field, problem)
        files[path.name] = path
    return files


def read_input(path: Path) -> bytes:
    """A plain file that fits into a task. Raises LocalError."""
    with _local(path):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise LocalError(f"{path} is not a plain file; name files one by one, or pack a folder")
        if status.st_size > MAX_PAYLOAD_BYTES:
            limit = format_bytes(MAX_PAYLOAD_BYTES)
            raise LocalError(
                f"{path} has {format_bytes(status.st_size)}, of at most {limit} that travel with "
                "a task; put it on storage that the workers can reach"
            )
        return path.read_bytes()


def read_stdin(source: str) -> bytes:
    """What a task gets as its input: a file, or `-` for all of ours. Raises LocalError."""
    if source != "-":
        return read_input(Path(source))
    data = sys.stdin.buffer.read(MAX_PAYLOAD_BYTES + 1)
    if len(data) > MAX_PAYLOAD_BYTES:
        limit = format_bytes(MAX_PAYLOAD_BYTES)
        raise LocalError(f"stdin has more than the {limit} that travel with a task; use a file")
    return data


def make_folder(folder: Path) -> None:
    """Raises LocalError."""
    with _local(folder):
        folder.mkdir(parents=True, exist_ok=True)


def check_outputs(folder: Path, names: Iterable[str]) -> None:
    """That nothing is in the way of what is to be written, before work is done for it.

    Raises LocalError.
    """
    for name in names:
        if (folder / name).is_dir():
            raise LocalError(f"{folder / name} is a folder, where a file of that name is to go")


def write_outputs(folder: Path, names: Iterable[str], files: Mapping[str, bytes]) -> None:
    """Put the files that were asked for below a folder, over what is there, as cp does.

    `names` are plain relative names (core/workload/process.py checks). A worker may answer with
    others: those are left out, since it must not choose what is written here. Raises TaskFailed
    where one is missing, LocalError where one cannot be written.
    """
    for name in names:
        if name not in files:
            raise TaskFailed(f"the worker did not send {name} back; try another worker")
        path = folder / name
        make_folder(path.parent)
        with _local(path):
            path.write_bytes(files[name])


def append(path: Path, data: bytes) -> None:
    """Raises LocalError."""
    with _local(path), path.open("ab") as file:
        file.write(data)


def write_tail(path: Path, tail: bytes) -> None:
    """Write the kept end of a task's output, unless the file already has all of it. Raises
    LocalError."""
    with _local(path):
        if len(tail) == MAX_TAIL_BYTES and path.exists() and path.read_bytes().endswith(tail):
            return
        if tail:
            path.write_bytes(tail)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _local(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LocalError(f"{path}: {error.strerror or error}") from error
