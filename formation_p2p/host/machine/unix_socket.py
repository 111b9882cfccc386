"""Unix sockets in a home: names that fit, and whose program is at the other end."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol


class HasOptions(Protocol):
    """A socket, or trio's."""

    def getsockopt(self, level: int, option: int, length: int, /) -> bytes: ...


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A name for a socket's path that is short enough: 107 bytes are all that one may have."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def is_ours(end: HasOptions) -> bool:
    """Whether the program at the other end is this user's; the folder's mode says so already."""
    packed = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", packed)
    return bool(uid == os.getuid())


def connected_to(folder: Path | int, name: str) -> socket.socket | None:
    """To the program that listens on a socket of this name in a folder of a task's, which puts what
    it likes there: a name is opened without following a link, taken only if it is a socket, and
    connected to as it was opened. It does not block. None where nothing listens, or where that
    takes nothing more for now."""
    try:
        opened = folder if isinstance(folder, int) else os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=opened)
        finally:
            if opened is not folder:
                os.close(opened)
    except OSError:
        return None
    try:
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            return None
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            end.connect(f"/proc/self/fd/{found}")
        except OSError:
            end.close()
            return None
    finally:
        os.close(found)
    return end
