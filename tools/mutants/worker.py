"""Runs tests in a copy of the working tree, one job after the other, each in a process of its own.

The main program sends jobs as lines of JSON, and reads one line for each. This file imports nothing
of the project: what a job imports comes from its copy.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import coverage
import psutil
import pytest

# What most tests import, once for all jobs.
SHARED: Final = (
    "cbor2",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "cryptography.hazmat.primitives.ciphers.aead",
    "hypothesis.strategies",
    "pytest_asyncio.plugin",
    "trio.testing",
)
# A mutant that collects without end fails before the machine has no memory left; one that writes
# without end, before the disk is full. No test needs as much.
MEMORY_BYTES: Final = 4 << 30
FILE_BYTES: Final = 1 << 30
PR_SET_CHILD_SUBREAPER: Final = 36
# The exit status of a job that could not begin; pytest has 0 to 5.
BROKEN: Final = 70


class Chosen:
    """Runs the tests that a job names, in that order, and says which one failed."""

    def __init__(self, tests: list[str], failed: Path) -> None:
        self._rank = {test: rank for rank, test in enumerate(tests)}
        self._failed = failed

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._rank]
        items.sort(key=lambda item: self._rank[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.write_text(report.nodeid)


class Recorder:
    """Records which lines each test executes, how long it takes and whether it passes."""

    def __init__(self, data: Path, package: str) -> None:
        self._data = data
        self._tests: dict[str, tuple[float, bool]] = {}
        self._coverage = coverage.Coverage(
            str(data), branch=False, source=[package], config_file=False
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        # What runs at import runs for each test alike.
        self._coverage.start()
        try:
            return (yield)
        finally:
            self._coverage.stop()
            self._coverage.save()
            times = self._data.with_name(f"{self._data.name}.json")
            times.write_text(json.dumps(self._tests))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._coverage.switch_context(nodeid)
        self._tracer = sys.gettrace()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """With coverage where tests/conftest.py leaves it out, too."""
        sys.settrace(self._tracer)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        took_s, passed = self._tests.get(report.nodeid, (0.0, True))
        self._tests[report.nodeid] = (took_s + report.duration, passed and report.passed)


def _child(tree: Path, scratch: Path, job: dict[str, Any]) -> int:
    """In the process of one job."""
    os.setsid()
    with (scratch / "output").open("wb") as output:
        for number in (1, 2):
            os.dup2(output.fileno(), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for limit, most in (
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    home = scratch / "h"
    (home / "t").mkdir(parents=True, exist_ok=True)
    os.environ.update(PYTHONPATH=str(tree), HOME=str(home), TMPDIR=str(home / "t"))
    plugin = (
        Recorder(Path(job["record"]), job["package"])
        if job["record"]
        else Chosen(job["tests"], scratch / "failed")
    )
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov", "--tb=short"]
    options += [
        "-o",
        "addopts=",
        f"--rootdir={tree}",
        f"--basetemp={home / 'b'}",
        *([] if job["record"] else ["-x"]),
    ]
    return int(pytest.main([*options, *job["files"]], plugins=[plugin]))


def _run(tree: Path, scratch: Path, job: dict[str, Any]) -> dict[str, str]:
    (scratch / "failed").unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        code = BROKEN
        try:
            code = _child(tree, scratch, job)
        finally:
            if code == BROKEN:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(code)
    until_s = time.monotonic() + job["limit_s"]
    ended, status = 0, 0
    while not ended and time.monotonic() < until_s:
        time.sleep(0.01)
        ended, status = os.waitpid(pid, os.WNOHANG)
    _end_all()
    ended_with = os.waitstatus_to_exitcode(status) if ended else None
    failed = scratch / "failed"
    return {
        "outcome": {0: "passed", 5: "no tests", BROKEN: "broken", None: "took too long"}.get(
            ended_with, "failed" if ended_with in (1, 2) else f"ended with {ended_with}"
        ),
        "by": failed.read_text() if failed.exists() else "",
        "output": (scratch / "output").read_text(errors="replace")[-3000:],
    }


def _end_all() -> None:
    """Ends all that the job has left: its process, and those that this one has inherited."""
    this = psutil.Process()
    while left := this.children(recursive=True):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def main() -> None:
    tree, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    sys.path.pop(0)
    for module in SHARED:
        importlib.import_module(module)
    # SIGINT is for the main program: it ends this one by closing its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    answers = os.fdopen(os.dup(1), "w")
    changes = 0
    for line in sys.stdin:
        job = json.loads(line)
        path = tree / job["path"] if job["path"] else None
        original = path.read_bytes() if path else b""
        if path:
            path.write_bytes(job["source"].encode())
            # Compiled files are compared by their source's time in seconds, and its length.
            changes += 1
            os.utime(path, (changes, changes))
        try:
            answer = _run(tree, scratch, job)
        finally:
            if path:
                path.write_bytes(original)
                changes += 1
                os.utime(path, (changes, changes))
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
