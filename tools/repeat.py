"""Whether tests pass every time: runs them often, on a machine that is as busy as one likes.

python -m tools.repeat --runs 20 --busy 4              as `make test` runs them, all
python -m tools.repeat --runs 50 tests/host/test_tcp.py -n 2    what is named, as pytest takes it
python -m tools.repeat --runs 5 --changed --within 180    what the newest commits add or edit

`--busy` is how many processes keep the cores busy meanwhile. They end with this program. A run that
takes longer than `--minutes` is ended, and red. With `--within` all runs together end after so
many seconds; the last one then counts as far as it came. `--changed` takes the tests whose lines
differ from the commit that the variable BASE names, or from the last one that was a day old when
the newest was made. The exit code is 1 where a run was red.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
PLUGIN: Final = ("-p", "tools.repeat")
# Where this module, as a plugin of pytest, writes the failures.
REPORT: Final = "REPEAT_REPORT"
BUSY: Final = (sys.executable, "-c", "while True: pass")
# Of the output of one failure, and of a run that failed without one.
MAX_CHARS: Final = 30_000
# For pytest to say how far it came, once it is interrupted.
LAST_WORDS_S: Final = 20.0
DAY_S: Final = 86_400
PDEATHSIG: Final = 1  # <linux/prctl.h>
THE_RUN: Final = "the run itself"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _write(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _write(report)


def _write(report: pytest.TestReport | pytest.CollectReport) -> None:
    # Workers of xdist pass theirs on to the process that started them.
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ and REPORT in os.environ:
        shown = [f"--- {title} ---\n{text}" for title, text in report.sections]
        failure = {"test": report.nodeid, "output": "\n".join((report.longreprtext, *shown))}
        with Path(os.environ[REPORT]).open("a") as file:
            print(json.dumps(failure), file=file)


@dataclass
class Runs:
    green: int = 0
    red: int = 0
    # By test: the number of each run in which it failed, and its output there.
    failures: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--busy", type=int, default=0, help="so many processes use the cores")
    parser.add_argument("--minutes", type=float, default=30.0, help="for each run")
    parser.add_argument("--within", type=float, default=float("inf"), help="seconds, for all runs")
    parser.add_argument("--changed", action="store_true", help="tests of the newest commits")
    options, named = parser.parse_known_args(arguments)
    if options.changed:
        if not (tests := changed()):
            print("no test differs")
            return 0
        print(f"{len(tests)} tests differ")
        named += tests
    command = (
        [sys.executable, "-m", "pytest", *PLUGIN, *named]
        if named
        # Behind processes that never wait, what is nice would hardly run.
        else [
            "make",
            "--keep-going",
            "test-pure",
            "test-whole",
            "NICE=",
            f"ARGS={' '.join(PLUGIN)}",
        ]
    )
    runs, ends_s = Runs(), time.monotonic() + options.within
    with ExitStack() as busy, tempfile.TemporaryDirectory() as folder:
        for _ in range(options.busy):
            busy.enter_context(_tied(BUSY))
        for number in range(1, options.runs + 1):
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                print(f"the time is up after {number - 1} of {options.runs} runs")
                break
            _run(number, command, min(left_s, options.minutes * 60), left_s, Path(folder), runs)
    _tell(runs)
    return 1 if runs.red else 0


def _run(
    number: int, command: list[str], most_s: float, left_s: float, folder: Path, runs: Runs
) -> None:
    report, log = folder / f"{number}.json", folder / f"{number}.log"
    report.touch()
    began_s = time.monotonic()
    with log.open("wb") as output, _tied(command, output=output.fileno(), report=report) as run:
        with suppress(subprocess.TimeoutExpired):
            run.wait(most_s)
        in_time = run.poll() is not None
        # Before what comes of ending it.
        failures = [json.loads(line) for line in report.read_text().split("\n")[:-1]]
        if not in_time:
            os.killpg(run.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                run.wait(LAST_WORDS_S)
    for each in failures:
        runs.failures[each["test"]].append((number, each["output"]))
    cut_short = not in_time and most_s == left_s
    if run.returncode and not failures and not cut_short:
        late = "" if in_time else f"it still ran after {most_s:.0f} s\n"
        runs.failures[THE_RUN].append((number, late + log.read_text(errors="replace")))
    is_red = bool(failures) or (run.returncode != 0 and not cut_short)
    runs.red += is_red
    runs.green += not is_red
    how = "red" if is_red else "green as far as it came" if cut_short else "green"
    took_s = time.monotonic() - began_s
    print(f"run {number}: {how}, {len(failures)} failures, took {took_s:.0f} s", flush=True)


@contextmanager
def _tied(
    command: tuple[str, ...] | list[str], output: int = 2, report: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own that ends with the block, and with this one, however it
    ends."""
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def tie() -> None:
        prctl(PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    env = {**os.environ, REPORT: str(report)}
    env.pop("PYTEST_XDIST_WORKER", None)  # where a test runs this
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        preexec_fn=tie,
        process_group=0,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def changed(root: Path = ROOT) -> list[str]:
    """As pytest names them. A test of which only a helper has changed is not among them."""
    base = os.environ.get("BASE")
    if not base:
        newest_s = int(_git(root, "log", "-1", "--format=%ct"))
        older = _git(root, "rev-list", "-1", f"--before={newest_s - DAY_S}", "HEAD").split()
        base = older[0] if older else _git(root, "rev-list", "HEAD").split()[-1]
    diff = _git(
        root, "diff", "--unified=0", "--diff-filter=d", base, "HEAD", "--", "tests/**/test_*.py"
    )
    lines: dict[str, set[int]] = {}
    for line in diff.splitlines():
        if line.startswith("+++ b/"):
            of_file = lines.setdefault(line.removeprefix("+++ b/"), set())
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            of_file.update(range(first, first + count))
    return [
        f"{path}::{test.name}"
        for path, differ in sorted(lines.items())
        if not path.startswith("tests/interop/")  # they need what `make interop` fetches
        for test in ast.parse((root / path).read_text()).body
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef)
        and test.name.startswith("test_")
        and not differ.isdisjoint(range(test.lineno, (test.end_lineno or test.lineno) + 1))
    ]


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(("git", *words), cwd=root, capture_output=True, text=True, check=True)
    return done.stdout


def _tell(runs: Runs) -> None:
    for test, failures in sorted(runs.failures.items()):
        numbers = ", ".join(str(number) for number, _ in failures)
        print(f"\n=== {test}: red in {len(failures)} runs ({numbers})")
        for number, output in failures:
            print(f"--- run {number}\n{output[-MAX_CHARS:]}")
    print(f"\n{'runs':>6}{'green':>8}{'red':>6}")
    print(f"{runs.green + runs.red:>6}{runs.green:>8}{runs.red:>6}")


if __name__ == "__main__":
    sys.exit(main())
