"""Where a home is (home.py), for those who open no more than a socket in it."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

# What each home has (home.py).
IDENTITY: Final = "identity.key"
# Looked into for a home, the ones near the top first: a tenth of a second on a local disk.
_MAX_FOLDERS: Final = 4096


def default_path() -> Path:
    """`$FORMATION_HOME`, or else `formation` among the user's data (XDG base directories)."""
    if chosen := os.environ.get("FORMATION_HOME"):
        return Path(chosen)
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "formation"


def home_path(chosen: Path | None = None) -> Path:
    """The folder that was chosen, or the default one, from the root on."""
    return (chosen or default_path()).expanduser().absolute()


def home_near(folder: Path, most: int = _MAX_FOLDERS) -> Path | None:
    """A node's home that this folder is, lies in, or holds: looked for in so many folders at the
    most, and this user's own in any case."""
    above = (*folder.parents[::-1], folder)
    found = next((each for each in above if _is_home(each)), None)
    own = home_path().resolve()
    if found is None and own.is_relative_to(folder) and _is_home(own):
        found = own
    waiting = deque((folder,))
    for _ in range(most):
        if found is not None or not waiting:
            break
        with suppress(OSError), os.scandir(waiting.popleft()) as entries:
            for entry in entries:
                if entry.name == IDENTITY:
                    found = Path(entry.path).parent
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
    return found


def _is_home(folder: Path) -> bool:
    try:
        return (folder / IDENTITY).exists()
    except OSError:  # closed to this user
        return False
