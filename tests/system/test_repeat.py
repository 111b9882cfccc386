"""The program that runs tests often, over small suites of its own."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.programs import Program, running
from tests.support.waiting import wait_until
from tools.repeat import BUSY, changed

SUITE = """
import time
from pathlib import Path

def test_each_second_time():
    counter = Path(__file__).with_name("counter")
    count = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(count + 1))
    print("the count is", count)
    assert count % 2 == 0

def test_always():
    pass
"""
HANGS = "import time\n\ndef test_hangs():\n    time.sleep(300)\n"


def repeated(folder: Path, suite: str, *options: str) -> Program:
    (folder / "pytest.ini").touch()
    (folder / "test_suite.py").write_text(suite)
    argv = (sys.executable, "-m", "tools.repeat", *options, "-p", "no:cacheprovider", str(folder))
    with running(*argv, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1") as program:
        program.ended()
        return program


def test_failures_are_told_by_test_with_their_output(tmp_path: Path) -> None:
    program = repeated(tmp_path, SUITE, "--runs", "2", "--busy", "1")
    assert program.process.returncode == 1
    lines = program.output.splitlines()
    assert "=== test_suite.py::test_each_second_time: red in 1 runs (2)" in lines
    assert "the count is 1" in lines
    assert "test_always" not in program.output
    assert [line.split() for line in lines[-2:]] == [["runs", "green", "red"], ["2", "1", "1"]]


def test_a_run_that_hangs_is_ended_and_red(tmp_path: Path) -> None:
    program = repeated(tmp_path, HANGS, "--runs", "1", "--minutes", "0.05")
    assert program.process.returncode == 1
    assert "it still ran after 3 s" in program.output


def test_all_runs_end_within_their_time_and_the_last_counts_as_far_as_it_came(
    tmp_path: Path,
) -> None:
    program = repeated(tmp_path, HANGS, "--runs", "3", "--within", "3")
    assert program.process.returncode == 0
    assert "run 1: green as far as it came" in program.output
    assert "the time is up after 1 of 3 runs" in program.output


def test_what_keeps_the_cores_busy_ends_with_the_program_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(HANGS)
    argv = (sys.executable, "-m", "tools.repeat", "--busy", "1", str(tmp_path))
    with running(*argv) as program:
        itself = psutil.Process(program.pid)

        def children() -> list[psutil.Process]:
            found = []
            for each in itself.children():
                with suppress(psutil.Error):  # it may have ended meanwhile
                    found += [each] if each.cmdline() == [*BUSY] else []
            return found

        wait_until(children)
        busy = children()
        program.process.kill()
        wait_until(lambda: not any(each.is_running() for each in busy))


def test_a_suite_that_cannot_be_collected_is_red(tmp_path: Path) -> None:
    program = repeated(tmp_path, "import nothing_of_this_name\n", "--runs", "1")
    assert program.process.returncode == 1
    assert "=== test_suite.py: red in 1 runs (1)" in program.output


def test_of_changed_files_the_tests_that_differ_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        subprocess.run(("git", *author, *words), cwd=tmp_path, check=True, capture_output=True)

    def tests(*bodies: str) -> None:
        names = ("first", "second", "third")
        functions = (
            f"def test_{name}():\n    {body}\n"
            for name, body in zip(names[: len(bodies)], bodies, strict=True)
        )
        (folder / "test_some.py").write_text("\n\n".join(functions))
        git("add", ".")
        git("commit", "-m", "some")

    git("init")
    (folder := tmp_path / "tests" / "unit").mkdir(parents=True)
    tests("a = 1", "b = 1")
    tests("a = 1", "b = 2", "c = 1")
    assert changed(tmp_path) == [f"tests/unit/test_some.py::test_{n}" for n in ("second", "third")]
    monkeypatch.setenv("BASE", "HEAD")
    assert changed(tmp_path) == []
