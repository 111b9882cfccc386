"""A test's story in a network of its own, with public addresses that lead nowhere else.

A process, and what it starts, can leave its network (unshare(2)); with the last of them that
network ends. Not a thread: those that it starts would stay there, and trio gives them to later
tests. Who is not root is root among the users of that process alone.
"""

import ctypes
import os
import subprocess
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.evidence import told
from tests.support.stacks import run
from tests.support.waiting import HANGS_S

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
IP_S = 60.0
_TOLD, _FORBIDDEN, _FAILED = 0, 1, 2


def in_own_network(story: Callable[[], Awaitable[None]], *addresses: str) -> None:
    """All of the addresses are on the loopback interface. Skips the test where that is forbidden;
    `make nat` says so as well."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _tell(story, addresses, writing)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as said:
        what = said.read()
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended == _FORBIDDEN:
        pytest.skip(f"no network of its own: {what}")
    assert ended == _TOLD, what


def _tell(
    story: Callable[[], Awaitable[None]], addresses: tuple[str, ...], writing: int
) -> NoReturn:
    code, user = _FAILED, os.geteuid()
    spaces = CLONE_NEWNET | (CLONE_NEWUSER if user else 0)
    try:
        if ctypes.CDLL(None, use_errno=True).unshare(spaces) != 0:
            code = _FORBIDDEN
            os.write(writing, os.strerror(ctypes.get_errno()).encode())
        else:
            if user:
                Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            _ip("link", "set", "lo", "up")
            for address in addresses:
                _ip("address", "add", address, "dev", "lo")
            _ip("route", "add", "default", "dev", "lo")
            run(story, within_s=HANGS_S)
            code = _TOLD
    except BaseException:  # noqa: BLE001
        # Whatever a test fails with, its parent shows.
        said = "\n".join((*told(), traceback.format_exc()[-32_768:]))
        os.write(writing, said.encode(errors="replace"))
    finally:
        os._exit(code)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=IP_S)
