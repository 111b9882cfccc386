"""A text file that is written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """ASCII, also where another process writes it at the same moment. It may be gone after a crash
    of the machine. Raises OSError."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text + "\n")
        Path(name).replace(path)
    except BaseException:  # also where it is cancelled: the unfinished file goes
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
