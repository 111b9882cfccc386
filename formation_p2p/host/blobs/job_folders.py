"""Files of the jobs that a state keeps: a folder for each job, in one folder beside the state."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from formation_p2p.host.machine.folders import sync_folder


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
