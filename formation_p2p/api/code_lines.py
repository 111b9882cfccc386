"""The lines of code that has travelled by value, for tracebacks: its file lies here alone."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Final

# Scripts and the cells of notebooks: some hundred.
_MAX_FILES: Final = 1024
# Without a line of the source below.
_FRAME: Final = re.compile(r'^( *)File "([^"\n]+)", line (\d+), in .*$(?!\n\1 )', re.MULTILINE)

_files: dict[str, str] = {}  # by the names that workers are told, where they lie here


def told_file(file: str) -> str:
    """What workers are told: its last part, which says nothing of this machine."""
    if file.startswith("<"):
        return file
    name = Path(file).name
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
