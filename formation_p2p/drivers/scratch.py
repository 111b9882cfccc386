"""The folders that executions work in: private, empty at first, gone afterwards."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import trio

from formation_p2p.machine.folders import remove_folder, remove_folder_now

_AS_MADE: Final = stat.S_IFDIR | stat.S_IRWXU


@asynccontextmanager
async def scratch_folder(root: Path) -> AsyncIterator[Path]:
    """A new folder of mode 0700 below `root`, which must exist. OSError where the disk is full."""
    folders = ScratchFolders(root)
    try:
        async with folders.next() as folder:
            yield folder
    finally:
        await folders.close()


class ScratchFolders:
    """Those of executions that run one after the other. One that is left as it was made is that of
    the next: to remove a folder and make another takes some file systems milliseconds."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kept: Path | None = None

    @asynccontextmanager
    async def next(self) -> AsyncIterator[Path]:
        """As `scratch_folder`. It may stay until `close`."""
        folder, self._kept = self._kept, None
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="task-", dir=self._root))
        try:
            yield folder
        finally:
            if _is_as_made(folder):
                self._kept = folder
            else:
                await remove_folder(folder)

    async def close(self) -> None:
        folder, self._kept = self._kept, None
        if folder is not None:
            await remove_folder(folder)


def _is_as_made(folder: Path) -> bool:
    with suppress(OSError):
        return folder.lstat().st_mode == _AS_MADE and not any(folder.iterdir())
    return False


async def clear_scratch(root: Path) -> None:
    """Removes what a node that was killed has left below `root`. Call it before any execution."""
    await trio.to_thread.run_sync(_remove_all, root)


def _remove_all(root: Path) -> None:
    for folder in root.iterdir():
        remove_folder_now(folder)
