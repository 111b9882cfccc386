"""Files in a task's folder, written and read by the node.

The names are checked (ProcessSpec). What a task may do to its folder meanwhile leads nowhere else:
nothing on the way to a file may be a link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """New files, executable. Raises OSError, also for one that exists."""
    for name, content in files.items():
        with _parent(folder, name, make=True) as (parent, last):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            made = os.open(last, flags, 0o700, dir_fd=parent)
        with os.fdopen(made, "wb") as file:
            os.fchmod(made, 0o700)  # whatever the umask
            file.write(content)


def open_file(folder: Path, name: str) -> int:
    """A plain file below `folder`, open to be read; OSError for anything else."""
    with _parent(folder, name) as (parent, last):
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
