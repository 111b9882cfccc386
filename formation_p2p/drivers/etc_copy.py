"""A copy of what tasks see of /etc: bubblewrap takes 0.2 ms of a start for each file or folder that
it binds, and binds one folder in their place."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from formation_p2p.machine.folders import remove_folder_now

_log = logging.getLogger(__name__)

# A distribution has 2 to 8 MiB there. The node waits for the copy.
_MAX_BYTES: Final = 64 * 1024**2
_PAGE_BYTES: Final = 4096
# What changes as a machine moves from network to network, or is another in a network of a task's
# own: it is bound by itself, and empty in a copy.
HOSTS: Final = "hosts"
NAMESERVERS: Final = "resolv.conf"
MOUNT_POINTS: Final = (HOSTS, NAMESERVERS)


class EtcCopy:
    """Copies are below `root`, which one node uses at a time and empties when it starts. A change
    makes a new copy: tasks that run keep the copy that they were started with."""

    def __init__(self, root: Path, etc: Path = Path("/etc")) -> None:
        self._root = root
        self._etc = etc
        self._sources: tuple[str, ...] = ()
        self._stamps: dict[str, tuple[int, ...]] = {}
        self._left_bytes = 0
        self._made: Path | None = None

    def folder(self, sources: tuple[str, ...]) -> Path | None:
        """Has these files and folders of /etc as they are now, as far as every user may read them.
        None where they cannot be copied."""
        is_same = sources == self._sources
        if not is_same or any(_stamp(path) != known for path, known in self._stamps.items()):
            self._sources, self._stamps, self._left_bytes = sources, {}, _MAX_BYTES
            self._made = self._copied()
        return self._made

    def _copied(self) -> Path | None:
        made: Path | None = None
        try:
            made = Path(tempfile.mkdtemp(prefix="etc-", dir=self._root))
            targets = {each: made / Path(each).relative_to(self._etc) for each in self._sources}
            for source, target in targets.items():
                target.parent.mkdir(parents=True, exist_ok=True)
                if leads_to_software(source):
                    self._stamps[source] = _stamp(source)
                    shutil.copyfile(source, target, follow_symlinks=False)
                else:
                    self._copy(source, str(target))
            for name in MOUNT_POINTS:
                (made / name).touch()
            for folder in {folder for each in targets.values() for folder in each.parents}:
                if folder.is_relative_to(made):
                    folder.chmod(0o755)
            # It may be removed by hand.
            self._stamps[str(made)] = _stamp(str(made))
        except OSError as problem:
            _log.info("tasks start more slowly, for want of a copy of /etc: %s", problem)
            if made is not None:
                remove_folder_now(made)
            return None
        return made

    def _copy(self, source: str, target: str) -> None:
        # Before it is copied: what changes meanwhile is copied again.
        self._stamps[source] = _stamp(source)
        if not _is_open(source):
            return
        self._left_bytes -= max(_PAGE_BYTES, Path(source).stat().st_size)
        if self._left_bytes < 0:
            raise OSError(errno.EFBIG, "there is more than is copied", source)
        if not Path(source).is_dir():
            shutil.copy2(source, target)
            return
        Path(target).mkdir()
        with os.scandir(source) as entries:
            for entry in entries:
                inside = f"{target}/{entry.name}"
                if entry.is_symlink():  # it cannot change but with the folder
                    shutil.copyfile(entry.path, inside, follow_symlinks=False)
                else:
                    self._copy(entry.path, inside)
        shutil.copystat(source, target)


def leads_to_software(path: str) -> bool:
    """A link stays one where it leads to software: its name may say something too, such as the time
    zone."""
    return Path(path).is_symlink() and os.path.realpath(path).startswith("/usr/")


def _stamp(path: str) -> tuple[int, ...]:
    """Another one once something else is there, also where a link leads, or its mode changes."""
    try:
        own = found = os.lstat(path)
        if stat.S_ISLNK(own.st_mode):
            found = Path(path).stat()
    except OSError:
        return ()
    return own.st_ino, own.st_ctime_ns, found.st_ino, found.st_size, found.st_ctime_ns


def _is_open(path: str) -> bool:
    """Whether it is a file or folder that every user may read."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    if stat.S_ISDIR(mode):
        return bool(mode & stat.S_IROTH and mode & stat.S_IXOTH)
    return stat.S_ISREG(mode) and bool(mode & stat.S_IROTH)
