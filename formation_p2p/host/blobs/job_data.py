"""The private blobs of jobs that a state keeps, the arguments of their calls and what else is large
in them: a file each, in a folder beside the state, until the job is over."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from formation_p2p.core.errors import LocalError
from formation_p2p.core.workload.parcel import places_of
from formation_p2p.core.workload.private_blob import NAME_BYTES
from formation_p2p.host.blobs.memory import PrivateBlobs
from formation_p2p.host.blobs.pieces import write_pieces
from formation_p2p.host.machine.folders import sync_folder

log = logging.getLogger(__name__)


class JobData:
    """A file has the name of the blob. From any thread; all of it blocks on the disk."""

    def __init__(self, blobs: PrivateBlobs, folder: Path) -> None:
        self._blobs = blobs
        self._folder = folder

    def load(self, job_ids: Collection[str]) -> None:
        """Have what an earlier incarnation kept for these jobs, and nothing of others. Raises
        LocalError."""
        if not self._folder.exists():
            return
        for folder in list(self._folder.iterdir()):
            if folder.name not in job_ids:
                self.release(folder.name)
                continue
            for path in folder.iterdir():
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
        folder = self._folder / job_id
        path = folder / name.hex()
        write_pieces(path, pieces, size, durable=True)
        self._blobs.keep_file(name, path, size)
        return name, size

    def sync(self, job_id: str) -> None:
        """Before the job is stored: its files are found after the machine has lost power. Raises
        LocalError."""
        folders = (self._folder / job_id, self._folder, self._folder.parent)
        try:
            for folder in folders if folders[0].exists() else ():
                sync_folder(folder)
        except OSError as error:
            raise LocalError(f"{self._folder}: {error.strerror or error}") from error

    def release(self, job_id: str) -> None:
        """It is over, or does not begin."""
        folder = self._folder / job_id
        if not folder.exists():
            return
        for path in folder.iterdir():
            with suppress(ValueError):
                self._blobs.release(bytes.fromhex(path.name))
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # there are others
            self._folder.rmdir()
