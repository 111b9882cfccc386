"""Programs for those who change the library."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def working_tree(root: Path) -> list[str]:
    """The files of the working tree without what git ignores; all of it where there is no
    repository, or no git."""
    found: list[str] = []
    if shutil.which("git"):
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        found = listed.stdout.split("\0") if listed.returncode == 0 else []
    shown = (path.relative_to(root) for path in root.rglob("[!.]*"))
    paths = found or [each.as_posix() for each in shown if not each.parts[0].startswith(".")]
    return [path for path in paths if path and (root / path).is_file()]
