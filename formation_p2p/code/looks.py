"""Whether files have changed, by what the file system says of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from formation_p2p.workload.core.blob import digest_of

# When it was changed, its size and number: see `_look`.
Look = tuple[int, int, int, int]
# The coarsest clock of a file system: FAT counts two seconds.
_TICK_NS: Final = 2_000_000_000


def looks(watched: Iterable[Path]) -> tuple[Look, ...]:
    """What differs where one of these was changed."""
    return tuple(map(_look, watched))


def settled(paths: Iterable[Path], seen: Iterable[Look], now_ns: int) -> Iterator[Path]:
    """Those that were not changed right before they looked so: a later change shows."""
    for path, (changed_ns, *_) in zip(paths, seen, strict=True):
        if changed_ns < now_ns - _TICK_NS:
            yield path


def digest(path: Path) -> bytes:
    """Of a file, or of the names in a folder; empty where it cannot be read."""
    try:
        held = (
            "\0".join(sorted(each.name for each in path.iterdir()))
            if path.is_dir()
            else path.read_bytes()
        )
    except OSError:
        return b""
    return digest_of(os.fsencode(held))


def _look(path: Path) -> Look:
    try:
        status = os.stat(path)  # noqa: PTH116 - a third of the time, for thousands
    except OSError:
        return (0, 0, 0, 0)
    # A tool that keeps the time of the content (`cp -p`, `rsync -t`) changes the other one.
    return (status.st_ctime_ns, status.st_mtime_ns, status.st_size, status.st_ino)
