"""One side in a process of its own, under a deadline, and the end of all that it started."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

Line = dict[str, Any]

ROOT: Final = Path(__file__).parents[2]
# A side that has said its line, or is told to end, has this long before it is killed.
END_S: Final = 15.0
# What is left after that gets a SIGKILL, and this long to be gone.
KILLED_S: Final = 5.0
# Linux: prctl(2). Whoever loses its parent becomes our child, where it is found and ended.
PR_SET_CHILD_SUBREAPER: Final = 36


class SideFailed(Exception):
    """A side brought no figures; the message says why."""


def adopt_orphans() -> None:
    """So that what a side leaves behind is a descendant of this process and of no other. Where
    the system does not have it, what left its process group and its parent is not found."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


async def run_side(
    interpreter: str, arguments: Sequence[str], environment: Mapping[str, str], deadline_s: float
) -> Line:
    """`python -m arguments…`, and the line of JSON that it ends with. Raises SideFailed."""
    before = _below()
    # A file and no pipe: whatever a side leaves behind could keep a pipe open.
    with tempfile.TemporaryFile() as said:
        try:
            process = await asyncio.create_subprocess_exec(
                *(interpreter, "-m", *arguments),
                stdout=said,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                start_new_session=True,  # Ctrl-C is for this process to act on
            )
        except OSError as error:
            raise SideFailed(f"{interpreter}: {error}; run make bench-dispatch") from None
        try:
            async with asyncio.timeout(deadline_s):
                ended = await process.wait()
        except TimeoutError:
            raise SideFailed(f"it did not end within {deadline_s:.0f} s") from None
        finally:
            await _end(process, before)
        if ended:
            raise SideFailed(f"it ended with {ended}; what it said is above")
        said.seek(0)
        return last_line(said.read())


def last_line(said: bytes) -> Line:
    """Whatever libraries print, the figures come last. Raises SideFailed."""
    try:
        line = json.loads(said.splitlines()[-1])
    except (IndexError, ValueError):
        line = None
    if not isinstance(line, dict):
        raise SideFailed("it said no figures")
    return line


async def _end(process: Process, before: set[psutil.Process]) -> None:
    """End a side and everything below it, by their ids, whatever it left behind."""
    left = _below() - before
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_S)
    left |= _below() - before
    for child in left:
        with suppress(psutil.NoSuchProcess):  # which also says that its id is somebody else's now
            child.kill()
    await process.wait()
    await asyncio.to_thread(psutil.wait_procs, left, KILLED_S)


def _below() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))
