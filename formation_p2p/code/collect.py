"""The bundle of all that some modules need: they themselves, and what they import of the user's
own, now or later."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from formation_p2p.code import files
from formation_p2p.code.files import Chosen
from formation_p2p.code.imports import imported_by, mentioned_in
from formation_p2p.code.looks import Look, digest, settled
from formation_p2p.code.looks import looks as looks_of
from formation_p2p.code.modules import Search, Unit, unit_at
from formation_p2p.code.untracked import WHY, imported_untracked, package_of
from formation_p2p.core.errors import InvalidInput
from formation_p2p.workload.core.code_bundle import write_bundle

# Of the names that were left out, so many are told.
_MAX_TOLD: Final = 8


@dataclass(frozen=True, slots=True)
class Collected:
    """`names` are what can be imported from the `bundle`. `left_out` are modules that are imported
    and git does not track, with that reason, and files that look like secrets; some of them, if
    there are many. It holds while `looks(watched)` are the same."""

    bundle: bytes
    names: tuple[str, ...]
    files: int
    size_bytes: int
    left_out: tuple[str, ...]
    watched: tuple[Path, ...]
    looks: tuple[Look, ...]
    # Of those that had just been changed when they were looked at: what they held. The clock of a
    # file system may show two changes that come so close as one.
    unsettled: dict[Path, bytes]

    @property
    def is_fresh(self) -> bool:
        """Whether the files are as they were. Those that have settled meanwhile are told by their
        looks from then on."""
        now_ns = time.time_ns()
        looks = looks_of(self.watched)
        if looks != self.looks or any(
            digest(path) != held for path, held in self.unsettled.items()
        ):
            return False
        if self.unsettled:
            for path in settled(self.watched, looks, now_ns):
                self.unsettled.pop(path, None)
        return True


def collect(referred: Iterable[str], imported: Iterable[str], search: Search) -> Collected | None:
    """For the modules that a call refers to, and those that it may import, by their dotted names.
    None where none of them is the user's own. Where git tracks none, a bundle without files.

    Raises InvalidInput where git does not track one that is referred to, and where it is too much.
    """
    chosen, units, referred, imported = Chosen(), list[Unit](), tuple(referred), tuple(imported)
    untracked: list[str] = []
    certain = {unit for name in referred for unit in search.units_of(name)}
    waiting = [*certain, *(unit for name in imported for unit in search.units_of(name))]
    seen: set[Unit] = set()
    names_seen: set[str] = set()
    while waiting:
        unit = waiting.pop()
        if unit in seen or any(_holds(other, unit) for other in units):
            continue
        seen.add(unit)
        before = set(chosen.files)
        if not files.choose(unit, chosen):
            if unit in certain:
                raise files.untracked(unit)
            untracked.append(unit.name + WHY)
            continue
        units.append(unit)
        names: set[str] = set()
        for file in chosen.files.keys() - before:
            path = chosen.files[file]
            if not file.endswith(".py") or not _leads_on(mentioned_in(path), units, search):
                continue
            names |= imported_by(path, package_of(file))
        for name in names - names_seen:
            waiting += search.units_of(name)
        names_seen |= names
    _check_referred(referred, units, chosen)
    beside = imported_untracked(units, (*referred, *imported), chosen)
    untracked += [name + WHY for name in beside]
    return _collected(units, chosen, untracked) if units or untracked else None


def _check_referred(referred: Iterable[str], units: list[Unit], chosen: Chosen) -> None:
    """A package goes as a whole, but for what git does not track: a module that a call refers to
    may be that. Raises InvalidInput."""
    going = set(chosen.files.values())
    for name in referred:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or (path := Path(file)) in going:
            continue
        for unit in units:
            if unit.is_folder and path.is_relative_to(unit.path):
                inside = path.relative_to(unit.path).as_posix()
                raise files.untracked(Unit(f"{unit.name}/{inside}", path, is_folder=False))


def _leads_on(tops: Iterable[str], units: list[Unit], search: Search) -> bool:
    """Whether a file that mentions these may import what is not there yet."""
    for top in tops:
        found = search.units_of(top) if top != ".." else ()
        if not found and (top == ".." or search.is_namespace(top)):
            return True  # what is below a namespace its own name does not say
        if not all(any(_holds(other, unit) for other in units) for unit in found):
            return True
    return False


def collect_listed(paths: Iterable[Path]) -> Collected:
    """Of these files and folders, and nothing else. Raises InvalidInput."""
    chosen, units = Chosen(), [unit_at(path) for path in paths]
    for unit in units:
        count = len(chosen.files)
        files.choose(unit, chosen, "listed")
        if not unit.is_folder and len(chosen.files) == count:
            problem = "looks like a secret, or is named twice; leave it out of code="
            raise InvalidInput("code", f"{unit.path} {problem}")
    return _collected(units, chosen)


def _collected(units: list[Unit], chosen: Chosen, untracked: Iterable[str] = ()) -> Collected:
    # Before the content is read: what is changed meanwhile looks different later.
    watched = tuple(sorted(chosen.watched))
    now_ns = time.time_ns()
    looks = looks_of(watched)
    recent = set(watched).difference(settled(watched, looks, now_ns))
    unsettled = {path: digest(path) for path in recent}
    content = files.read(chosen)
    names = {unit.module for unit in units if unit.module}
    if len(names) < len(units):  # one goes by its content
        names |= {name.split("/")[0].partition(".")[0] for name in chosen.files}
    # First what a call may fail for.
    left_out = [*sorted(untracked), *sorted(chosen.left_out)]
    told = left_out[:_MAX_TOLD]
    if len(left_out) > len(told):
        told.append(f"{len(left_out) - len(told)} more")
    return Collected(
        write_bundle(content),
        tuple(sorted(names)),
        len(content),
        sum(len(file.content) for file in content),
        tuple(told),
        watched,
        looks,
        unsettled,
    )


def _holds(folder: Unit, unit: Unit) -> bool:
    """Whether a unit goes along with another one already, under the name that it needs."""
    if not folder.is_folder or not unit.path.is_relative_to(folder.path):
        return False
    inside = unit.path.relative_to(folder.path).parts
    return unit.name == "/".join((folder.name, *inside))
