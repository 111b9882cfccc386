"""Where a process stands in a gang, and how it reaches a service of a member from there.

A member has a folder of its lease, which `FORMATION_GANG` names: the unix socket `connect` leads to
any member's services, and what listens on a unix socket below `services/` is such a service. The
owner of a gang has a folder with the socket `connect` alone.

An address is `formation://m<rank>.<gang id>:<port>`: host and port are what Dask takes addresses
apart into, and each member is a host of its own to it. The service is `dask-<port>`. A loopback
address is this very member.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import random
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GANG: Final = "FORMATION_GANG"
RANK: Final = "FORMATION_RANK"
GANG_ID: Final = "FORMATION_GANG_ID"
CONNECT: Final = "connect"
SERVICES: Final = "services"
# Those of other programs end below, and the kernel has them for itself.
_FIRST_PORT: Final = 40_000
_LAST_PORT: Final = 65_535
# A member has a few listeners: that all of these are taken does not happen.
_DRAWN_PORTS: Final = 100
# A queue of a unix socket that is full refuses at once, where TCP would wait.
_FULL_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Place:
    """`folder` is that of the lease, `host` the name of the member, or `owner.<gang id>`. `loads`
    is what reads messages from there, in the place of Dask's own."""

    folder: Path
    host: str
    loads: Callable[[list[Any], bool], Any] | None = None

    @contextmanager
    def _below(self, *names: str) -> Iterator[str]:
        """A path that is short whatever the folder is called: the kernel takes 107 bytes."""
        fd = os.open(self.folder, os.O_PATH | os.O_DIRECTORY)
        try:
            yield "/".join((f"/proc/self/fd/{fd}", *names))
        finally:
            os.close(fd)

    async def connected(self, *names: str) -> socket.socket:
        """A connection to a unix socket of the folder. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            with self._below(*names) as path:
                while True:
                    try:
                        connection.connect(path)
                    except BlockingIOError:
                        await asyncio.sleep(_FULL_S)
                    else:
                        return connection
        except BaseException:
            connection.close()
            raise

    def listening(self, port: int, backlog: int) -> tuple[socket.socket, int]:
        """A socket that listens as a service, and its port: any where `port` is 0. Raises OSError
        where a living process listens there."""
        drawn = (random.randint(_FIRST_PORT, _LAST_PORT) for _ in range(_DRAWN_PORTS))
        ports = (port,) if port else drawn
        for each in ports:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._bind(listener, each, replace=bool(port))
                listener.listen(backlog)
                listener.setblocking(False)
            except OSError as problem:
                listener.close()
                if port or problem.errno != errno.EADDRINUSE:
                    raise
            else:
                return listener, each
        raise OSError(errno.EADDRINUSE, f"the ports of {self.folder / SERVICES} are taken")

    def forget(self, port: int) -> None:
        """After a listener was closed."""
        (self.folder / SERVICES / service_of(port)).unlink(missing_ok=True)

    def _bind(self, listener: socket.socket, port: int, *, replace: bool) -> None:
        with self._below(SERVICES, service_of(port)) as path:
            try:
                listener.bind(path)
            except OSError as problem:
                if not replace or problem.errno != errno.EADDRINUSE or _answers(path):
                    raise
                # What a process left that was killed.
                Path(path).unlink()
                listener.bind(path)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


# Of the owner's process, by gang id: where it reaches the members of its gangs.
owned: Final[dict[str, Place]] = {}


def own_place() -> Place:
    """Of the member that this process runs in. Raises RuntimeError outside a gang."""
    folder, rank = os.environ.get(GANG), os.environ.get(RANK, "0")
    if not folder:
        raise RuntimeError(
            "formation:// listens only in a task of a gang; have node.dask(...) start the workers"
        )
    return Place(Path(folder), f"m{rank}.{os.environ.get(GANG_ID, 'local')}")


def place_for(host: str) -> Place:
    """From where this process reaches a host. Raises ConnectionError where it cannot."""
    place = owned.get(host.partition(".")[2])
    if place is None and not os.environ.get(GANG):
        raise ConnectionError(f"the cluster of {host} is closed, or that of another process")
    return place or own_place()


def service_of(port: int) -> str:
    return f"dask-{port}"


def rank_of(host: str) -> int:
    """Raises ValueError."""
    name = host.partition(".")[0]
    if not name.startswith("m") or not name[1:].isdecimal():
        raise ValueError(f"{host!r} is not the host of a member, such as m0.<gang id>")
    return int(name[1:])


def is_any(host: str) -> bool:
    """Whether it stands for all addresses of a machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
