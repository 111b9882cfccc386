"""A folder with all that is below it: removed, measured, put on the disk."""

from __future__ import annotations

import itertools
import logging
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)

# What `st_blocks` counts in (stat(2)).
_BLOCK_BYTES: Final = 512


async def remove_folder(folder: Path) -> None:
    """Also when cancelled. What cannot be removed is logged and stays."""
    import trio  # a command that reads the home has none

    with suppress(OSError):  # an empty one needs no thread
        folder.rmdir()  # noqa: ASYNC240 - a moment
        return
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(remove_folder_now, folder)


def remove_folder_now(top: Path) -> None:
    """As `remove_folder`, where it may block: a folder with all below it, or whatever else is
    there, made by programs that may be hostile.

    A folder in it is moved up beside it before it is emptied: a task may nest them deeper than
    Python recurses, a path is long, and descriptors are had, which shutil.rmtree needs. Where the
    node ends meanwhile, `clear_scratch` finds them there. What the kernel has not ended yet may put
    links in the place of folders: that removes the links.
    """
    numbers = itertools.count(1)
    waiting = [top]
    problem: OSError | None = None
    while waiting:
        place = waiting.pop()
        try:
            if not _is_folder(place):
                place.unlink(missing_ok=True)
                continue
            _open_up(place)
            for entry in place.iterdir():
                if _is_folder(entry):
                    _open_up(entry)
                    waiting.append(entry.rename(top.with_name(f"{top.name}-{next(numbers)}")))
                else:
                    entry.unlink()
            place.rmdir()
        except OSError as error:
            problem = error
    if problem is not None:
        _log.warning("could not remove all of %s (%s); remove it by hand", top, problem)


def _open_up(folder: Path) -> None:
    """A task may leave folders that not even their owner may enter, change or move. What a link
    names that is there by now stays as it is."""
    if sys.platform == "linux":
        # Before glibc 2.32 chmod follows links, or fails.
        with suppress(NotADirectoryError):
            place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                Path(f"/proc/self/fd/{place}").chmod(stat.S_IRWXU)
            finally:
                os.close(place)
    else:
        folder.chmod(stat.S_IRWXU, follow_symlinks=False)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def sync_folder(folder: Path) -> None:
    """The names in it are on the disk once this returns. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_durably(path: Path, content: bytes, unfinished: str) -> None:
    """A file of its owner's alone, whole or as it was, and on the disk once this returns. Until
    then it has the name `unfinished`, which no other process uses at the same moment. Raises
    OSError."""
    begun = path.with_name(unfinished)
    begun.unlink(missing_ok=True)  # of a process that was killed here
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(begun, flags, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    begun.replace(path)
    sync_folder(path.parent)


def changed_ns(path: Path) -> int:
    """When it was changed last: of what another process has removed meanwhile, at the very first,
    so that it sorts as the oldest."""
    try:
        return path.lstat().st_mtime_ns
    except FileNotFoundError:
        return 0


def folder_bytes(folder: Path) -> int:
    """What is below it takes on the disk. What is removed meanwhile does not count."""
    used_bytes = 0
    seen: set[int] = set()
    waiting = [os.fspath(folder)]
    while waiting:
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_ino not in seen:
                        seen.add(status.st_ino)
                        used_bytes += status.st_blocks * _BLOCK_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return used_bytes
