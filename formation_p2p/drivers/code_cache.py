"""The code that calls brought, on the disk: each bundle is extracted once, for all leases.

| file                 | what it holds |
| -------------------- | ------------- |
| `<boot>/<cid>/`      | the files of a bundle, whole, for reading only |
| `<boot>/new-…/`      | a bundle that is being extracted |
| `<boot>/dead-…/`     | one that is being removed |

`<boot>` is the boot of the machine: a disk may lose what was written before its power failed, and
nothing here is verified a second time. Who uses a folder holds a lock on it (flock), and what is
locked is not removed, so that the processes of one home may share the cache. It is bounded; for
something new the least lately used goes.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import trio

from formation_p2p.content.files import check_disk
from formation_p2p.content.places import UNKNOWN
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import GIB, format_bytes
from formation_p2p.drivers.driver import BlobCopies
from formation_p2p.machine.folders import changed_ns, folder_bytes, remove_folder, remove_folder_now
from formation_p2p.machine.locks import KeyedLocks
from formation_p2p.workload.core.blob import Blob, Cid
from formation_p2p.workload.core.code_bundle import MAX_BUNDLE_BYTES, CodeFile, read_bundle

log = logging.getLogger(__name__)

# The code of a project has a few MiB: this is that of a hundred projects, and 16 of the largest.
MAX_CACHE_BYTES: Final = GIB
MAX_CACHED: Final = 256

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NEW, _DEAD = "new-", "dead-"


class CodeCache:
    """Methods are for the trio thread; what blocks on the disk runs in others."""

    def __init__(
        self, root: Path, *, max_bytes: int = MAX_CACHE_BYTES, max_bundles: int = MAX_CACHED
    ) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._max_bundles = max_bundles
        self._turn = trio.Lock()  # on the disk
        # Of each bundle, by who wants it: one whose sources are slow keeps no other waiting.
        self._turns = KeyedLocks[Cid]()
        self._here: Path | None = None

    @asynccontextmanager
    async def held(
        self, blob: Blob, blobs: BlobCopies, owner: PeerId = UNKNOWN
    ) -> AsyncIterator[Path]:
        """The folder with the files of a bundle, which stays as long as the block runs.

        Raises InvalidInput for what is not a bundle; LocalError, OSError and RemoteError where it
        cannot be had now. Nothing of it is left then.
        """
        if blob.size_bytes <= MAX_BUNDLE_BYTES and not self._is_here(blob):
            # Before its turn, and of no other's: who asks for it names who has it.
            await blobs.fetch_ahead([blob], owner)
        async with self._turns.of(blob.cid):  # else two leases would fetch the same
            lock = await self._taken(blob, blobs, owner)
        try:
            yield self._path(blob)
        finally:
            os.close(lock)

    def _is_here(self, blob: Blob) -> bool:
        return self._here is not None and self._path(blob).is_dir()

    async def _taken(self, blob: Blob, blobs: BlobCopies, owner: PeerId) -> int:
        """The lock on its folder."""
        if blob.size_bytes > MAX_BUNDLE_BYTES:
            raise InvalidInput("code", f"the bundle has {format_bytes(blob.size_bytes)}")
        async with self._turn:
            if self._here is None:
                self._here = await trio.to_thread.run_sync(_opened, self._root)
        lock = await trio.to_thread.run_sync(_lock, self._path(blob))
        if lock is not None:
            return lock
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=self._here))
        building = _lock(new)
        try:
            await trio.to_thread.run_sync(check_disk, new, 2 * blob.size_bytes)
            await blobs.copies([(new / "bundle", blob)], owner)
            await trio.to_thread.run_sync(_extract, new / "bundle", new / "files")
            async with self._turn:
                return await trio.to_thread.run_sync(self._put, new / "files", self._path(blob))
        finally:
            with trio.CancelScope(shield=True):
                await remove_folder(new)
            if building is not None:
                os.close(building)

    def _path(self, blob: Blob) -> Path:
        assert self._here is not None, "it is opened first"
        return self._here / str(blob.cid)

    def _put(self, extracted: Path, path: Path) -> int:
        """In a thread: give it its name. Returns the lock on it."""
        self._make_room(folder_bytes(extracted))
        lock = _lock(extracted)
        assert lock is not None, "it was just made"
        try:
            with suppress(FileExistsError):  # another process was faster
                extracted.rename(path)
                path.chmod(0o555)
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        lock = _lock(path)
        if lock is None:
            raise LocalError(f"{path} was removed while it was made; try again")
        return lock

    def _make_room(self, size_bytes: int) -> None:
        """Raises LocalError where what is in use leaves too little."""
        assert self._here is not None
        found = [path for path in self._here.iterdir() if not path.name.startswith((_NEW, _DEAD))]
        sizes = {path: folder_bytes(path) for path in sorted(found, key=changed_ns)}
        for path in list(sizes):
            if (
                len(sizes) < self._max_bundles
                and sum(sizes.values()) + size_bytes <= self._max_bytes
            ):
                return
            if _removed(path):
                del sizes[path]
        if len(sizes) >= self._max_bundles or sum(sizes.values()) + size_bytes > self._max_bytes:
            bound = f"{self._max_bundles} bundles and {format_bytes(self._max_bytes)}"
            raise LocalError(f"code in use fills the cache of {bound}; try again later")


def _opened(root: Path) -> Path:
    """The folder of this boot, without what is left of earlier ones, and of processes that were
    killed."""
    here = root / _BOOT.read_text().strip()
    here.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in root.iterdir():
        if folder != here:
            remove_folder_now(folder)
    for folder in here.iterdir():
        if folder.name.startswith((_NEW, _DEAD)):
            _removed(folder)
    return here


def _lock(folder: Path) -> int | None:
    """Keep a folder from being removed until what is returned is closed. None where it is not
    there (any more)."""
    with _locked(folder, fcntl.LOCK_SH) as lock:
        if lock is None:
            return None
        with suppress(OSError):  # the order in which they go does not matter
            os.utime(lock)
        return os.dup(lock)


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[int | None]:
    """None where it is not there, or others use it."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
            ours, there = os.fstat(lock), folder.lstat()
        except (BlockingIOError, FileNotFoundError):
            yield None
        else:
            # It may have been removed, and made anew, before it was locked.
            yield lock if (ours.st_ino, ours.st_dev) == (there.st_ino, there.st_dev) else None
    finally:
        os.close(lock)


def _removed(folder: Path) -> bool:
    """Remove a folder that is not in use."""
    with _locked(folder, fcntl.LOCK_EX) as lock:
        if lock is None:
            return False
        dead = folder.rename(tempfile.mkdtemp(prefix=_DEAD, dir=folder.parent))
        remove_folder_now(dead)
        return True


def _extract(bundle: Path, folder: Path) -> None:
    """In a thread. Raises InvalidInput, OSError."""
    with bundle.open("rb") as file:
        status = os.fstat(file.fileno())
        if not status.st_size:
            raise InvalidInput("code", "the bundle is empty")
        # Not closed: views of it live as long as the files do.
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    folder.mkdir(mode=0o700)
    made = {""}
    for each in read_bundle(content):
        _write(folder, each, made)
    # Its own folder comes later: none but root may move one that is for reading only.
    for name in sorted(made - {""}, reverse=True):
        (folder / name).chmod(0o555)


def _write(folder: Path, file: CodeFile, made: set[str]) -> None:
    above = file.name.rpartition("/")[0]
    if above not in made:
        (folder / above).mkdir(parents=True, exist_ok=True)
        while above not in made:
            made.add(above)
            above = above.rpartition("/")[0]
    mode = 0o555 if file.executable else 0o444
    # O_EXCL and O_NOFOLLOW: the parser let no name in twice, and there are no links.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder / file.name, flags, mode)
    try:
        rest = memoryview(file.content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
