"""Network namespaces that carry the id of the process that made them, so that none is left behind.

A run that was killed leaves its namespaces, and what it started in them, on the machine. The next
run removes those whose process is gone.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

# Whatever `ip` and `nft` do, they do at once; a machine under load may take a while.
COMMAND_S: Final = 20.0
PACKAGES: Final = {"ip": "iproute2", "nft": "nftables"}
TUN: Final = Path("/dev/net/tun")
_OURS: Final = re.compile(r"^fpn(\d+)-")


class Forbidden(Exception):
    """This machine does not allow such networks; the message says why in one line."""


def why_not() -> str | None:
    """What this machine lacks; None where it seems to have all. What it forbids is seen later."""
    if os.geteuid() != 0:
        return "namespaces with routers need root; run it as root"
    missing = lacking(*PACKAGES)
    if missing is not None:
        return missing
    if not TUN.exists():
        return f"there is no {TUN} here, which links with latency need; load the module tun"
    return None


def lacking(*programs: str) -> str | None:
    """The first of the `PACKAGES` that is to be installed, in words."""
    for program in programs:
        if shutil.which(program) is None:
            return f"there is no `{program}` here; install {PACKAGES[program]}"
    return None


def name_of(space: str) -> str:
    """A name of the machine's own, for one namespace of this process."""
    return f"fpn{os.getpid()}-{space}"


def run(*argv: str, told: str | None = None) -> str:
    """What a command printed. Raises Forbidden with what it said."""
    try:
        done = subprocess.run(
            argv, input=told, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Forbidden(f"`{' '.join(argv)}` takes longer than {COMMAND_S:.0f} s") from None
    if done.returncode != 0:
        raise Forbidden(f"`{' '.join(argv)}` failed: {done.stderr.strip()}")
    return done.stdout


def ip(space: str, *commands: str) -> None:
    """Each a line for `ip`, in one namespace. Raises Forbidden."""
    run("ip", "-n", space, "-batch", "-", told="\n".join(commands) + "\n")


def inside(space: str, argv: Sequence[str]) -> list[str]:
    """The command that runs a program there, as the same process."""
    return ["ip", "netns", "exec", space, *argv]


def delete(space: str) -> None:
    """With all that still runs there. One that is gone already is none the worse."""
    with suppress(Forbidden):
        for pid in run("ip", "netns", "pids", space).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    with suppress(Forbidden):
        run("ip", "netns", "delete", space)


def delete_leftovers() -> None:
    """What runs that were killed have left. Raises Forbidden."""
    for line in run("ip", "netns", "list").splitlines():
        name = line.split()[0]
        if (found := _OURS.match(name)) is not None and not is_alive(int(found[1])):
            delete(name)


def is_alive(pid: int) -> bool:
    """One that waits for its parent to see its end is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
