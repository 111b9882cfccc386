"""The files of a folder that a build may see, as one tar.

The choice is that of code bundles (code/files.py): in a git repository what `.gitignore` does not
name, never what looks like a secret or is made anew; and not what a `.dockerignore` or a
`.containerignore` leaves out. The same files have the same bytes, and thus the same CID.
"""

from __future__ import annotations

import stat
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from formation_p2p.code.files import MAX_SECRET_BYTES, Chosen, choose, is_private
from formation_p2p.code.modules import Unit
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.units import GIB, format_bytes
from formation_p2p.features.builds.core.ignore_rules import parse_ignore_rules

# What has more holds data, which goes by content as an input of its own.
MAX_CONTEXT_BYTES: Final = 4 * GIB
MAX_CONTEXT_FILES: Final = 100_000
IGNORE_FILES: Final = (".containerignore", ".dockerignore")
# Of each file: what there is of one is no part of its content, and a ZIP has none before 1980.
_MODIFIED_S: Final = 315_964_800


@dataclass(frozen=True, slots=True)
class Context:
    """`files` are by their names from the folder. `left_out` are those that look like secrets."""

    folder: Path
    files: Mapping[str, Path]
    left_out: tuple[str, ...]


def context_of(folder: Path) -> Context:
    """Raises InvalidInput where it is too much, or git cannot say what it tracks; LocalError where
    it cannot be read."""
    if not folder.is_dir():
        raise LocalError(f"{folder} is not a folder; name the one with the files of the build")
    chosen = Chosen()
    choose(Unit("", folder.resolve(), is_folder=True), chosen, "listed")
    try:
        rules = parse_ignore_rules(_first_text(folder))
        kept = {n: p for n, p in sorted(chosen.files.items()) if not rules.leave_out(n)}
        secret = {name for name, path in kept.items() if _holds_secret(path)}
        total = sum(path.stat().st_size for path in kept.values())
    except OSError as error:
        raise LocalError(f"{folder} cannot be read: {error}") from error
    files = {name: path for name, path in kept.items() if name not in secret}
    if total > MAX_CONTEXT_BYTES or len(files) > MAX_CONTEXT_FILES:
        sizes = f"{format_bytes(total)} in {len(files):,} files"
        limits = f"{format_bytes(MAX_CONTEXT_BYTES)} in {MAX_CONTEXT_FILES:,}"
        problem = f"has {sizes}, of at most {limits}; name what to leave out in .dockerignore"
        raise InvalidInput(str(folder), problem)
    left_out = {name for name in chosen.left_out if not rules.leave_out(name)}
    return Context(folder, files, tuple(sorted(left_out | secret)))


def write_tar(files: Mapping[str, Path], path: Path) -> None:
    """Of these files, by the names that they have there. Raises LocalError."""
    try:
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            for name, file in sorted(files.items()):
                status = file.stat()
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime = status.st_size, _MODIFIED_S
                entry.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
                with file.open("rb") as content:
                    tar.addfile(entry, content)
    except OSError as error:
        raise LocalError(f"the files of the build cannot be packed: {error}") from error


def _first_text(folder: Path) -> str:
    for name in IGNORE_FILES:
        if (folder / name).is_file():
            return (folder / name).read_text(errors="replace")
    return ""


def _holds_secret(path: Path) -> bool:
    with path.open("rb") as file:
        return is_private(file.read(MAX_SECRET_BYTES))
