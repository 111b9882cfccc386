"""The Python interpreters of this machine."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import cloudpickle

from formation_p2p.core.errors import LocalError
from formation_p2p.machine.command import printed_by
from formation_p2p.machine.core.python import Python, python_name

# It starts in 20 ms; a disk that has to wake up takes seconds.
_PROBE_S: Final = 20.0
_PROBE: Final = """
import json, platform, sys
libc = "gnu" if platform.libc_ver()[0] == "glibc" else "musl" if sys.platform == "linux" else "none"
print(json.dumps([
    "%s-%d.%d" % (sys.implementation.name, *sys.version_info[:2]),
    "-".join([platform.system(), platform.machine(), libc]).lower(),
    sys.executable, [sys.prefix, sys.base_prefix],
]))
"""
CLOUDPICKLE: Final = int(cloudpickle.__version__.partition(".")[0])


@dataclass(frozen=True, slots=True)
class Interpreter:
    """`prefixes` are the folders that it reads: its own, and that of its standard library."""

    python: Python
    path: Path
    prefixes: tuple[Path, ...]


def own_name() -> str:
    """The version of this process, as calls ask for it."""
    return "{}-{}.{}".format(sys.implementation.name, *sys.version_info[:2])


def interpreters(asked: Iterable[str] = ()) -> Mapping[str, Interpreter]:
    """Those that a worker offers, by their names: this process's own where none is asked for. Each
    is asked for as a version (`3.12`, `pypy-3.11`) or a path. Takes a moment. Raises LocalError,
    InvalidInput."""
    found = [_of(each) for each in asked] or [_probed(sys.executable)]
    return {each.python.name: each for each in found}


def _of(asked: str) -> Interpreter:
    if os.sep in asked:
        return _probed(asked)
    name = python_name(asked)
    if name == own_name():
        return _probed(sys.executable)
    for path in _candidates(name):
        try:
            interpreter = _probed(str(path))
        except LocalError:
            continue  # a shim of pyenv for a version that is not active
        if interpreter.python.name == name:
            return interpreter
    raise LocalError(
        f"python: {asked} is not on PATH, nor known to uv or pyenv; install it, with `uv python "
        f"install {asked}` say, or name its path"
    )


def _candidates(name: str) -> Iterator[Path]:
    implementation, _, version = name.partition("-")
    program = {"cpython": "python"}.get(implementation, implementation) + version
    for folder in os.get_exec_path():
        if (Path(folder) / program).is_file():
            yield Path(folder) / program
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from sorted(root.glob(f"*/bin/{program}"))
    if uv := shutil.which("uv"):
        listing = (uv, "python", "list", "--only-installed", "--output-format", "json", version)
        try:
            yield from (Path(each["path"]) for each in json.loads(printed_by(listing, _PROBE_S)))
        except (LocalError, ValueError, KeyError, TypeError):
            return  # it helps where it can


@lru_cache
def _probed(path: str) -> Interpreter:
    try:
        printed = json.loads(printed_by((path, "-I", "-c", _PROBE), _PROBE_S))
        name, platform, executable, prefixes = printed
        python = Python(name, platform, CLOUDPICKLE)
    except (LocalError, ValueError) as problem:
        raise LocalError(f"python: {path} does not say what it is: {problem}") from problem
    return Interpreter(python, Path(executable), tuple(Path(prefix) for prefix in set(prefixes)))
