"""The large results of jobs that a state keeps: a file each, in a folder beside it, for as long as
the job is in the state."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from formation_p2p.content.arrivals import Arrived
from formation_p2p.content.files import write_pieces
from formation_p2p.content.job_data import JobFolders
from formation_p2p.content.mapping import mapped
from formation_p2p.core.errors import InvalidInput, LocalError, StateError
from formation_p2p.machine.folders import folder_bytes
from formation_p2p.workload.core.content import Content
from formation_p2p.workload.core.parcel import Parcel, is_parcel


class ResultFiles:
    """A file has the name of the blob. From any thread; all of it blocks on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folders = JobFolders(folder)

    def write(self, job_id: str, name: bytes, content: Content) -> Content:
        """The same, from the disk. Raises StateError where that is full or fails."""
        path = self._folders.of(job_id) / name.hex()
        view = content.take()
        try:
            path.unlink(missing_ok=True)  # of an earlier incarnation, which was killed
            write_pieces(path, [view], view.nbytes, durable=True)
            self._folders.sync(job_id)
            return _opened(path, view.nbytes)
        except (OSError, LocalError) as error:
            with suppress(OSError):
                path.unlink()
            cause = error.__cause__ if isinstance(error, LocalError) else error
            why = (cause.strerror if isinstance(cause, OSError) else "") or str(error)
            root = self._folders.root
            problem = f"{root}: a result of {view.nbytes} bytes cannot be written: {why}"
            raise StateError(f"{problem}; make room on that disk") from error

    def content(self, job_id: str, result: bytes) -> Content | None:
        """What lay in the blob of a record. It is read when it is taken. None where the result is
        none."""
        folder = self._folders.of(job_id)
        if not is_parcel(result) or not folder.exists():
            return None
        try:
            (blob,) = Parcel.decode(result).blobs
        except (InvalidInput, ValueError):  # of a driver with other results
            return None
        return _Stored(folder / blob.name.hex(), blob.size_bytes)

    def forget(self, job_id: str) -> None:
        """The job is in the state no more."""
        self._folders.forget(job_id)

    def keep_only(self, job_ids: Collection[str]) -> None:
        """Forget what a process that was killed has left of others."""
        for job_id in self._folders.others(job_ids):
            self.forget(job_id)

    @property
    def size_bytes(self) -> int:
        """What all of them take on the disk."""
        return folder_bytes(self._folders.root)


class _Stored:
    """Content of an earlier incarnation."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes

    def take(self) -> memoryview:
        try:
            return _opened(self._path, self._size_bytes).take()
        except FileNotFoundError as error:
            problem = (
                f"{self._path} was deleted with its job; keep more by Node.join(retention=...)"
            )
            raise StateError(f"{problem}, or submit the job again") from error
        except OSError as error:
            problem = f"{self._path} has a result, and cannot be read: {error}"
            raise StateError(f"{problem}; submit its job again") from error


def _opened(path: Path, size_bytes: int) -> Arrived:
    """What is written to it is the reader's own. Raises OSError."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < size_bytes:
            raise OSError(f"{path} is cut short")
        return Arrived(mapped(size_bytes, file.fileno()))
