"""The folders that executions work in: private, empty at first, gone afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from formation_p2p.host.machine.folders import remove_folder, remove_folder_now


@asynccontextmanager
async def scratch_folder(root: Path) -> AsyncIterator[Path]:
    """A new folder of mode 0700 below `root`, which must exist. OSError where the disk is full."""
    folder = Path(tempfile.mkdtemp(prefix="task-", dir=root))
    try:
        yield folder
    finally:
        if not _removed(folder):  # most are empty, and a thread takes longer than that
            await remove_folder(folder)


def _removed(folder: Path) -> bool:
    with suppress(OSError):
        folder.rmdir()
        return True
    return False


async def clear_scratch(root: Path) -> None:
    """Removes what a node that was killed has left below `root`. Call it before any execution."""
    await trio.to_thread.run_sync(_remove_all, root)


def _remove_all(root: Path) -> None:
    for folder in root.iterdir():
        remove_folder_now(folder)
