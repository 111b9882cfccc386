"""The folders that executions work in: private, empty at first, gone afterwards."""

from __future__ import annotations

import itertools
import logging
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

_log = logging.getLogger(__name__)


@asynccontextmanager
async def scratch_folder(root: Path) -> AsyncIterator[Path]:
    """A new folder of mode 0700 below `root`, which must exist. OSError where the disk is full."""
    folder = Path(tempfile.mkdtemp(prefix="task-", dir=root))
    try:
        yield folder
    finally:
        await remove_folder(folder)


async def remove_folder(folder: Path) -> None:
    """Also when cancelled. What cannot be removed is logged and stays."""
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(remove_folder_now, folder)


async def clear_scratch(root: Path) -> None:
    """Removes what a node that was killed has left below `root`. Call it before any execution."""
    await trio.to_thread.run_sync(_remove_all, root)


def _remove_all(root: Path) -> None:
    for folder in root.iterdir():
        remove_folder_now(folder)


def remove_folder_now(top: Path) -> None:
    """As `remove_folder`, where it may block: a folder with all below it, or whatever else is
    there.

    A folder in it is moved up beside it before it is emptied: a task may nest them deeper than
    Python recurses, a path is long, and descriptors are had, which shutil.rmtree needs. Where the
    node ends meanwhile, `clear_scratch` finds them there.
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
            # A task may leave folders that not even their owner may enter, change or move.
            place.chmod(stat.S_IRWXU)
            for entry in place.iterdir():
                if _is_folder(entry):
                    entry.chmod(stat.S_IRWXU)
                    waiting.append(entry.rename(top.with_name(f"{top.name}-{next(numbers)}")))
                else:
                    entry.unlink()
            place.rmdir()
        except OSError as error:
            problem = error
    if problem is not None:
        _log.warning("could not remove all of %s (%s); remove it by hand", top, problem)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
