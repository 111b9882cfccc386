"""What a service prints, in two files of a bound size: the newer one, and the one before it.

Among the lines stand those that say when what follows was printed, once for each second with any.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from formation_p2p.core.units import MIB

# Of each of the two files.
MAX_LOG_BYTES: Final = MIB
# More than any log that people read; a flood would wear the disk out.
_MAX_BYTES_PER_S: Final = MIB
_TIME: Final = re.compile(rb"\x1e(\d{1,12})\n")


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a log was read: of which file, and so many bytes of it."""

    inode: int = 0
    offset: int = 0


class LogFile:
    """Writes do not raise: a full disk must not end a service."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._second = 0
        self._left_bytes = 0
        self._is_amid_line = False

    @property
    def older(self) -> Path:
        return self.path.with_suffix(".log.1")

    @property
    def is_there(self) -> bool:
        return self.path.exists() or self.older.exists()

    def note(self, text: str) -> None:
        """A line of the node's own."""
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.write(f"-- {at} {text}\n".encode())

    def write(self, data: bytes) -> None:
        is_new = (second := int(time.monotonic())) != self._second
        if is_new:
            self._second, self._left_bytes = second, _MAX_BYTES_PER_S
        if self._left_bytes <= 0:
            return
        self._left_bytes -= len(data)
        if self._left_bytes <= 0:
            data += b"\n-- more than 1 MiB in a second: some is left out\n"
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                if (is_new and not self._is_amid_line) or not file.tell():
                    data = b"\x1e%d\n" % time.time() + data
                file.write(data)
                size_bytes = file.tell()
            self._is_amid_line = not data.endswith(b"\n")
            if size_bytes > MAX_LOG_BYTES:
                self.path.replace(self.older)
        except OSError:
            return

    def tail(self, lines: int) -> list[str]:
        """The last lines, of both files. Raises OSError but for files that are not there."""
        return self.since(0, lines)[0].decode(errors="replace").splitlines()

    def since(self, unix_s: int, lines: int) -> tuple[bytes, Mark]:
        """The last lines of what was printed since then, and how far that goes. Raises OSError."""
        found: deque[bytes] = deque(maxlen=lines)
        mark, at_s = Mark(), 0
        for reached, content in self._contents(mark):
            mark = reached
            for line in content.splitlines(keepends=True):
                if (said := _TIME.fullmatch(line)) is not None:
                    at_s = int(said[1])
                elif at_s >= unix_s:
                    found.append(line)
        return b"".join(found), mark

    def after(self, mark: Mark) -> tuple[bytes, Mark]:
        """What was printed after that. Raises OSError."""
        printed = b""
        found = list(self._contents(mark))
        for _, content in found:
            printed += _TIME.sub(b"", content)
        return printed, found[-1][0] if found else mark

    def _contents(self, after: Mark) -> Iterator[tuple[Mark, bytes]]:
        """Of the files, the older one first."""
        for path in (self.older, self.path):
            try:
                with path.open("rb") as file:
                    # A file that was renamed meanwhile is read once, by its number.
                    inode = os.fstat(file.fileno()).st_ino
                    if path == self.older and after.inode not in (0, inode):
                        continue
                    file.seek(after.offset if inode == after.inode else 0)
                    content = file.read()
                    yield Mark(inode, file.tell()), content
            except FileNotFoundError:
                continue


def log_of(root: Path, service: str) -> LogFile:
    """`root` is the folder of a node's services."""
    return LogFile(root / "logs" / f"{service}.log")
