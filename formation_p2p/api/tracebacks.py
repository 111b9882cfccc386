"""Tracebacks of calls: with the lines of code that lies here alone, and without frames that say
nothing to a caller."""

from __future__ import annotations

import linecache
import os
import re
from pathlib import Path
from types import TracebackType
from typing import Final

from formation_p2p.core.errors import FormationError, RemoteTraceback

# `full`: with all frames.
VARIABLE: Final = "FORMATION_TRACEBACK"

# Scripts and the cells of notebooks: some hundred.
_MAX_FILES: Final = 1024
# Without a line of the source below.
_FRAME: Final = re.compile(r'^( *)File "([^"\n]+)", line (\d+), in .*$(?!\n\1 )', re.MULTILINE)

# The folders of this package, and of what runs its calls.
_STANDARD: Final = Path(os.__file__).parent
_BETWEEN: Final = tuple(
    f"{folder}{os.sep}"
    for folder in (Path(__file__).parents[1], _STANDARD / "asyncio", _STANDARD / "concurrent")
)

_files: dict[str, str] = {}  # by the names that workers are told, where they lie here


def told_file(file: str) -> str:
    """What workers are told: its last part, which says nothing of this machine."""
    name = file if file.startswith("<") else Path(file).name
    if len(_files) >= _MAX_FILES:
        _files.clear()
    _files[name] = file
    return name


def with_lines(traceback: str) -> str:
    """That of a worker, which says the names and the numbers of lines."""

    def shown(frame: re.Match[str]) -> str:
        file = _files.get(frame[2])
        line = "" if file is None else linecache.getline(file, int(frame[3])).strip()
        return f"{frame[0]}\n{frame[1]}  {line}" if line else frame[0]

    return _FRAME.sub(shown, traceback)


class _Shortly:
    """Out of this block comes what a call has raised, or why there is no result, with the caller's
    own frames alone, since those in between are always the same. All else comes as it is."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            shorten(error)


SHORTLY: Final = _Shortly()


def shorten(error: Exception) -> None:
    told = isinstance(error, FormationError) or isinstance(error.__cause__, RemoteTraceback)
    if not told or os.environ.get(VARIABLE) == "full":
        return
    frames: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_BETWEEN):
            frames.append(trace)
        trace = trace.tb_next
    for each in reversed(frames):
        trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    error.__traceback__ = trace
