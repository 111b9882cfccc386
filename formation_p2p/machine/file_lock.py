"""A lock between processes: a file that one of them at a time has locked."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

_RETRY_S: Final = 0.02


def lock_file(path: Path, *, wait_s: float = 0.0) -> int | None:
    """A descriptor that holds the lock until it is closed, or its process ends; None where another
    process keeps the lock for longer than `wait_s`. Makes the file. Raises OSError."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                os.close(lock)
                return None
            time.sleep(_RETRY_S)
        except BaseException:
            os.close(lock)
            raise
        else:
            return lock


def unlock_file(lock: int) -> None:
    """Release a lock, also where a fork of this process has its descriptor still."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)
