"""Notice: what a task is told before it is ended, so that it goes on elsewhere from what it saves.

A file beside that of its checkpoint, with `.notice` behind the name, has the Unix time by which it
is ended. A process gets SIGTERM as well.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

ENDING: Final = ".notice"


@dataclass(eq=False, slots=True)
class Notice:
    """Of one execution. Drivers wait for `given`, or look at it now and then."""

    given: trio.Event = field(default_factory=trio.Event)
    until_unix_s: float = 0.0

    def give(self, grace_s: float) -> None:
        """It is ended so much later."""
        if not self.given.is_set():
            self.until_unix_s = time.time() + grace_s
            self.given.set()

    def leave(self, folder: Path, name: str) -> None:
        """Where the task looks for it, beside the file `name` of its checkpoint. A task that is in
        the way of that gets none."""
        with suppress(OSError):
            place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                new = name + ENDING + ".new"
                file = os.open(new, flags, 0o600, dir_fd=place)
                try:
                    os.write(file, f"{self.until_unix_s:.3f}\n".encode())
                finally:
                    os.close(file)
                os.rename(new, name + ENDING, src_dir_fd=place, dst_dir_fd=place)
            finally:
                os.close(place)
