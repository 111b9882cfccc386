"""Python programs in processes of their own that share their imports: each is forked from one
interpreter, which has imported what they need, in a twentieth of the time that one takes to start.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import io
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

# What nearly all of them need; the network stack takes most of the time.
_IMPORTED = (
    "formation_p2p.command.main",
    "formation_p2p.command.gate",
    "formation_p2p.command.outcomes",
    "formation_p2p.command.resume",
    "formation_p2p.command.run",
    "formation_p2p.command.serve",
    "formation_p2p.command.submit",
    "formation_p2p.command.tables",
    "formation_p2p.content.exchange",
    "formation_p2p.reach.stack",
    "formation_p2p.public",
    "simulations.forked",
)
CLONE_NEWNET = 0x40000000  # linux/sched.h
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload([*_IMPORTED])


def import_before(*modules: str) -> None:
    """These too are imported for all of them. Call it before the first of them starts."""
    _CONTEXT.set_forkserver_preload([*_IMPORTED, *modules])


class Forked:
    """`python -m formation_p2p` with these arguments, or another module. It has of
    `subprocess.Popen` what those use that start it.

    `files` are the descriptors of its standard input, output and error; `space` is the network
    namespace that it is in, if not in that of the program that starts it.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        files: tuple[int, int, int],
        *,
        module: str = "formation_p2p",
        space: str = "",
    ) -> None:
        self.args = [module, *arguments]
        given = tuple(map(DupFd, files))
        process = _CONTEXT.Process(
            target=_be, args=(self.args, dict(environment), str(folder), given, space)
        )
        process.start()
        assert process.pid is not None
        self._process, self.pid = process, process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.returncode
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ends now
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _be(argv: list[str], environment: dict[str, str], folder: str, files: Any, space: str) -> None:
    """In the new process."""
    if space:
        _enter(space)
    for number, file in enumerate(files):
        descriptor = file.detach()
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, folder)  # as for `python -m`
    at_once = "PYTHONUNBUFFERED" in environment
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = _written(1, sys.stdout.errors, at_once)
    sys.stderr = _written(2, sys.stderr.errors, True)
    sys.argv = argv
    try:
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()


def _enter(space: str) -> None:
    """As `ip netns exec` does, but for /sys, which shows the network that it was started in."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/var/run/netns", space).open() as opened:
        if libc.setns(opened.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"there is no network namespace {space}")


def _written(number: int, errors: str | None, at_once: bool) -> io.TextIOWrapper:
    """As the interpreter makes those of its standard streams at its start."""
    file = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(file), errors=errors, write_through=at_once)
