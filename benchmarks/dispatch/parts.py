"""The processes that a benchmark consists of, run one after the other."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.dispatch.processes import ROOT, Line, SideFailed, run_side

# What `make bench-dispatch` makes for Ray, Dask and joblib.
PEERS_PYTHON: Final = str(ROOT / ".bench" / "bin" / "python")


@dataclass(frozen=True)
class Part:
    """One process of a side; `module` is below `benchmarks`. Nothing takes as long as `deadline_s`,
    on two busy cores. `label` is its name where two have the module."""

    side: str
    module: str
    arguments: tuple[str, ...]
    deadline_s: float
    peers: bool = False
    label: str = ""

    @property
    def interpreter(self) -> str:
        return PEERS_PYTHON if self.peers else sys.executable

    @property
    def name(self) -> str:
        return self.label or self.module.rpartition(".")[2]


async def run_parts(
    parts: Iterable[Part], say: Callable[[str], None]
) -> tuple[dict[Part, Line], dict[str, float], dict[str, str]]:
    """The figures of those that brought some, the load before each, and why others did not."""
    lines: dict[Part, Line] = {}
    loads: dict[str, float] = {}
    failed: dict[str, str] = {}
    for part in parts:
        say(f"{part.name} …")
        loads[part.name] = round(os.getloadavg()[0], 2)
        try:
            lines[part] = line = await _run(part)
        except SideFailed as failure:
            failed[part.name] = str(failure)
            say(f"{part.name}: {failure}")
            continue
        say("  ".join(f"{what} {value}" for what, value in line.items()))
    return lines, loads, failed


async def _run(part: Part) -> Line:
    """With a folder of its own for what it writes, also where it does not end well. Raises
    SideFailed."""
    arguments = (f"benchmarks.{part.module}", *part.arguments)
    # A short name: Ray's sockets are deep below it, and the path of a socket has an end.
    with tempfile.TemporaryDirectory(prefix="b", ignore_cleanup_errors=True) as folder:
        # In its home Ray keeps the token that its own processes show each other.
        places = {"TMPDIR": folder, **({"HOME": folder} if part.peers else {})}
        return await run_side(part.interpreter, arguments, places, part.deadline_s)


def here() -> dict[str, Any]:
    """What ran it."""
    return {"cores": os.cpu_count(), "python": platform.python_version()}
