"""Files that go with a task and come back from it; those that are too large to travel with it are
offered by content, and fetched by it."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from formation_p2p.command.flags import pairs_of
from formation_p2p.core.errors import InvalidInput, LocalError, TaskFailed
from formation_p2p.core.units import KIB, MIB, format_bytes
from formation_p2p.workload.core.blob import RAW, Blob, Cid
from formation_p2p.workload.core.process import MAX_TAIL_BYTES, check_secrets
from formation_p2p.workload.core.work import MAX_PAYLOAD_BYTES

if TYPE_CHECKING:
    from formation_p2p.command.local.client import Link

# A file up to here goes with the task: to fetch it would take a round trip more.
INLINE_BYTES: Final = 256 * KIB
# All that do, well within what one message carries.
ALL_INLINE_BYTES: Final = 4 * MIB
# A transfer under a few megabytes is over before a person has read the bar.
SHOWN_BYTES: Final = 8 * MIB


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
    size = size_of(path)
    if size > MAX_PAYLOAD_BYTES:
        limit = format_bytes(MAX_PAYLOAD_BYTES)
        problem = f"{path} has {format_bytes(size)}, of at most {limit} that travel with a task"
        raise LocalError(f"{problem}; name it as a file of the task, which travels by content")
    with local(path):
        return path.read_bytes()


def size_of(path: Path) -> int:
    """Of a plain file. Raises LocalError."""
    with local(path):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise LocalError(f"{path} is not a plain file; name files one by one, or pack a folder")
    return status.st_size


def inline(files: Mapping[str, Path]) -> tuple[dict[str, bytes], dict[str, Path]]:
    """Those that go with the task, read, and the others. Raises LocalError."""
    contents: dict[str, bytes] = {}
    others: dict[str, Path] = {}
    left_bytes = ALL_INLINE_BYTES
    for name, path in files.items():
        size = path.stat().st_size if path.is_file() else 0
        if size > min(INLINE_BYTES, left_bytes):
            others[name] = path
        else:
            contents[name] = read_input(path)
            left_bytes -= size
    return contents, others


def secret_files(given: Iterable[str], folder: Path) -> dict[str, Path]:
    """Of each `NAME=FILE`, by its name. Raises InvalidInput."""
    found = {name: folder / file for name, file in pairs_of("secret", given).items()}
    check_secrets(dict.fromkeys(found, Blob(Cid(RAW, bytes(32)), 0)))
    return found


async def put_secrets(node: Link, files: Iterable[Path]) -> dict[Path, Blob]:
    """Raises InvalidInput, LocalError."""
    put: dict[Path, Blob] = {}
    for file in files:
        with local(file):
            content = file.read_bytes()
        put[file] = await node.put_secret(content)
    return put


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
    with local(folder):
        folder.mkdir(parents=True, exist_ok=True)


def check_outputs(folder: Path, names: Iterable[str]) -> None:
    """That nothing is in the way of what is to be written, before work is done for it.

    Raises LocalError.
    """
    for name in names:
        if (folder / name).is_dir():
            raise LocalError(f"{folder / name} is a folder, where a file of that name is to go")


def write_outputs(folder: Path, names: Iterable[str], files: Mapping[str, bytes]) -> None:
    """Put the files that were asked for below a folder, over what is there, as cp does. Raises
    TaskFailed where one is missing, LocalError where one cannot be written."""
    for name, path in _wanted(folder, names, files):
        with local(path):
            path.write_bytes(files[name])


async def fetch_outputs(
    node: Link, folder: Path, names: Iterable[str], outputs: Mapping[str, Blob]
) -> None:
    """As `write_outputs`, of what was too large to come with the result. Raises Unreachable too."""
    for name, path in _wanted(folder, names, outputs):
        with _bar(name, outputs[name].size_bytes) as show:
            await node.get(outputs[name], path, progress=show)


def _wanted(
    folder: Path, names: Iterable[str], sent: Mapping[str, object]
) -> Iterator[tuple[str, Path]]:
    """`names` are plain relative names (workload/core/process.py checks). A worker may answer with
    others: those are left out, since it must not choose what is written here."""
    for name in names:
        if name not in sent:
            raise TaskFailed(f"the worker did not send {name} back; try another worker")
        path = folder / name
        make_folder(path.parent)
        yield name, path


def make_executable(folder: Path, names: Iterable[str], programs: Sequence[str]) -> None:
    """Of the files that were asked for and have come, those that are programs. Raises
    LocalError."""
    for name in names:
        if name in programs:
            with local(folder / name):
                mode = (folder / name).stat().st_mode
                (folder / name).chmod(mode | (mode & 0o444) >> 2)


def append(path: Path, data: bytes) -> None:
    """Raises LocalError."""
    with local(path), path.open("ab") as file:
        file.write(data)


def write_tail(path: Path, tail: bytes, digest: bytes = b"") -> bool:
    """Write the kept end of a task's output, unless the file already has all of it. `digest` is
    that of the whole, where it is known and longer. Returns whether the file is known to have less
    than all. Raises LocalError."""
    with local(path):
        if len(tail) == MAX_TAIL_BYTES and path.exists():
            with path.open("rb") as file:
                if digest and hashlib.file_digest(file, "sha256").digest() == digest:
                    return False
                file.seek(-min(len(tail), path.stat().st_size), os.SEEK_END)
                if file.read() == tail:
                    return bool(digest)
        if tail:
            path.write_bytes(tail)
        else:
            path.unlink(missing_ok=True)
    return bool(digest)


@contextmanager
def local(path: Path) -> Iterator[None]:
    """Raises LocalError where this machine has something against the file."""
    try:
        yield
    except OSError as error:
        raise LocalError(f"{path}: {error.strerror or error}") from error


@contextmanager
def _bar(name: str, size_bytes: int) -> Iterator[Callable[[int, int], None] | None]:
    """How far it is, where somebody looks on."""
    if size_bytes < SHOWN_BYTES or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from formation_p2p.command.tables import console

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, TransferSpeedColumn(), console=console(stderr=True)) as bar:
        row = bar.add_task(name, total=size_bytes)
        yield lambda done, size: bar.update(row, completed=done)
