"""A folder that is for its owner alone: small files of text and private keys.

A file is written whole or not at all, what is open to others is refused, and processes that come at
once take turns.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from formation_p2p.core.errors import LocalError
from formation_p2p.core.identity import Identity
from formation_p2p.machine.file_lock import lock_file, unlock_file
from formation_p2p.machine.folders import remove_folder_now, write_durably
from formation_p2p.machine.home_path import home_path

_log = logging.getLogger(__name__)

# The lock is held for as long as it takes to write two small files.
LOCK_TIMEOUT_S: Final = 10.0
# An invite with all the gates that it may have takes 6 KiB.
_MAX_FILE_BYTES: Final = 16 * 1024
_SEED_BYTES: Final = 32


# By the first word of a file's name: what to do where it is damaged.
_MEND: Final = {
    "identity": "move it away for a new identity, which will need a new grant",
    "network": "move it away and join again",
    "name": "move it away to go by the name of the host",
    "withdrawn": "move it away, and withdraw again what is to end",
    "grant": "move it away to go back to the grant of the invite",
    "root": "without it, this network takes no further members",
}


# What nodes keep in a home, but for the keys of a root: --state files lie where people put them.
_OURS: Final = re.compile(
    r"identity(-\d+)?\.(key|lock)|grant-\d+|network|withdrawn|name|charter|members|peers"
    r"|(held|usage|http-members)\.sqlite(-wal|-shm|\.lock)?|(trust-\d+|sizes)\.db(-wal|-shm|\.lock)?"
    r"|(scratch|blobs|services|environments)-\d+(\.lock)?|node-\d+\.sock"
    r"|control\.(sock|lock)|worker\.lock|published|code|wheels|.*\.unfinished"
)
_IS_ROOT: Final = re.compile(r"root(-\d+)?\.key")


class HomeFolder:
    """What a Home does to its files. All that follows `_locked` is called under that lock."""

    def __init__(self, path: Path | None = None, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.path = home_path(path)
        self._lock_timeout_s = lock_timeout_s

    def __repr__(self) -> str:
        return f"Home({self.path})"

    def purge(self) -> list[str]:
        """Remove all that nodes keep in the folder, and the folder where nothing else is in it; not
        the keys of a root, whose files it returns: they are all that this network has."""
        with self._locked():
            for path in self.path.iterdir():
                if _OURS.fullmatch(path.name) is None:
                    continue
                remove_folder_now(path)
            stay = [path.name for path in self.path.iterdir() if path.name != ".lock"]
            if not stay:
                (self.path / ".lock").unlink()
                self.path.rmdir()
        return sorted(name for name in stay if _IS_ROOT.fullmatch(name))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """The folder, for this process alone. What the system refuses becomes a LocalError."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_open_to_others(self.path, self.path.stat().st_mode, "700")
            lock = lock_file(self.path / ".lock", wait_s=self._lock_timeout_s)
            if lock is None:
                problem = f"another process has held {self.path} for {self._lock_timeout_s:.0f} s"
                raise LocalError(f"{problem}; see what `fuser {self.path}/.lock` names")
            try:
                yield
            finally:
                unlock_file(lock)
        except OSError as error:
            problem = f"{error.filename or self.path}: {error.strerror}"
            raise LocalError(f"{problem}; see that this user may read and write there") from error

    def _load_or_make(self, name: str) -> Identity:
        known = self._load_key(name)
        if known is not None:
            return known
        made = Identity.from_seed(os.urandom(_SEED_BYTES))
        self._write(name, key_line(made))
        _log.info("made %s: %s", self.path / name, made.peer_id)
        return made

    def _load_key(self, name: str) -> Identity | None:
        text = self._read(name)
        if text is None:
            return None
        key = identity_in(text)
        if key is None:
            raise self._damaged(name)
        return key

    def _damaged(self, name: str) -> LocalError:
        mend = _MEND[name.partition(".")[0].partition("-")[0]]
        return LocalError(f"{self.path / name} is damaged: put a copy back, or {mend}")

    def _read(self, name: str) -> str | None:
        """The text of a file, None where there is none."""
        path = self.path / name
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            raise LocalError(f"{path} is not a file; move it away")
        _refuse_open_to_others(path, status.st_mode, "600")
        if status.st_size > _MAX_FILE_BYTES:
            raise self._damaged(name)
        return path.read_bytes().decode("ascii", errors="replace")

    def _write(self, name: str, text: str) -> None:
        """Put a file in place whole, and on the disk, before this returns."""
        write_durably(self.path / name, f"{text}\n".encode("ascii"), f"{name}.unfinished")


def key_line(key: Identity) -> str:
    """A private key as its file has it."""
    return f"{key.seed.hex()} {key.peer_id}"


def identity_in(text: str) -> Identity | None:
    """What such a line says; None where it is damaged."""
    try:
        seed, peer_id = text.split()
        key = Identity.from_seed(bytes.fromhex(seed))
    except ValueError:
        return None
    return key if key.peer_id == peer_id else None


def _refuse_open_to_others(path: Path, mode: int, wanted: str) -> None:
    if mode & 0o077:
        command = f"chmod {wanted} {shlex.quote(str(path))}"
        raise LocalError(f"{path} is open to other users of this machine; run: {command}")
