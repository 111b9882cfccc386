"""The tutorial: its commands and programs in their order, and what it says that they print."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.support.commands import LOOPBACK, formation, started
from tests.support.documents import Block, blocks
from tests.support.programs import ROOT, Program
from tests.support.waiting import HANGS_S

TUTORIAL: Final = "docs/tutorial.md"
# What goes on until Ctrl-C: in terminals of their own.
STAYS: Final = ("formation gate", "formation worker ")
# Before it, the reader ends all that goes on.
LEAVES: Final = "formation network leave"
# They make the environment that this runs in.
INSTALLS: Final = ("python3 -m venv", ". .venv/bin/activate", "pip install")


class Reader:
    """Somebody who does all of it, in one folder."""

    def __init__(self, folder: Path, exits: ExitStack) -> None:
        self.folder = folder
        self.home = folder / "home"
        self._exits = exits

    def follow(self, shown: Block) -> None:
        if shown.language != "console":
            name = re.match(r"# (\S+)\n", shown.text)
            assert name is not None, f"line {shown.line}: the file has no name"
            (self.folder / name[1]).write_text(shown.text)
            return
        for command, expected in typed(shown.text):
            if command.startswith(STAYS):
                self.start(command, expected)
                continue
            if command.startswith(LEAVES):
                self._exits.close()
            if not command.startswith(INSTALLS):
                printed = self.run(command)
                for line in expected:
                    assert pattern(line).search(printed), f"{command}: no {line!r} in:\n{printed}"

    def start(self, command: str, expected: list[str]) -> None:
        words = self.words(command)
        program: Program = self._exits.enter_context(started(self.home, *words, *LOOPBACK))
        for line in expected:
            program.line_with(line.rstrip("…").strip())

    def run(self, command: str) -> str:
        command, _, into = command.partition(" > ")
        words = self.words(command)
        if command.startswith("python "):
            argv, env = [sys.executable, *words], {**os.environ, "FORMATION_HOME": str(self.home)}
            env["PYTHONPATH"] = str(ROOT)
            done = subprocess.run(
                argv, cwd=self.folder, env=env, capture_output=True, timeout=HANGS_S
            )
            code, out, err = done.returncode, done.stdout, done.stderr.decode()
        else:
            said = formation(self.home, *words, cwd=self.folder)
            code, out, err = said.code, said.out, said.err
        assert code == 0, f"{command}\n{err}"
        if into:
            (self.folder / into).write_bytes(out)
        return out.decode() + err

    def words(self, command: str) -> list[str]:
        """Without the program. `second` is a folder where the reader is."""
        found = shlex.split(command)[1:]
        return [str(self.folder / word) if word == "second" else word for word in found]


def typed(text: str) -> list[tuple[str, list[str]]]:
    """Each command, and the lines that it is said to print."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def pattern(line: str) -> re.Pattern[str]:
    """`…` is for what differs from network to network."""
    return re.compile(re.escape(line.strip()).replace("…", ".*"))


def test_each_step_of_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    with ExitStack() as exits:
        reader = Reader(tmp_path, exits)
        for shown in blocks():
            if shown.document == TUTORIAL:
                reader.follow(shown)
    assert not (tmp_path / "second").exists()
