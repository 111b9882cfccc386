"""How far a map has come: lines where there is no terminal, a bar on one, or the caller's own."""

import os
import pty
import re
import select
import subprocess
import sys
import threading

import pytest

from formation_p2p.api.output import reporting


def test_ones_own_function_is_told_the_numbers() -> None:
    said: list[tuple[int, int, int | None]] = []
    with reporting(lambda *numbers: said.append(numbers), 3) as report:
        report(1, 0)
        report(2, 1)
    with reporting(lambda *numbers: said.append(numbers), None):
        pass
    assert said == [(0, 0, 3), (1, 0, 3), (2, 1, 3), (0, 0, None)]


def test_nothing_is_told_twice_or_after_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[tuple[int, int, int | None]] = []
    with reporting(lambda *numbers: said.append(numbers), 2) as report:
        report(0, 0)
        report(1, 0)
        report(1, 0)
    report(1, 1)
    assert said == [(0, 0, 2), (1, 0, 2)]
    with reporting(True, 2, every_s=0.0) as report:
        report(1, 0)
    report(1, 1)
    assert capsys.readouterr().err == "formation: 1 of 2 done, 0 failed, 0 s\n"


def test_lines_come_now_and_then_and_in_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting(True, 500) as report:
        report(1, 0)
        report(499, 1)
    assert capsys.readouterr().err == "formation: 499 of 500 done, 1 failed, 0 s\n"
    with reporting(True, None, every_s=0.0) as report:
        report(1, 0)
        report(2, 0)
    assert capsys.readouterr().err == (
        "formation: 1 done, 0 failed, 0 s\nformation: 2 done, 0 failed, 0 s\n"
    )
    with reporting(True, 0):
        pass
    assert "0 of 0 done, 0 failed" in capsys.readouterr().err
    with reporting(False, 1) as report:
        report(1, 0)
    assert capsys.readouterr() == ("", "")


PROGRAM = """
import sys, time
from formation_p2p.api.output import reporting
with reporting(True, 3) as report:
    print("not on the terminal")
    report(1, 0)
    with reporting(True, 2) as second:  # the terminal has a bar
        second(2, 0)
    report(2, 1)
"""


def test_a_terminal_has_a_bar_that_says_how_many_failed() -> None:
    ours, theirs = pty.openpty()
    shown = bytearray()

    def read() -> None:
        while select.select([ours], [], [], 30)[0]:
            try:
                shown.extend(os.read(ours, 4096))
            except OSError:  # its other end is closed
                return

    reader = threading.Thread(target=read)
    reader.start()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
        timeout=60,
        check=True,
    )
    os.close(theirs)
    reader.join()
    os.close(ours)
    assert done.stdout == b"not on the terminal\n"
    text = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", bytes(shown)).decode()
    assert "0 failed" in text
    assert re.search(r"3/3 \S+ 1 failed", text)
    assert "formation: 2 of 2 done, 0 failed" in text
