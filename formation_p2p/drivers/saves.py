"""What a task saves while it runs: a file that it writes, which the node takes and keeps.

The variable FORMATION_CHECKPOINT names the file. The task writes another one beside it and renames
that, so that the node never sees half of one; the newest counts. Where the task was started again,
what it had saved lies in the file of that name with `.restored` behind it.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from formation_p2p.content.places import UNKNOWN
from formation_p2p.core.errors import FormationError
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import format_bytes
from formation_p2p.drivers.driver import BlobAccess, Stream
from formation_p2p.drivers.program import open_file
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.checkpoint import MAX_CHECKPOINT_BYTES, MAX_INLINE_BYTES, inline

log = logging.getLogger(__name__)

VARIABLE: Final = "FORMATION_CHECKPOINT"
FILE: Final = ".checkpoint"
RESTORED: Final = ".restored"
# So often is looked for a new one: the look costs some microseconds.
POLL_S: Final = 0.1
# Of a task that saves all the time, two a second are kept, and of one whose checkpoints take long
# fewer: copying and hashing them is work of the node, which no limit of the task's holds. After
# each the pause is so many times as long, so that a task costs the node a tenth of a core.
PAUSE_S: Final = 0.5
PAUSE_TIMES: Final = 10
_TAKEN: Final = ".taken"


def name_of(which: int) -> str:
    """Of the file of a call, in the home of its interpreter (python_child.py)."""
    return f"{FILE}-{which}"


def holder_of(lease_id: str) -> str:
    """Under which name the newest of a lease is kept, to be released with it."""
    return f"saved-{hashlib.sha256(lease_id.encode()).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True)
class Saves:
    """Of one execution. `holder` is that of its lease: see `holder_of`. `saved` is told of what is
    kept, with what is small itself; `output` takes what the task is told."""

    blobs: BlobAccess | None
    holder: str
    saved: Callable[[Blob, bytes | None], None]
    output: Callable[[Stream, bytes], None]
    owner: PeerId = UNKNOWN

    async def restore(
        self, blob: Blob | None, content: bytes | None, folder: Path, name: str = FILE
    ) -> None:
        """Put what the task had saved where it finds it: `content`, if it came along. One that
        cannot be had is left out: the task begins anew, and is told."""
        if content is not None:
            try:
                _put(content, folder, name + RESTORED)
            except OSError as error:  # calls before it may have locked the folder up
                self._tell(f"the checkpoint cannot be put there, so it begins anew: {error}")
            return
        if blob is None or self.blobs is None:
            return
        try:
            await self.blobs.copies([(folder / (name + RESTORED), blob)], self.owner)
        except FormationError as error:
            self._tell(f"the checkpoint cannot be had, so it begins anew: {error}")

    async def watch(self, folder: Path) -> None:
        """Until cancelled."""
        pause_s = POLL_S
        while True:
            await trio.sleep(pause_s)
            pause_s = await self.take(folder)

    async def take(self, folder: Path, name: str = FILE) -> float:
        """Keep what lies there, if anything does. After how many seconds to look again."""
        if self.blobs is None or not (folder / name).exists():
            return POLL_S
        began_s = trio.current_time()
        await self._take(self.blobs, folder, name)
        return max(PAUSE_S, PAUSE_TIMES * (trio.current_time() - began_s))

    async def _take(self, blobs: BlobAccess, folder: Path, name: str) -> None:
        try:
            file, content = await trio.to_thread.run_sync(_taken, folder, name)
        except OSError as error:
            log.warning("a checkpoint cannot be read: %s", error)
            return
        try:
            size_bytes = os.fstat(file).st_size
            if size_bytes > MAX_CHECKPOINT_BYTES:
                most = format_bytes(MAX_CHECKPOINT_BYTES)
                self._tell(f"a checkpoint of more than {most} is not kept")
            elif content is not None:
                self.saved(inline(content), content)
            else:
                await self._keep(blobs, partial(blobs.add_file, file, size_bytes))
        finally:
            os.close(file)

    async def keep(self, blobs: BlobAccess, content: bytes) -> None:
        """Of at most MAX_CHECKPOINT_BYTES."""
        if len(content) <= MAX_INLINE_BYTES:
            self.saved(inline(content), content)
            return
        await self._keep(blobs, partial(blobs.add, content))

    async def _keep(self, blobs: BlobAccess, add: Callable[[str, PeerId], Awaitable[Blob]]) -> None:
        try:
            await blobs.release(self.holder)
            blob = await add(self.holder, self.owner)
        except FormationError as error:
            self._tell(f"a checkpoint is not kept: {error}")
        else:
            self.saved(blob, None)

    def _tell(self, text: str) -> None:
        log.warning("%s", text)
        self.output("stderr", f"[{text}]\n".encode())


def _put(content: bytes, folder: Path, name: str) -> None:
    """Into a folder in which calls of the same lease may have made anything. Raises OSError."""
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=place)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=place), "wb") as file:
            file.write(content)
    finally:
        os.close(place)


def _taken(folder: Path, name: str) -> tuple[int, bytes | None]:
    """A plain file, open, whose name is removed, and what it has, where that is little. Raises
    OSError."""
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.rename(name, name + _TAKEN, src_dir_fd=place, dst_dir_fd=place)
        try:
            file = open_file(folder, name + _TAKEN)
        finally:
            os.unlink(name + _TAKEN, dir_fd=place)
    finally:
        os.close(place)
    try:
        # A byte more: it may have grown since.
        content = os.pread(file, MAX_INLINE_BYTES + 1, 0)
    except OSError:
        os.close(file)
        raise
    return file, content if len(content) <= MAX_INLINE_BYTES else None
