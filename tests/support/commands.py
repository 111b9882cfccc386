"""The `formation` command as people run it, each time in a process of its own."""

import os
import subprocess
import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.support.evidence import gather
from tests.support.forked import Forked
from tests.support.programs import ROOT, Program, running
from tests.support.waiting import HANGS_S

LOOPBACK = ("--listen", "/ip4/127.0.0.1/tcp/0")


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: bytes
    err: str


def formation(
    home: Path, *arguments: str | Path, stdin: bytes = b"", cwd: Path | None = None
) -> Done:
    """One command, to its end."""
    env = {**os.environ, "FORMATION_HOME": str(home), "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        reads, writes = os.pipe()
        os.write(writes, stdin)  # it is short
        os.close(writes)
        with os.fdopen(reads):
            command = Forked(
                [*map(str, arguments)], env, cwd or Path.cwd(), (reads, out.fileno(), err.fileno())
            )
        try:
            code = command.wait(HANGS_S)
        except subprocess.TimeoutExpired:
            gather(f"{command.args} still runs after {HANGS_S:g} s")
            for file in (out, err):
                file.seek(0)
            said = err.read().decode(errors="replace")
            raise AssertionError(f"it still runs: {out.read()!r}, and told:\n{said}") from None
        finally:
            command.kill()
        out.seek(0)
        err.seek(0)
        return Done(code, out.read(), err.read().decode())


def started(home: Path, *arguments: str) -> AbstractContextManager[Program]:
    """One that goes on until it is ended."""
    return running(*arguments, forked=True, FORMATION_HOME=str(home))
