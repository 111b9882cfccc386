"""The folders that executions work in: private, empty at first, gone afterwards."""

from __future__ import annotations

import logging
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
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
        await trio.to_thread.run_sync(_remove, folder)


async def clear_scratch(root: Path) -> None:
    """Removes what a node that was killed has left below `root`. Call it before any execution."""
    await trio.to_thread.run_sync(_remove_all, root)


def _remove_all(root: Path) -> None:
    for folder in root.iterdir():
        _remove(folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        # A task may leave folders that not even their owner may enter or change.
        _open_up(folder)
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        _log.warning("could not remove all of %s; remove it by hand", folder)


def _open_up(folder: Path) -> None:
    with suppress(OSError):  # the second rmtree fails on it as well, and that is logged
        folder.chmod(stat.S_IRWXU)
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                _open_up(entry)
