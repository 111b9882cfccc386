"""What a service prints, in two files of a bound size: the newer one, and the one before it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from formation_p2p.core.units import MIB

# Of each of the two files.
MAX_LOG_BYTES: Final = MIB
# More than any log that people read; a flood would wear the disk out.
_MAX_BYTES_PER_S: Final = MIB


class LogFile:
    """Writes do not raise: a full disk must not end a service."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._second = 0
        self._left_bytes = 0

    @property
    def older(self) -> Path:
        return self.path.with_suffix(".log.1")

    def note(self, text: str) -> None:
        """A line of the node's own."""
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.write(f"-- {at} {text}\n".encode())

    def write(self, data: bytes) -> None:
        if (second := int(time.monotonic())) != self._second:
            self._second, self._left_bytes = second, _MAX_BYTES_PER_S
        if self._left_bytes <= 0:
            return
        self._left_bytes -= len(data)
        if self._left_bytes <= 0:
            data += b"\n-- more than 1 MiB in a second: some is left out\n"
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(data)
                size_bytes = file.tell()
            if size_bytes > MAX_LOG_BYTES:
                self.path.replace(self.older)
        except OSError:
            return

    def tail(self, lines: int) -> list[str]:
        """The last lines, of both files. Raises OSError but for files that are not there."""
        found: list[str] = []
        for path in (self.older, self.path):
            if path.exists():
                found += path.read_bytes().decode(errors="replace").splitlines()
        return found[-lines:] if lines else []


def log_of(root: Path, service: str) -> LogFile:
    """`root` is the folder of a node's services."""
    return LogFile(root / "logs" / f"{service}.log")
