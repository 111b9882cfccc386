"""Modules of the user's own that stay behind, since git does not track them: which are imported,
and what to say where a worker lacks one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from formation_p2p.code.files import Chosen, modules_beside
from formation_p2p.code.imports import imported_by
from formation_p2p.code.modules import Unit

# Follows the name of a file that is told as left out.
WHY: Final = " (git does not track it)"
CURE: Final = "run `git add` for it, and take it out of .gitignore where that names it"

_MISSED: Final = re.compile(
    r"No module named '(?P<module>[\w.]+)'"
    r"|cannot import name '(?P<name>\w+)' from (?:[a-z ]+ )?'(?P<package>[\w.]+)'"
)


def imported_untracked(
    units: Iterable[Unit], names: Iterable[str], chosen: Chosen
) -> Iterator[str]:
    """The files of modules in the folders of units that stay behind, and that `names` have or the
    chosen files import."""
    beside = {module_of(name): name for unit in units for name in modules_beside(unit, chosen)}
    if not beside:
        return
    # To read what a file imports takes a hundred times as long as to look for words in it.
    lasts = {module.rpartition(".")[2].encode() for module in beside}
    words = re.compile(rb"\b(?:" + b"|".join(map(re.escape, lasts)) + rb")\b")
    imported = set(names)
    for name, path in chosen.files.items():
        if name.endswith(".py") and _has(path, words):
            imported |= imported_by(path, package_of(name))
    for module, name in beside.items():
        if any(f"{each}.".startswith(f"{module}.") for each in imported):
            yield name


def module_of(name: str) -> str:
    """The dotted name of a file or a folder in a bundle."""
    folder, _, last = name.rpartition("/")
    parts = [*folder.split("/"), last.partition(".")[0].removesuffix("__init__")]
    return ".".join(filter(None, parts))


def package_of(name: str) -> str:
    """That which a module is in, by its name in the bundle; that of `a/__init__.py` is `a`."""
    return name.rpartition("/")[0].replace("/", ".")


def missed_in(error: str, left_out: Iterable[str]) -> str:
    """What to say of an error of a call: which file it lacks, and what to do. Empty where it does
    not come from one that was left out for git."""
    found = [*_MISSED.finditer(error)]
    if not found:
        return ""
    missed = found[-1]["module"] or f"{found[-1]['package']}.{found[-1]['name']}"
    for told in left_out:
        file = told.removesuffix(WHY)
        if file != told and f"{missed}.".startswith(f"{module_of(file)}."):
            why = f"{file} did not go along, since git does not track it"
            return f"{found[-1].group()}: {why}; {CURE}"
    return ""


def _has(path: Path, words: re.Pattern[bytes]) -> bool:
    try:
        return words.search(path.read_bytes()) is not None
    except OSError:
        return False  # it is reported where its content is read
