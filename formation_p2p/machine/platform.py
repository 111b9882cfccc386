"""What the kernel of Linux has, and what other systems have in its place.

A node that asks others to work runs on any POSIX system; a worker needs Linux. What the former
needs of Linux alone is here and in unix_socket.py. The drivers of a worker ask Linux themselves.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import sys
import tempfile
from typing import Final

from formation_p2p.core.errors import LocalError

# <linux/fcntl.h>: no new way to write to it, where ours stays.
_F_SEAL_FUTURE_WRITE: Final = 0x0010
# Where the kernel does not copy: a piece at a time.
_COPIED_BYTES: Final = 1 << 20
FILES_CLOSE_ON_EXEC: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
"""For recvmsg, which takes descriptors."""


def check_worker() -> None:
    """Raises LocalError where tasks of others cannot be held."""
    if sys.platform != "linux":
        raise LocalError(
            "a worker needs Linux, whose kernel holds tasks to their limits: run it in a virtual "
            "machine, or submit work from here to others"
        )


def usable_cores() -> int:
    """Those that this process may be scheduled on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    else:  # noqa: RET505 -- mypy takes what follows for unreachable elsewhere
        return os.cpu_count() or 1


def memory_file(name: str) -> int:
    """A descriptor of a file without a name: of memory, or of the temporary folder. Raises
    OSError."""
    if sys.platform == "linux":
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:  # noqa: RET505
        with tempfile.TemporaryFile(prefix=name) as file:
            return os.dup(file.fileno())


def allocate(file: int, size_bytes: int) -> None:
    """Zeros that are there: a full disk would end the process that touches a page of them later.
    Raises OSError."""
    if sys.platform == "linux":
        os.posix_fallocate(file, 0, size_bytes)
    else:
        if shutil.disk_usage(file).free < size_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(file, size_bytes)


def seal(file: int, *, but_for_maps: bool = False) -> None:
    """A memory file keeps its size and its content from now on; with `but_for_maps` a process that
    has it mapped already may write to it. A system without seals does nothing. Raises OSError."""
    if sys.platform == "linux":
        write = _F_SEAL_FUTURE_WRITE if but_for_maps else fcntl.F_SEAL_WRITE
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | write)


def is_sealed(file: int) -> bool:
    """Whether neither its size nor its content changes any more. Raises OSError for other
    files than memory files."""
    if sys.platform == "linux":
        every = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        return fcntl.fcntl(file, fcntl.F_GET_SEALS) & every == every
    else:  # noqa: RET505
        return False


def keeps_its_size(file: int) -> bool:
    """Whether it is memory that no process can cut short under those that have it mapped."""
    if sys.platform == "linux":
        try:
            return fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK != 0
        except OSError:  # it is on a disk
            return False
    else:
        return False


def read_at(file: int, into: memoryview, at: int) -> int:
    """How much was read. Raises OSError."""
    return os.preadv(file, [into], at)


def read_if_in_memory(file: int, into: memoryview, at: int) -> int:
    """As `read_at`. Raises OSError where it would have to wait for a disk, or nothing tells."""
    if sys.platform == "linux":
        return os.preadv(file, [into], at, os.RWF_NOWAIT)
    else:  # noqa: RET505
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def copy_range(source: int, into: int, at: int, most: int) -> int:
    """Copies up to `most` bytes, of `source` from `at`, to where `into` stands. Raises OSError."""
    if sys.platform == "linux":
        try:
            return os.copy_file_range(source, into, most, at)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            return os.sendfile(into, source, at, most)
    else:
        return os.write(into, os.pread(source, min(most, _COPIED_BYTES), at))
