"""The folder of a node's blobs: the names of its files, and how a file gets its name.

All of it blocks on the disk.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from formation_p2p.core.data.manifest import MAX_MANIFEST_BYTES
from formation_p2p.core.errors import LocalError
from formation_p2p.core.workload.blob import Buffer, Cid


@contextmanager
def local_errors(path: Path) -> Iterator[None]:
    """Raises LocalError where this machine has something against a file."""
    try:
        yield
    except OSError as error:
        raise LocalError(f"{error.filename or path}: {error.strerror or error}") from error


class BlobFolder:
    """See store.py for the files in it."""

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
