"""Programs run as a person runs them, each under a deadline."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support import evidence
from tests.support.forked import Forked
from tests.support.waiting import HANGS_S

ROOT = Path(__file__).parents[2]
# Python imports `sitecustomize` from there at its start.
START = str(Path(__file__).parent / "start")
# A program that imports the network takes 2 s on an idle machine; tests run on busy ones.


class Program:
    """A program that runs. Its output, errors too, is read all the time and kept."""

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], *, forked: bool = False
    ) -> None:
        """Of one that is `forked`, `argv` are the arguments of `formation`, or `-m`, a module and
        its arguments; see Forked."""
        self.argv = argv
        self.lines: list[str] = []
        self._unread: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        reads, writes = os.pipe()
        self._output = os.fdopen(reads)
        env = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        if argv[0] == sys.executable:
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (START, env.get("PYTHONPATH"))))
        with os.fdopen(writes, "wb"), Path(os.devnull).open() as nothing:
            files = (nothing.fileno(), writes, writes)
            self.process: subprocess.Popen[bytes] | Forked = (
                _forked(argv, env, files)
                if forked
                else subprocess.Popen(
                    argv, cwd=ROOT, env=env, stdin=nothing, stdout=writes, stderr=writes
                )
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        evidence.programs.add(self)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def command(self) -> str:
        return " ".join(self.argv)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def line_with(self, text: str, within_s: float = HANGS_S) -> str:
        """The next line that holds a text, without the spaces around it."""
        until = time.monotonic() + within_s
        while True:
            try:
                line = self._unread.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                evidence.gather(f"{self.command} did not say {text!r} within {within_s:g} s")
                raise AssertionError(
                    f"{self.argv} did not say {text!r} within {within_s:.0f} s, but:\n{self.output}"
                ) from None
            if line is None:
                raise AssertionError(f"{self.argv} ended without {text!r}:\n{self.output}")
            if text in line:
                return line.strip()

    def ended(self, within_s: float = HANGS_S) -> int:
        """Its exit code, once it has ended by itself."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            evidence.gather(f"{self.command} still runs after {within_s:g} s")
            raise AssertionError(
                f"{self.argv} still runs after {within_s:.0f} s:\n{self.output}"
            ) from None
        self._reader.join(within_s)
        return code

    def interrupt(self) -> int:
        """Ctrl-C, and the exit code that comes of it."""
        self.process.send_signal(signal.SIGINT)
        return self.ended()

    def _read(self) -> None:
        for line in self._output:
            self.lines.append(line)
            self._unread.put(line)
        self._unread.put(None)


def _forked(argv: Sequence[str], env: Mapping[str, str], files: tuple[int, int, int]) -> Forked:
    if argv[0] == "-m":
        return Forked(argv[2:], env, ROOT, files, module=argv[1])
    return Forked(argv, env, ROOT, files)


@contextmanager
def running(*argv: str, forked: bool = False, **environment: str) -> Iterator[Program]:
    """A program that is ended, by its id, with the block. `forked` is as for Program."""
    program = Program(argv, environment, forked=forked)
    try:
        yield program
    finally:
        if program.process.poll() is None:
            program.process.terminate()
            try:
                program.process.wait(60)
            except subprocess.TimeoutExpired:
                program.process.kill()
                program.process.wait()


def python(*arguments: str, **environment: str) -> Program:
    """A Python program, run to its end."""
    with running(sys.executable, *arguments, forked=False, **environment) as program:
        program.ended()
        return program
