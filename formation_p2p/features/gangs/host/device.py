"""Starting a task's sandbox in a network of its own, with a TUN device that the node relays for.

`network_child.py` is what runs first there. Whether this machine can do it is tried once, when it
begins to work for others: it needs the sandbox, /dev/net/tun, and user namespaces.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Protocol

import trio

from formation_p2p.drivers.bubblewrap import Bubblewrap, Hosts
from formation_p2p.drivers.bytecode import compiled
from formation_p2p.drivers.machine import interpreter_environment
from formation_p2p.features.gangs.core.network import (
    MTU_BYTES,
    NETWORK_LABEL,
    PREFIX_BITS,
    address_of,
    hostname_of,
    hosts_file,
)
from formation_p2p.features.gangs.host import network_child
from formation_p2p.machine.core.bounds import MAX_LABELS

log = logging.getLogger(__name__)

# An interpreter starts in 30 ms; a disk that has to wake up takes seconds.
OPEN_S: Final = 20.0


class DeviceUser(Protocol):
    """What relays for a member (network.py)."""

    @property
    def rank(self) -> int: ...

    def attach(self, device: int) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True)
class MemberDevice:
    """See OwnNetwork (drivers/place.py)."""

    user: DeviceUser

    def hosts(self, home: Path) -> Hosts:
        return hosts_at(home, self.user.rank)

    def around(self, channel: int) -> tuple[str, ...]:
        return around(channel, self.user.rank)

    async def attached(self, channel: socket.socket) -> Callable[[], None]:
        return self.user.attach(await device_from(channel))


def hosts_at(folder: Path, rank: int) -> Hosts:
    """With a file that is made in `folder` where it is not there. Raises OSError."""
    file = folder / "gang-hosts"
    if not file.exists():
        made = Path(f"{file}.{os.getpid()}")
        made.write_bytes(hosts_file())
        made.rename(file)
    return Hosts(hostname_of(rank), file)


def around(channel: int, rank: int) -> tuple[str, ...]:
    """What goes in front of the sandbox; it says over this socket what becomes of the device."""
    program = str(compiled(Path(network_child.__file__)))
    words = (str(channel), address_of(rank), str(PREFIX_BITS), str(MTU_BYTES))
    return (sys.executable, "-I", "-S", program, *words)


async def device_from(channel: socket.socket) -> int:
    """The descriptor of the device. Raises OSError with what failed there."""
    channel.setblocking(False)
    try:
        with trio.fail_after(OPEN_S):
            await trio.lowlevel.wait_readable(channel.fileno())
    except trio.TooSlowError as error:
        raise OSError(f"its network was not there after {OPEN_S:g} s") from error
    return _received(channel)


def _received(channel: socket.socket) -> int:
    said, fds, _, _ = socket.recv_fds(channel, network_child.MAX_WHY_BYTES, 1)
    if not fds:
        why = said.decode(errors="replace") or "it ended without a word"
        raise OSError(f"a network of its own cannot be made here: {why}")
    os.set_inheritable(fds[0], False)  # recv_fds drops MSG_CMSG_CLOEXEC among its flags
    return fds[0]


def network_labels(home: Path, room: int) -> tuple[tuple[str, str], ...]:
    """Said of a machine whose tasks can be in a network of their gang's own, where there is `room`
    for so many labels. In a thread."""
    why = why_none(home)
    if why is None and room < 1:
        why = f"this node has {MAX_LABELS} labels, so that there is none left to say it with"
    if why is not None:
        log.info("tasks here can have no network of their gang: %s", why)
        return ()
    return (NETWORK_LABEL,)


@cache
def why_none(home: Path) -> str | None:
    """Why tasks here can have no network of a gang; None where they can. Takes a moment, once for
    a process: it does not depend on `home`, which is the node's."""
    program = shutil.which("bwrap")
    if program is None:
        return "bwrap is not on PATH; install the package bubblewrap"
    ours, its = socket.socketpair()
    with ours, its, tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        hosts = hosts_at(folder, 0)
        inside = Bubblewrap(program, home).command(folder, network=False, gpus=(), hosts=hosts)
        script = f"import socket; assert socket.gethostbyname('m0') == '{address_of(0)}'"
        argv = (*around(its.fileno(), 0), *inside, sys.executable, "-I", "-S", "-c", script)
        try:
            ended = subprocess.run(
                argv,
                env=interpreter_environment(),
                pass_fds=(its.fileno(),),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=OPEN_S,
                check=False,
            )
            its.close()
            os.close(_received(ours))
        except (OSError, subprocess.TimeoutExpired) as problem:
            return str(problem)
    if ended.returncode:
        return f"a task does not start there: {ended.stderr.decode(errors='replace').strip()}"
    return None
