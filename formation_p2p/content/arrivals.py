"""Large results on the submitter's machine: mapped where a worker has left them, or fetched.

What has come and was not read yet is in memory up to a bound, past it in files without a name. It
goes when nothing refers to it any more.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from formation_p2p.content.files import NoRoom, check_disk
from formation_p2p.content.mapping import mapped
from formation_p2p.content.memory import MEMORY_SHARE
from formation_p2p.content.segment import check_sealed
from formation_p2p.core.errors import LocalError
from formation_p2p.core.units import KIB, MIB, format_bytes
from formation_p2p.machine import platform

# Copied, not mapped: mapping its pages costs as much, and a process has 65,530 mappings.
COPIED_BYTES: Final = 1024 * KIB
# From the page cache at once.
_COPY_BYTES: Final = 64 * MIB


class Arrived:
    """Content (workload/core/parcel.py). It counts as unread until `take`, or until it is
    dropped."""

    def __init__(self, view: memoryview, read: Callable[[int], None] | None = None) -> None:
        self.view = view
        self._read = None if read is None else weakref.finalize(self, read, view.nbytes)
        if self._read is not None:
            self._read.atexit = False

    def take(self) -> memoryview:
        if self._read is not None:
            self._read()
        return self.view


class Arrivals:
    """Of one node. `folder` is for what does not fit into memory. From any thread; blocks where the
    disk is needed."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._limit_bytes = pages // MEMORY_SHARE if limit_bytes is None else limit_bytes
        self._lock = threading.RLock()  # what is dropped may be so in any call
        self.unread_bytes = 0
        self.folder: Path | None = None

    def of_worker(self, file: int, size_bytes: int) -> Arrived:
        """What a worker of this machine has: mapped where it cannot be changed, else copied. Raises
        LocalError."""
        with suppress(LocalError):
            check_sealed(file, size_bytes)
            if size_bytes > COPIED_BYTES and self._took(size_bytes):
                return self._in_memory(size_bytes, file)
        arrived = self.room(size_bytes)
        at = 0
        while at < size_bytes:
            try:
                read = os.preadv(file, [arrived.view[at : at + _COPY_BYTES]], at)
            except OSError as error:
                raise _no_room(size_bytes, error) from error
            if not read:
                raise LocalError("a result is shorter than its worker said")
            at += read
        return arrived

    def room(self, size_bytes: int) -> Arrived:
        """Zeros, to be written to. Raises LocalError."""
        if self._took(size_bytes):
            return self._in_memory(size_bytes)
        if self.folder is None:
            raise LocalError("the node was left; nothing can be kept for it")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_disk(self.folder, size_bytes)
            with tempfile.TemporaryFile(dir=self.folder) as file:
                platform.allocate(file.fileno(), size_bytes)
                return Arrived(mapped(size_bytes, file.fileno(), shared=True))
        except OSError as error:
            raise _no_room(size_bytes, error) from error

    def _took(self, size_bytes: int) -> bool:
        with self._lock:
            if self.unread_bytes + size_bytes > self._limit_bytes:
                return False
            self.unread_bytes += size_bytes
            return True

    def _in_memory(self, size_bytes: int, file: int = -1) -> Arrived:
        try:
            return Arrived(mapped(size_bytes, file), self._give_back)
        except OSError as error:
            self._give_back(size_bytes)
            raise _no_room(size_bytes, error) from error

    def _give_back(self, size_bytes: int) -> None:
        with self._lock:
            self.unread_bytes -= size_bytes


def _no_room(size_bytes: int, error: OSError) -> NoRoom:
    problem = f"a result of {format_bytes(size_bytes)} cannot be kept: {error.strerror or error}"
    return NoRoom(f"{problem}; free memory, or the disk of the node's home")
