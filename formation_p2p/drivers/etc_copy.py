"""A copy of the files that tasks see of /etc: bubblewrap takes 0.2 ms of a start for each file or
folder that it binds, and binds one folder in place of these files."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from formation_p2p.machine.folders import remove_folder_now

_log = logging.getLogger(__name__)

# One of a distribution has some KiB; the cache of the linker 100.
_MAX_FILE_BYTES: Final = 4 * 1024**2
# What changes as a machine moves from network to network, or is another in a network of a task's
# own: it is bound by itself, as folders are, and empty in a copy.
HOSTS: Final = "hosts"
NAMESERVERS: Final = "resolv.conf"


class EtcCopy:
    """Copies are below `root`, which one node uses at a time and empties when it starts. A change
    makes a new copy: tasks that run keep the copy that they were started with."""

    def __init__(self, root: Path, etc: Path = Path("/etc")) -> None:
        self._root = root
        self._etc = etc
        self._sources: tuple[str, ...] = ()
        self._stamps: dict[str, tuple[int, ...]] = {}
        self._made: Path | None = None
        self.places: tuple[str, ...] = ()
        """The folders among the sources, of which the copy has the places alone."""

    def folder(self, sources: tuple[str, ...]) -> Path | None:
        """Has these files of /etc as they are now, as far as every user may read them, and a place
        for each folder of them. None where they cannot be copied."""
        is_same = sources == self._sources
        if not is_same or any(_stamp(path) != known for path, known in self._stamps.items()):
            # Before they are copied: what changes meanwhile is copied again.
            self._sources, self._stamps = sources, {each: _stamp(each) for each in sources}
            self._made = self._copied()
        return self._made

    def _copied(self) -> Path | None:
        made: Path | None = None
        places: list[str] = []
        try:
            made = Path(tempfile.mkdtemp(prefix="etc-", dir=self._root))
            made.chmod(0o755)
            for source in map(Path, self._sources):
                target = made / source.relative_to(self._etc)
                target.parent.mkdir(parents=True, exist_ok=True)
                if leads_to_software(source):
                    shutil.copyfile(source, target, follow_symlinks=False)
                elif source.is_dir():
                    target.mkdir(exist_ok=True)
                    places.append(str(source))
                elif _is_open(source):
                    shutil.copy2(source, target)
            for name in (HOSTS, NAMESERVERS):
                (made / name).touch()
            # It may be removed by hand.
            self._stamps[str(made)] = _stamp(str(made))
        except OSError as problem:
            _log.info("tasks start more slowly, for want of a copy of /etc: %s", problem)
            if made is not None:
                remove_folder_now(made)
            return None
        self.places = tuple(places)
        return made


def leads_to_software(path: Path) -> bool:
    """A link stays one where it leads to software: its name may say something too, such as the time
    zone."""
    return path.is_symlink() and os.path.realpath(path).startswith("/usr/")


def _stamp(path: str) -> tuple[int, ...]:
    """Another one once something else is there, also where a link leads, or its mode changes. What
    is in a folder is no matter."""
    try:
        own = found = os.lstat(path)
        if stat.S_ISLNK(own.st_mode):
            found = Path(path).stat()
    except OSError:
        return ()
    if stat.S_ISDIR(found.st_mode):
        return own.st_ino, found.st_ino
    return own.st_ino, own.st_ctime_ns, found.st_ino, found.st_size, found.st_ctime_ns


def _is_open(path: Path) -> bool:
    """Whether it is a file that every user may read."""
    try:
        found = path.stat()
    except OSError:
        return False
    is_small = found.st_size <= _MAX_FILE_BYTES
    return stat.S_ISREG(found.st_mode) and bool(found.st_mode & stat.S_IROTH) and is_small
