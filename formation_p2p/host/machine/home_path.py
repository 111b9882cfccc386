"""Where a home is (home.py), for those who open no more than a socket in it."""

from __future__ import annotations

import os
from pathlib import Path


def default_path() -> Path:
    """`$FORMATION_HOME`, or else `formation` among the user's data (XDG base directories)."""
    if chosen := os.environ.get("FORMATION_HOME"):
        return Path(chosen)
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "formation"


def home_path(chosen: Path | None = None) -> Path:
    """The folder that was chosen, or the default one, from the root on."""
    return (chosen or default_path()).expanduser().absolute()
