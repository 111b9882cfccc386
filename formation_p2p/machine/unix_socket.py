"""Unix sockets in a home: names that fit, and whose program is at the other end."""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

# <asm-generic/socket.h>: `socket` does not name it.
_SO_PEERPIDFD: Final = 77
_UCRED: Final = struct.Struct("3i")
# <sys/un.h> of macOS: the level and the name of the option that tells who connected, and struct
# xucred: its version, the user, the number of groups, and 16 of them.
_SOL_LOCAL, _LOCAL_PEERCRED = 0, 1
_XUCRED: Final = struct.Struct("=IIh2x16I")
# Of a name there: 104 with the zero at its end.
_MAX_NAME_BYTES: Final = 103


class HasOptions(Protocol):
    """A socket, or trio's."""

    def getsockopt(self, level: int, option: int, length: int, /) -> bytes: ...


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A name for a socket's path that is short enough: 107 bytes are all that it may have. Raises
    OSError."""
    if sys.platform == "linux":
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{folder}/{path.name}"
        finally:
            os.close(folder)
    else:
        if len(os.fsencode(path)) > _MAX_NAME_BYTES:
            why = f"a socket's path has at most {_MAX_NAME_BYTES} bytes here; choose another home"
            raise OSError(errno.ENAMETOOLONG, why, str(path))
        yield str(path)


def is_beside_us(end: HasOptions) -> bool:
    """Whether the program at the other end is this user's, and no task in a sandbox: a task has the
    user's id too, and what it is handed leads out of its sandbox. Its namespaces tell. Those of
    mounts do not: systemd gives services a /tmp of their own. Only Linux has such tasks."""
    if sys.platform == "linux":
        packed = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        pid, uid, _ = _UCRED.unpack(packed)  # of who connected, or listens
        try:
            own, its = (
                [Path(f"/proc/{each}/ns/{name}").stat().st_ino for name in ("pid", "user")]
                for each in ("self", pid)
            )
        except OSError:  # it has ended, or this user may not look at it
            return False
        return uid == os.getuid() and own == its and not _has_ended(end)
    else:  # noqa: RET505 -- mypy takes what follows for unreachable elsewhere
        try:
            packed = end.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size)
        except OSError:  # a system that does not tell
            return False
        return bool(_XUCRED.unpack(packed)[1] == os.getuid())


if sys.platform == "linux":

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
    if sys.platform == "linux":
        flags = os.O_PATH | os.O_DIRECTORY
        try:
            opened = folder if isinstance(folder, int) else os.open(folder, flags)
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
            end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            end.setblocking(False)
            try:
                end.connect(f"/proc/self/fd/{found}")
            except OSError:
                end.close()
                return None
        finally:
            os.close(found)
        return end
    else:  # noqa: RET505
        return None
