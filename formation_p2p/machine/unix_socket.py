"""Unix sockets in a home: names that fit, and whose program is at the other end."""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

# <asm-generic/socket.h>: `socket` does not name it.
_SO_PEERPIDFD: Final = 77


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


def is_beside_us(end: HasOptions) -> bool:
    """Whether the program at the other end is this user's, and no task in a sandbox: a task has the
    user's id too, and what it is handed leads out of its sandbox. Its namespaces tell. Those of
    mounts do not: systemd gives services a /tmp of their own."""
    packed = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", packed)  # of who connected, or listens
    try:
        own, its = (
            [Path(f"/proc/{each}/ns/{name}").stat().st_ino for name in ("pid", "user")]
            for each in ("self", pid)
        )
    except OSError:  # it has ended, or is no process that this user may look at
        return False
    return uid == os.getuid() and own == its and not _has_ended(end)


def _has_ended(end: HasOptions) -> bool:
    """Another process may have its pid by now. Before Linux 6.5 it is not known."""
    try:
        (process,) = struct.unpack("i", end.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))
    except OSError as error:
        return error.errno != errno.ENOPROTOOPT
    try:
        signal.pidfd_send_signal(process, 0)
    except ProcessLookupError:
        return True
    finally:
        os.close(process)
    return False


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
