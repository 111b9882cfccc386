"""The secrets of tasks and services that a node has: on its disk in boxes that it alone opens.

A secret is named by the CID of the box in which its owner keeps it, which says nothing of it. Those
of tasks are for peers that are told that name, as a worker is; those of a service for the workers
that run it, which keep them as well, so that the next one finds them while the owner is away.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import format_bytes
from formation_p2p.features.services.core.tending import MAX_SECRET_BYTES
from formation_p2p.machine.folders import changed_ns, write_durably
from formation_p2p.secrets.box import opened, seal
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of

# Of services: eight for each that a network can have. Of tasks: what a person's scripts use at
# once. The oldest of more give way.
MAX_OF_SERVICES: Final = 2048
MAX_OF_TASKS: Final = 256


class Secrets:
    """Of one node. `service` is that which a secret is for, empty for a task's. Methods raise
    LocalError where the disk fails."""

    def __init__(self, identity: Identity, folder: Path | None) -> None:
        self._identity = identity
        self._folder = folder

    def put(self, content: bytes, service: str = "", known: Blob | None = None) -> Blob:
        """By which name it is to be asked for: the one that is `known`, where that is the same.
        Raises InvalidInput for more than fits."""
        if len(content) > MAX_SECRET_BYTES:
            most = format_bytes(MAX_SECRET_BYTES)
            raise InvalidInput("secret", f"has {len(content)} bytes, of at most {most}")
        if known is not None and self.get(known.cid, service) == content:
            return known
        box = seal(self._identity.peer_id, content, service.encode())
        cid = Cid(RAW, digest_of(box))
        self._write(cid, box, service)
        return Blob(cid, len(box))

    def keep(self, cid: Cid, content: bytes, service: str) -> None:
        """One that came from elsewhere, under the name that it has there."""
        self._write(cid, seal(self._identity.peer_id, content, service.encode()), service)

    def get(self, cid: Cid, service: str = "") -> bytes | None:
        """None where it is not here, or for something else."""
        if self._folder is None:
            return None
        try:
            box = self._path(self._folder, cid, service).read_bytes()
            return opened(self._identity, box, service.encode())
        except (FileNotFoundError, InvalidInput):
            return None
        except OSError as error:
            raise LocalError(f"a secret cannot be read: {error}") from error

    def drop(self, cid: Cid, service: str = "") -> None:
        if self._folder is not None:
            self._path(self._folder, cid, service).unlink(missing_ok=True)

    def _path(self, folder: Path, cid: Cid, service: str) -> Path:
        return folder / f"{'service' if service else 'task'}-{cid}"

    def _write(self, cid: Cid, box: bytes, service: str) -> None:
        if self._folder is None:
            raise LocalError("this node has no folder for secrets")
        path = self._path(self._folder, cid, service)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_durably(path, box, f"{path.name}.{os.getpid()}.unfinished")
            self._make_room("service" if service else "task")
        except OSError as error:
            raise LocalError(f"a secret cannot be kept: {error}; make room on the disk") from error

    def _make_room(self, kind: str) -> None:
        assert self._folder is not None, "one was written there"
        most = MAX_OF_SERVICES if kind == "service" else MAX_OF_TASKS
        found = sorted(self._folder.glob(f"{kind}-*"), key=changed_ns)
        for path in found[:-most]:
            path.unlink(missing_ok=True)
