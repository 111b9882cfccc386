"""What is around an execution that is part of something larger, such as a gang or a service."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import trio

from formation_p2p.drivers.bubblewrap import Hosts
from formation_p2p.drivers.ports import PortUser


class OwnNetwork(Protocol):
    """A network of an execution's own, which the node relays for."""

    def hosts(self, home: Path) -> Hosts:
        """What its sandbox is called there, and a file with the names of all, which is made in
        `home` where it is not there. Raises OSError."""
        ...

    def around(self, channel: int) -> tuple[str, ...]:
        """What goes in front of its sandbox, and says over this socket what becomes of the
        network."""
        ...

    async def attached(self, channel: socket.socket) -> Callable[[], None]:
        """Relay for what is told over the other end of that socket, until what this returns is
        called. Raises OSError with what failed there."""
        ...


class Place(Protocol):
    """`variables` are for the environment of what runs there, `writable` the folders that a
    sandbox is to show, `network` is one of its own, `ports` is given those that it has in such."""

    @property
    def variables(self) -> Mapping[str, str]: ...
    @property
    def writable(self) -> tuple[Path, ...]: ...
    @property
    def network(self) -> OwnNetwork | None: ...
    @property
    def ports(self) -> PortUser | None: ...


class Resident(Protocol):
    """A program that is no task: it runs until it is asked to end, by `ending`, and then has
    `grace_s`. `running` is called when it has been started; `service` says whose secrets it has."""

    @property
    def service(self) -> str: ...
    @property
    def grace_s(self) -> float: ...
    @property
    def running(self) -> Callable[[], None]: ...
    @property
    def ending(self) -> trio.Event: ...
