"""The file of one blob: read chunk by chunk, filled chunk by chunk, named by its content.

All of it blocks on the disk, and may be called from any thread, by one at a time.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from formation_p2p.content.core.fetch import MAX_MANIFEST_BYTES, Manifest
from formation_p2p.core.errors import LocalError
from formation_p2p.core.units import MIB, format_bytes
from formation_p2p.machine import platform
from formation_p2p.workload.core.blob import (
    CHUNK_BYTES,
    MAX_BLOB_BYTES,
    Blob,
    Buffer,
    Cid,
    digest_of,
)
from formation_p2p.workload.core.parcel import places_of


@contextmanager
def local_errors(path: Path) -> Iterator[None]:
    """Raises LocalError where this machine has something against a file."""
    try:
        yield
    except OSError as error:
        raise LocalError(f"{error.filename or path}: {error.strerror or error}") from error


class BlobFolder:
    """The folder of a node's blobs: the names of its files, and how a file gets its name. See
    store.py for the files in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, cid: Cid, kind: str = "") -> Path:
        return self.root / (f"{cid}.{kind}" if kind else str(cid))

    def write(self, cid: Cid, kind: str, content: bytes) -> None:
        """A small file, unless it is empty. Raises OSError."""
        if content:
            new = self.path(cid, f"{kind}-new")
            new.write_bytes(content)
            new.rename(self.path(cid, kind))

    def write_new(self, cid: Cid, content: Buffer, *, durable: bool) -> Path:
        """Content, at a name of this thread's own. Raises OSError, and leaves nothing then."""
        new = self.path(cid, f"new-{threading.get_ident()}")
        try:
            with new.open("wb", buffering=0) as file:
                os.fchmod(file.fileno(), 0o400)
                left = memoryview(content).cast("B")
                while left:
                    left = left[file.write(left) :]
                if durable:
                    os.fsync(file.fileno())
        except OSError:
            new.unlink(missing_ok=True)
            raise
        return new

    def take(self, path: Path, status: os.stat_result, cid: Cid) -> None:
        """Give the file that was read its name, unless another is in its place by now: a link, to
        a file of the node's own perhaps. Raises OSError, LocalError."""
        new = self.path(cid, "new")
        path.rename(new)
        found = new.lstat()
        if (found.st_dev, found.st_ino) != (status.st_dev, status.st_ino):
            new.unlink()
            raise LocalError(f"{path} was exchanged while it was read; leave outputs alone")
        new.rename(self.path(cid))

    def manifest_block(self, cid: Cid) -> bytes:
        """Empty where there is none."""
        try:
            with self.path(cid, "manifest").open("rb") as file:
                return file.read(MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError:
            return b""

    def remove(self, cid: Cid, *kinds: str) -> None:
        """Raises OSError."""
        for kind in kinds:
            self.path(cid, kind).unlink(missing_ok=True)


# Left free on the disk for everything else.
SPARE_BYTES: Final = 64 * MIB
# What another node hands over is read into memory up to here, and copied beyond.
READ_BYTES: Final = 8 * MIB


class NoRoom(LocalError):
    """It does not fit into the cache, or on the disk."""


@dataclass(frozen=True, slots=True)
class Put:
    path: str
    size_bytes: int
    modified_ns: int
    inode: int

    @classmethod
    def of(cls, path: str, status: os.stat_result) -> Self:
        return cls(path, status.st_size, status.st_mtime_ns, status.st_ino)


class Content:
    """An open blob, to be read chunk by chunk. A context manager."""

    def __init__(self, manifest: Manifest, file: int, put: Put | None) -> None:
        self.manifest = manifest
        self.blob = manifest.blob
        self._file = file
        self._put = put

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    @property
    def file(self) -> int:
        """The descriptor, to be handed to another process."""
        return self._file

    @property
    def chunks(self) -> int:
        return self.blob.chunks

    def read(self, index: int, buffer: memoryview) -> memoryview:
        """One chunk, in front of `buffer`. Raises LocalError where it cannot be read, or is what
        it was no longer."""
        try:
            chunk = self._read(index, buffer, platform.read_at)
        except OSError as error:
            raise LocalError(f"{self.blob.cid} cannot be read: {error.strerror}") from error
        if chunk is None:
            raise LocalError(f"{self.blob.cid} is cut short on the disk")
        return chunk

    def read_now(self, index: int, buffer: memoryview) -> memoryview | None:
        """As `read`, of what is in memory; None where it would have to wait for the disk, or the
        file system cannot tell: `read` will say."""
        try:
            return self._read(index, buffer, platform.read_if_in_memory)
        except OSError:
            return None

    def _read(
        self, index: int, buffer: memoryview, read_at: Callable[[int, memoryview, int], int]
    ) -> memoryview | None:
        """None where the file has less. Raises OSError, LocalError."""
        chunk = buffer[: self.blob.chunk_bytes(index)]
        read = read_at(self._file, chunk, index * CHUNK_BYTES)
        if self._put is not None and Put.of(self._put.path, os.fstat(self._file)) != self._put:
            raise LocalError(f"{self._put.path} was changed after it was put; put it again")
        return chunk if read == len(chunk) else None


class Part:
    """A file that is being fetched, at `path`; `finish` gives it its own name."""

    def __init__(
        self, manifest: Manifest, path: Path, finished: Callable[[], object], mode: int
    ) -> None:
        self.blob = manifest.blob
        self._manifest = manifest
        self._path = path
        self._finished = finished
        self._mode = mode
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def inspect(self) -> frozenset[int]:
        """The chunks that an earlier fetch left here: each is verified again."""
        os.ftruncate(self._file, self.blob.size_bytes)
        kept: set[int] = set()
        index = 0
        while (index := self._next_written(index)) < self.blob.chunks:
            chunk = os.pread(self._file, CHUNK_BYTES, index * CHUNK_BYTES)
            if digest_of(chunk) == self._manifest.digest(index):
                kept.add(index)
            index += 1
        return frozenset(kept)

    def _next_written(self, index: int) -> int:
        """The first chunk from here on of which something was written: the rest are holes."""
        if self.blob.size_bytes == 0:
            return index  # the one chunk of no bytes
        try:
            at = os.lseek(self._file, index * CHUNK_BYTES, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return self.blob.chunks
        return at // CHUNK_BYTES

    def store(self, chunks: Iterable[tuple[int, memoryview]]) -> frozenset[int]:
        """Verify chunks, and write those that the manifest lists: which they are. OSError."""
        right: set[int] = set()
        for index, chunk in chunks:
            if digest_of(chunk) != self._manifest.digest(index):
                continue
            at = index * CHUNK_BYTES
            while chunk:
                written = os.pwrite(self._file, chunk, at)
                at, chunk = at + written, chunk[written:]
            right.add(index)
        return frozenset(right)

    def finish(self) -> None:
        """Every chunk is there. OSError."""
        os.fchmod(self._file, self._mode)
        self._finished()

    def close(self) -> None:
        os.close(self._file)


def part_beside(manifest: Manifest, path: Path) -> Part:
    """One that becomes the file at `path`, over what is there, once it is whole. OSError."""
    blob = manifest.blob
    part = beside(path, blob.cid, "part")
    check_disk(path.parent, blob.size_bytes)
    return Part(manifest, part, lambda: part.replace(path), usual_mode())


def check_place(path: Path) -> None:
    """Raises LocalError where no file can come to be at `path`, before any of it is fetched."""
    with suppress(OSError):  # a name that no file can have is told where it is made
        if path.is_dir():
            raise LocalError(f"{path} is a folder; name a file in it")
        if not path.parent.is_dir():
            raise LocalError(f"{path.parent} is no folder; make it first")


def beside(path: Path, cid: Cid, what: str) -> Path:
    """What is to become the file at `path`."""
    return path.with_name(f".{path.name[:128]}.{str(cid)[-16:]}.{what}")


def usual_mode() -> int:
    """Of a new file of this user."""
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def read_through(file: int, path: Path) -> tuple[Manifest, os.stat_result]:
    """The manifest of an open file. Raises OSError, and LocalError for anything but a plain file,
    and for one that is too large or written to meanwhile."""
    before = os.fstat(file)
    if not stat.S_ISREG(before.st_mode):
        raise LocalError(f"{path} is not a plain file; pack a folder first")
    if before.st_size > MAX_BLOB_BYTES:
        largest = format_bytes(MAX_BLOB_BYTES)
        raise LocalError(f"{path} has {format_bytes(before.st_size)}, of at most {largest}")
    digests = bytearray()
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    at = 0
    while at < before.st_size or not digests:
        size = min(CHUNK_BYTES, before.st_size - at)
        read = os.preadv(file, [view[:size]], at)
        if read < size:
            raise LocalError(f"{path} is being written to; wait until it is whole")
        digests += digest_of(view[:size])
        at += size
    after = os.fstat(file)
    if Put.of("", after) != Put.of("", before):
        raise LocalError(f"{path} is being written to; wait until it is whole")
    return Manifest(before.st_size, bytes(digests)), after


def read_whole(file: int, blob: Blob) -> tuple[Manifest, bytes] | None:
    """The content of a plain file that has what `blob` names; None for anything else. Raises
    OSError."""
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_size != blob.size_bytes:
        return None
    content = os.pread(file, blob.size_bytes, 0)
    manifest = Manifest.of(content)
    return (manifest, content) if manifest.blob.cid == blob.cid else None


def copied_whole(blob: Blob, path: Path, file: int) -> bool:
    """Whether a file has the content of `blob`, which is small, and the new file at `path` now has
    it too. Raises LocalError."""
    with local_errors(path):
        if (read := read_whole(file, blob)) is None:
            return False
        with os.fdopen(new_input(path), "wb") as into:
            into.write(read[1])
    return True


def new_input(path: Path) -> int:
    """A new file that may be read and executed, open to be written. Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o500)


def copy_file(source: int, into: int, size: int) -> None:
    done = 0
    while done < size:
        copied = platform.copy_range(source, into, done, size - done)
        if copied == 0:
            raise LocalError("a blob was cut short while it was copied")
        done += copied


def copied(source: int, path: Path, size: int) -> Manifest | None:
    """Of a new file at `path`, which has what a file of another node has; None where that has
    another size, or is not a plain file. Raises OSError, LocalError."""
    status = os.fstat(source)
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        return None
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    into = os.open(path, flags, 0o400)
    try:
        copy_file(source, into, size)
        return read_through(into, path)[0]
    finally:
        os.close(into)


def check_disk(folder: Path, size_bytes: int) -> None:
    """Raises NoRoom."""
    free = shutil.disk_usage(folder).free
    if size_bytes + SPARE_BYTES > free:
        raise NoRoom(
            f"{format_bytes(size_bytes)} do not fit on the disk at {folder}, which has "
            f"{format_bytes(free)} free"
        )


# Pieces of a parcel, in a file.


def write_pieces(
    path: Path, pieces: Sequence[memoryview], size: int, *, durable: bool = False
) -> None:
    """A new file, where they lie as in a parcel. With `durable` it is on the disk once this
    returns. Raises LocalError, and leaves nothing then."""
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_disk(folder, size)
        with path.open("xb", buffering=0) as file:
            write_all(file.fileno(), pieces)
            os.ftruncate(file.fileno(), size)
            if durable:
                os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        problem = f"{format_bytes(size)} cannot be kept: {error.strerror or error}"
        raise LocalError(f"{problem}; free some of the disk at {folder}") from error


def write_all(file: int, pieces: Sequence[memoryview]) -> None:
    """Pieces into a file, where they lie as in a parcel. Raises OSError."""
    sizes = [piece.nbytes for piece in pieces]
    for at, piece in zip(places_of(sizes), pieces, strict=False):
        rest = piece
        while rest:
            written = os.pwrite(file, rest, at)
            at, rest = at + written, rest[written:]
