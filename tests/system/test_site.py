"""The site of the documents: it builds strictly, with no broken link, and its pages load nothing
from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from formation_p2p import public
from tests.support.programs import ROOT
from tests.support.waiting import HANGS_S

# What a browser fetches by itself. A link that a reader follows is none of these.
LOADED: Final = re.compile(
    r"<(?:script|img|iframe)[^>]*\bsrc=\"?(?:https?:)?//|"
    r"<link[^>]*\brel=\"?(?:stylesheet|preconnect|icon)[^>]*\bhref=\"?(?:https?:)?//|"
    r"url\([\"']?(?:https?:)?//"
)


def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*.html")}
    for name, path in pages.items():
        assert not LOADED.search(path.read_text()), name
    for path in tmp_path.rglob("*.css"):
        assert not LOADED.search(path.read_text()), path
    api = "".join(path.read_text() for name, path in pages.items() if "reference/python/" in name)
    for name in (each for each in vars(public) if each[0].isalpha()):  # pytest adds names, too
        assert re.search(rf"id=\"[\w.]+\.{name}\"", api), name
    assert "formation network invite" in pages["reference/command.html"].read_text()
