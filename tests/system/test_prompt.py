"""A node at Python's prompt: functions that are typed there run on workers."""

import asyncio
import os
import pty
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from subprocess import Popen

from tests.support.network import small_network
from tests.support.programs import ROOT
from tests.support.waiting import HANGS_S


class Prompt:
    """Python on a terminal."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._shown = ""

    def until(self, text: str) -> str:
        """What is shown up to a text, which must come."""
        due_s = time.monotonic() + HANGS_S
        while text not in self._shown:
            ready, _, _ = select([self._terminal], [], [], max(0.0, due_s - time.monotonic()))
            assert ready, f"{text!r} is not shown, but: {self._shown}"
            self._shown += os.read(self._terminal, 4096).decode()
        shown, _, self._shown = self._shown.partition(text)
        return shown

    def run(self, *lines: str) -> str:
        """What the lines show beside themselves."""
        os.write(self._terminal, ("\n".join(lines) + "\nprint('en' 'd')\n").encode())
        shown = self.until("end\r\n")
        self.until(">>> ")
        return shown


@contextmanager
def prompt() -> Iterator[Prompt]:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb", "PYTHON_BASIC_REPL": "1"}
    with Popen(
        [sys.executable, "-q", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as program:
        os.close(theirs)
        try:
            started = Prompt(ours)
            started.until(">>> ")
            yield started
            os.write(ours, b"exit()\n")
            assert program.wait(HANGS_S) == 0
        finally:
            program.kill()
            os.close(ours)


def session(invite: str, home: Path) -> None:
    with prompt() as python:
        python.run(
            "from formation_p2p import SyncNode",
            f"node = SyncNode.join({invite!r}, home={str(home)!r}, listen=())",
            "small = dict(needs='cpu=0.5,memory=64MiB')",
        )
        lines = "def tell(n):", "    print('hello', n)", "    return factor * n", "", "factor = 2"
        shown = python.run(*lines, "node.map(tell, [3, 4], **small)")
        assert " | hello 3\r\n" in shown
        assert "[6, 8]\r\n" in shown
        assert "[300]\r\n" in python.run("factor = 100", "node.map(tell, [3], **small)")
        fails = python.run("node.map(lambda n: 1 // n, [0], attempts=1, **small)")
        assert "ZeroDivisionError: integer division or modulo by zero" in fails
        python.run("node.close()")


async def test_functions_that_are_typed_run_on_a_worker(tmp_path: Path) -> None:
    async with small_network(tmp_path) as network:
        await asyncio.to_thread(session, network.invite, tmp_path / "home")
