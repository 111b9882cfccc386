"""Unix sockets in a home: names that fit, and whose program is at the other end."""

from __future__ import annotations

import os
import socket
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
