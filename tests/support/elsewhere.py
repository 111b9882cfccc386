"""A program in a process that lacks what Linux alone has.

python -m tests.support.elsewhere PROGRAM [ARGUMENT ...]

It is as close as Linux comes to another POSIX system: `sys.platform` is another one for all that
is imported from then on, and the names are gone that `os`, `socket`, `fcntl`, `signal`, `mmap` and
`time` have on Linux alone. Packages of others are imported before. Nothing here has run on a Mac.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import sysconfig
import time
import urllib.request
from types import ModuleType
from typing import Final

import cloudpickle
import prometheus_client
import psutil
import rich.console
import trio

_LOADED: Final = (
    *(asyncio, multiprocessing, urllib.request),
    *(cloudpickle, prometheus_client, psutil, rich.console, trio),
)
_LINUX: Final[dict[ModuleType, tuple[str, ...]]] = {
    os: (
        *("memfd_create", "MFD_CLOEXEC", "MFD_ALLOW_SEALING", "O_PATH", "pidfd_open", "pipe2"),
        *("sched_getaffinity", "sched_setaffinity", "getxattr", "setxattr", "copy_file_range"),
        *("posix_fallocate", "RWF_NOWAIT", "posix_fadvise", "splice", "eventfd"),
    ),
    socket: (
        *("SO_PEERCRED", "SOCK_NONBLOCK", "SOCK_CLOEXEC", "MSG_CMSG_CLOEXEC", "AF_NETLINK"),
        *("TCP_KEEPIDLE", "TCP_USER_TIMEOUT", "NETLINK_ROUTE"),
    ),
    fcntl: ("F_ADD_SEALS", "F_GET_SEALS", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE"),
    signal: ("pidfd_send_signal",),
    mmap: ("MADV_HUGEPAGE",),
    time: ("CLOCK_BOOTTIME",),
}


def leave_linux() -> None:
    sysconfig.get_config_vars()  # it keeps what it has read of this system
    sys.platform = "darwin"
    for module, names in _LINUX.items():
        for name in names:
            if hasattr(module, name):  # some are newer than this Python
                delattr(module, name)


if __name__ == "__main__":
    leave_linux()
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
