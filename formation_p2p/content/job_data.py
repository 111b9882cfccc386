"""The private blobs of jobs that a state keeps, the arguments of their calls and what else is large
in them: a file each, in a folder beside the state, until the job is over."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from formation_p2p.content.files import write_pieces
from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.core.errors import LocalError
from formation_p2p.machine.folders import sync_folder
from formation_p2p.workload.core.blob import NAME_BYTES
from formation_p2p.workload.core.parcel import places_of


class JobFolders:
    """From any thread; all of it blocks on the disk."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def of(self, job_id: str) -> Path:
        """It is there once there is a file in it."""
        return self.root / job_id

    def sync(self, job_id: str) -> None:
        """The job's files are found after the machine has lost power. Raises OSError."""
        for each in (self.of(job_id), self.root, self.root.parent):
            sync_folder(each)

    def forget(self, job_id: str) -> None:
        """The job is over, or in the state no more."""
        if not self.of(job_id).exists():
            return
        shutil.rmtree(self.of(job_id), ignore_errors=True)
        with suppress(OSError):  # there are others
            self.root.rmdir()

    def others(self, job_ids: Collection[str]) -> list[str]:
        """The jobs besides these of which a process that was killed has left something."""
        with suppress(OSError):  # there is nothing
            return [each.name for each in self.root.iterdir() if each.name not in job_ids]
        return []


log = logging.getLogger(__name__)


class JobData:
    """A file has the name of the blob. From any thread; all of it blocks on the disk."""

    def __init__(self, blobs: PrivateBlobs, folder: Path) -> None:
        self._blobs = blobs
        self._folders = JobFolders(folder)

    def load(self, job_ids: Collection[str]) -> None:
        """Have what an earlier incarnation kept for these jobs, and nothing of others. Raises
        LocalError."""
        for job_id in self._folders.others(job_ids):
            self.release(job_id)
        for job_id in job_ids:
            for path in self._files(job_id):
                try:
                    name = bytes.fromhex(path.name)
                except ValueError:
                    log.warning("%s is none of ours; remove it", path)
                    continue
                self._blobs.keep_file(name, path, path.stat().st_size)

    def put(self, job_id: str, pieces: Sequence[memoryview]) -> tuple[bytes, int]:
        """As `PrivateBlobs.put`, until the job is released. Raises LocalError."""
        name = secrets.token_bytes(NAME_BYTES)
        size = places_of(piece.nbytes for piece in pieces)[-1]
        path = self._folders.of(job_id) / name.hex()
        write_pieces(path, pieces, size, durable=True)
        self._blobs.keep_file(name, path, size)
        return name, size

    def sync(self, job_id: str) -> None:
        """Before the job is stored: its files are found after the machine has lost power. Raises
        LocalError."""
        try:
            if self._folders.of(job_id).exists():
                self._folders.sync(job_id)
        except OSError as error:
            raise LocalError(f"{self._folders.root}: {error.strerror or error}") from error

    def release(self, job_id: str) -> None:
        """It is over, or does not begin."""
        for path in self._files(job_id):
            with suppress(ValueError):
                self._blobs.release(bytes.fromhex(path.name))
        self._folders.forget(job_id)

    def _files(self, job_id: str) -> list[Path]:
        folder = self._folders.of(job_id)
        return list(folder.iterdir()) if folder.exists() else []
