"""`formation run script.py`, and `formation run python script.py`: a script of this machine, with
the packages that its header names; and the code that calls of its functions take along."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from formation_p2p.command.files import size_of
from formation_p2p.core.errors import InvalidInput, LocalError

if TYPE_CHECKING:
    from formation_p2p.code.collect import Collected
    from formation_p2p.placement.core.task_options import TaskOptions

_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?")


def script_of(argv: Sequence[str], sent: Sequence[Path]) -> int | None:
    """Which word of the command is a Python file from here to run, which nothing else sends along;
    None where there is none."""
    place = 1 if argv and _PYTHON.fullmatch(argv[0]) else 0
    if len(argv) <= place or not argv[place].endswith(".py"):
        return None
    path = Path(argv[place])
    return place if path not in sent and path.is_file() else None


def with_header(script: Path, options: TaskOptions) -> TaskOptions:
    """With what the script's header asks for, if it has one, and nothing was said otherwise. Raises
    InvalidInput, LocalError."""
    from formation_p2p.environments.requirements import python_for, script_env
    from formation_p2p.workload.core.environment import Env

    try:
        read = script_env(script.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise InvalidInput("script", f"{script} is not UTF-8 text") from None
    except OSError as problem:
        raise LocalError(f"{script} cannot be read: {problem.strerror}") from problem
    if read is None or options.env is not None:
        return options
    needs = options.needs
    needs = replace(needs, python=python_for(read.python, needs.python))
    return replace(options, env=Env(read.lines), needs=needs)


def code_of(script: Path) -> tuple[Collected | None, tuple[str, ...]]:
    """The user's own code that calls of the functions of a script take along, at most: each takes
    what it uses itself. None for nothing. And the modules that it imports and are not found here.
    Raises InvalidInput, LocalError."""
    from formation_p2p.code.collect import collect
    from formation_p2p.code.imports import imported_by
    from formation_p2p.code.modules import Search

    size_of(script)  # it is there, and a file
    sys.path.insert(0, str(script.absolute().parent))  # as Python has it where it runs the script
    try:
        imported, search = imported_by(script, ""), Search()
        missing = {name.partition(".")[0] for name in imported if not search.finds(name)}
        return collect((), imported, search), tuple(sorted(missing))
    finally:
        del sys.path[0]
