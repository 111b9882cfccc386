"""The environments that are on this machine: a cache with a bound, the least lately used of which
make room.

| in the folder | what it holds |
| ------------- | ------------- |
| `NAME-KEY/` | an environment: NAME is that of its content, KEY of the interpreter below it |
| `NAME-KEY/venv/` | what tasks see of it, to be read only; its build writes to it |
| `NAME-KEY/build/` | what only its build sees; gone once it is whole |
| `NAME-KEY/ready` | its size: it is whole since this was written. Touched when it is used |
| `downloads*/` | what uv has downloaded: of one, for builds that begin now |
| `python-KEY/` | an interpreter by its usual names, for processes; made anew by each node |
| `etc-*/` | what tasks see of /etc (drivers/etc_copy.py); made anew by each node |
| `gone-N/` | what is being removed |

An environment without `ready` is what a crash left, and is removed. One node uses the folder at a
time.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import logging
import os
import secrets
import shlex
import stat
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from formation_p2p.core.identity import PeerId
from formation_p2p.core.latest import Remembered
from formation_p2p.core.units import format_bytes
from formation_p2p.environments.settings import EnvironmentSettings
from formation_p2p.machine.core.environment import MAX_WARM
from formation_p2p.machine.file_lock import lock_file
from formation_p2p.machine.folders import folder_bytes, remove_folder_now
from formation_p2p.machine.locks import KeyedLocks
from formation_p2p.machine.pythons import Interpreter
from formation_p2p.workload.core.environment import Environment

_log = logging.getLogger(__name__)

# More than a machine has users in a week; each is a folder of thousands of files.
MAX_ENVIRONMENTS: Final = 128
# What failed is not tried again for as long; an index may be back by then.
FAILED_S: Final = 60.0
MAX_FAILED: Final = 256
# Downloads and copies take the disk and the line, which tasks use too. More than one, so that no
# owner has all.
MAX_BUILDS: Final = 2
# As many nodes as run from one home (machine/home.py).
_MAX_FOLDERS: Final = 16

VENV: Final = "venv"
_READY: Final = "ready"
# One number, below 2^63.
_MAX_RECORD_BYTES: Final = 20
_DOWNLOADS: Final = "downloads"
_SEAL_BYTES: Final = 32

Changed = Callable[[tuple[str, ...]], None]
# st_dev and st_ino, by which a folder is told from what was put in its place.
Place = tuple[int, int]


@dataclass(slots=True)
class _Kept:
    size_bytes: int
    used_s: float
    place: Place


@dataclass(slots=True, weakref_slot=True, eq=False)
class EnvironmentCache:
    """`open` it in a thread; the other methods are for the node's thread, and take a moment."""

    root: Path
    settings: EnvironmentSettings
    builds: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(MAX_BUILDS))
    owners: KeyedLocks[PeerId] = field(default_factory=KeyedLocks)
    """Of what one owner wants built: taken first, so that it holds one of `turns` and one of
    `builds` at most, and others find the rest."""
    turns: KeyedLocks[str] = field(default_factory=KeyedLocks)
    """Of all that want one environment at once."""
    download_bytes: int = 0
    """What the downloads took when they were last measured."""
    _downloads: str = _DOWNLOADS
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _in_use: Counter[str] = field(default_factory=Counter)
    failures: Remembered[str, str] = field(default_factory=lambda: Remembered(MAX_FAILED, FAILED_S))
    """Why the last build of an environment failed, where that was a moment ago."""
    _changed: Changed = lambda names: None
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _release: Callable[[], object] = lambda: None

    @classmethod
    def open(cls, home: Path, settings: EnvironmentSettings) -> EnvironmentCache:
        """The first below the node's home that no other node uses, with what is on it. Raises
        OSError."""
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for index in range(_MAX_FOLDERS):
            claim = lock_file(home / f"environments-{index}.lock")
            if claim is not None:
                cache = cls(home / f"environments-{index}", settings)
                cache._release = weakref.finalize(cache, os.close, claim)
                cache._load()
                return cache
        raise OSError(f"{_MAX_FOLDERS} nodes keep environments in {home}; end one")

    @property
    def seal(self) -> bytes:
        """See drivers/index_relay.py. Beside the folder, which builds see in part. Raises
        OSError."""
        return seal_key(self.root.with_suffix(".seal"))

    def close(self) -> None:
        """Leave it to other nodes. Nothing uses it any more."""
        self._release()

    def _load(self) -> None:
        self.root.mkdir(mode=0o700, exist_ok=True)
        for folder in self.root.iterdir():
            try:
                if folder.name.startswith(_DOWNLOADS):
                    self._downloads = folder.name
                else:
                    size_bytes, used_s = _recorded(folder / _READY)
                    place = place_of(folder / VENV)
                    self._kept[folder.name] = _Kept(size_bytes, used_s, place)
            except (OSError, ValueError):
                remove_folder_now(folder)
        for path in self.leftovers():
            remove_folder_now(path)
        self.measure()
        for folder in self._make_room():
            remove_folder_now(folder)

    @property
    def downloads(self) -> Path:
        """Of uv's downloads, once there are any. Only what runs no foreign code may write to it."""
        return self.root / self._downloads

    def measure(self) -> None:
        """The downloads, in a thread."""
        with suppress(OSError):  # of a disk that fails, as what is built on it tells
            self.download_bytes = folder_bytes(self.downloads)

    def leftovers(self) -> tuple[Path, ...]:
        """What builds that failed or were stopped have left among the downloads, to be removed. As
        uv names all in the same way, what is there while another build runs may be that one's."""
        if self._in_use[self._downloads] > 1:
            return ()
        return (*self.downloads.glob(".tmp*"), *self.downloads.glob("*/.tmp*"))

    @property
    def left_bytes(self) -> int:
        """What environments in use leave to others."""
        in_use = (kept.size_bytes for key, kept in self._kept.items() if key in self._in_use)
        return max(0, self.settings.disk_bytes - sum(in_use))

    @property
    def room(self) -> str:
        """How much that is, and what to do about it."""
        left, most = format_bytes(self.left_bytes), format_bytes(self.settings.disk_bytes)
        if left == most:
            return f"environments have {most} here; give them more (--env-disk)"
        problem = f"those in use leave {left} of {most} for all environments"
        return f"{problem}; ask again later, or give them more (--env-disk)"

    def warm(self) -> tuple[str, ...]:
        """The names of those that are here, the latest used first."""
        kept = sorted(self._kept.items(), key=lambda each: -each[1].used_s)
        names = dict.fromkeys(key.partition("-")[0] for key, _ in kept)
        return tuple(names)[:MAX_WARM]

    def watch(self, changed: Changed) -> None:
        """Have it told the warm ones: now, and when one comes or goes."""
        self._changed = changed
        changed(self.warm())

    def folder(self, key: str) -> Path:
        return self.root / key

    def find(self, key: str) -> bool:
        """Whether an environment is here, and is the folder that was made. It counts as used now.

        Without a sandbox a task may have exchanged it."""
        kept = self._kept.get(key)
        if kept is None:
            return False
        try:
            if place_of(self.root / key / VENV) != kept.place:
                raise OSError(errno.ESTALE, "another folder is in its place")
        except OSError:
            del self._kept[key]
            return False
        kept.used_s = time.time()
        with suppress(OSError):
            os.utime(self.root / key / _READY, follow_symlinks=False)
        return True

    def programs(self, interpreter: Interpreter) -> Path:
        """A folder with nothing but this interpreter, as `python`, `python3` and the name that it
        has: beside it, `python3` may be another one. Raises OSError."""
        path = str(interpreter.path)
        folder = self.root / f"python-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
        if not folder.exists():
            made = self.root / f"gone-{next(self._numbers)}"
            made.mkdir(mode=0o700)
            for name in {"python", "python3", interpreter.path.name}:
                # No link: by that an interpreter does not find its virtual environment.
                (made / name).write_text(f'#!/bin/sh\nexec {shlex.quote(path)} "$@"\n')
                (made / name).chmod(0o700)
            made.rename(folder)
        return folder

    @asynccontextmanager
    async def in_use(self, name: str) -> AsyncIterator[None]:
        """An environment, or a folder of downloads: it is not removed meanwhile."""
        self._in_use[name] += 1
        try:
            yield
        finally:
            self._in_use[name] -= 1
            if not self._in_use[name]:
                del self._in_use[name]
            await self.make_room()

    def add(self, key: str, size_bytes: int, made: Place) -> None:
        """One that is whole and in use, in the folder that was `made`; nothing of its build runs
        any more. Raises OSError where it does not fit, or is another folder."""
        if place_of(self.root / key / VENV) != made:
            raise OSError(errno.ESTALE, "its build has put another folder in its place")
        if size_bytes > self.left_bytes:
            raise OSError(f"it takes {format_bytes(size_bytes)}, and {self.room}")
        # Made anew: through a link that lies there, another file would be written.
        with (self.root / key / _READY).open("x") as record:
            record.write(str(size_bytes))
        self._kept[key] = _Kept(size_bytes, time.time(), made)
        self.failures.forget(key)
        self._changed(self.warm())

    async def make_room(self) -> None:
        """Remove the least lately used, and what uv can download again. Also when cancelled."""
        warm = self.warm()
        gone = self._make_room()
        if self.warm() != warm:
            self._changed(self.warm())
        with trio.CancelScope(shield=True):
            for path in gone:
                await trio.to_thread.run_sync(remove_folder_now, path)

    def _make_room(self) -> tuple[Path, ...]:
        """Returns what to remove."""
        gone: list[Path] = []
        if self.download_bytes > self.left_bytes // 2:
            # Builds that run have theirs to their end.
            self._downloads = f"{_DOWNLOADS}-{time.time_ns()}"
            self.download_bytes = 0
        for path in self.root.glob(f"{_DOWNLOADS}*"):
            if path.name != self._downloads and path.name not in self._in_use:
                gone += self._taken_away(path.name)
        used_bytes = self.download_bytes + sum(kept.size_bytes for kept in self._kept.values())
        for key, kept in sorted(self._kept.items(), key=lambda each: each[1].used_s):
            if used_bytes <= self.settings.disk_bytes and len(self._kept) <= MAX_ENVIRONMENTS:
                break
            if key not in self._in_use:
                del self._kept[key]
                gone += self._taken_away(key)
                used_bytes -= kept.size_bytes
        return tuple(gone)

    def _taken_away(self, name: str) -> Iterator[Path]:
        """Under a name that is not used again, so that it may be made anew meanwhile."""
        path = self.root / f"gone-{next(self._numbers)}"
        with suppress(OSError):
            (self.root / name).rename(path)
            yield path


def _recorded(path: Path) -> tuple[int, float]:
    """The size, and when it was used. Of a plain file: to open a FIFO would wait for a writer, and
    a link may name anything. Raises OSError, ValueError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    record = os.open(path, flags)
    try:
        status = os.fstat(record)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it should be a plain file", str(path))
        return int(os.read(record, _MAX_RECORD_BYTES)), status.st_mtime
    finally:
        os.close(record)


def place_of(folder: Path) -> Place:
    """Raises OSError for anything but a folder, a link to one included: a sandbox would show what
    that names."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it should be a folder", str(folder))
    return found.st_dev, found.st_ino


def key_of(environment: Environment, python: str, interpreter: Interpreter) -> str:
    """The name of its folder, for tasks that ask for `python`, and get this interpreter."""
    below = f"{interpreter.python}\n{interpreter.path}".encode()
    return f"{environment.name(python)}-{hashlib.sha256(below).hexdigest()[:8]}"


def seal_key(path: Path) -> bytes:
    """Made anew where there is none. uv keeps pages, so that addresses stay the same for the next
    build. Raises OSError."""
    try:
        if len(key := path.read_bytes()) == _SEAL_BYTES:
            return key
    except FileNotFoundError:
        pass
    key = secrets.token_bytes(_SEAL_BYTES)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key)
    return key
