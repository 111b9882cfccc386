"""Where a replica of a service listens, and what its program finds in its environment.

A program listens on the unix socket `FORMATION_SOCKET` or on port `PORT` of 127.0.0.1. In a sandbox
that is the loopback of its own network, where any number of programs has the same port; else it is
one of the machine's that was free.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import trio

from formation_p2p.drivers.ports import TaskPorts
from formation_p2p.features.services.core.messages import ServiceError
from formation_p2p.features.services.core.signed_spec import SignedSpec
from formation_p2p.features.services.core.spec import ServiceSpec
from formation_p2p.features.services.host.router import Router, joined
from formation_p2p.machine.folders import remove_folder
from formation_p2p.machine.unix_socket import connected_to, reachable
from formation_p2p.net.transport.tcp import next_client

SOCKET: Final = "socket"
USES: Final = "uses"
# unix(7): what the name of a socket may have, less its end.
_MAX_SOCKET_BYTES: Final = 107
# Ports below are the system's: a program in a sandbox may not have them, even in its own network.
_FIRST_FREE_PORT: Final = 1024
_OTHER_PORT: Final = 8080
# Its end, after it was asked to end: what a database takes to write what it has in memory.
END_GRACE_S: Final = 10.0
# To reach a port of this machine.
_REACH_S: Final = 1.0


@dataclass(eq=False)
class ReplicaPlace:
    """Of one replica. Drivers use it as the place of what they run, and as what is asked to end."""

    folder: Path
    variables: Mapping[str, str]
    port: int
    own_network: bool
    volume: Path | None = None
    ports: TaskPorts = field(default_factory=TaskPorts)
    running: Callable[[], None] = lambda: None
    ending: trio.Event = field(default_factory=trio.Event)

    network: None = None
    grace_s: float = END_GRACE_S

    @classmethod
    def made(
        cls, root: Path, spec: ServiceSpec, slot: int, volume: Path | None, *, own_network: bool
    ) -> Self:
        """Its folder is below `root`, unless the path of a socket there would be too long. Raises
        OSError."""
        folder = Path(tempfile.mkdtemp(prefix="s-", dir=root))
        if len(os.fsencode(folder / SOCKET)) > _MAX_SOCKET_BYTES:
            folder.rmdir()
            folder = Path(tempfile.mkdtemp(prefix="formation-s-"))
        if volume is not None:
            volume.mkdir(mode=0o700, parents=True, exist_ok=True)
        port = spec.port if spec.port >= _FIRST_FREE_PORT else _OTHER_PORT
        if not own_network:
            port = _free_port()
        variables = {
            "FORMATION_SERVICE": spec.name,
            "FORMATION_SLOT": str(slot),
            "FORMATION_VERSION": str(spec.version),
            "FORMATION_SOCKET": str(folder / SOCKET),
            "FORMATION_USES": str(folder / USES),
            "HOST": "127.0.0.1",
            "PORT": str(port),
            **({} if volume is None else {"FORMATION_VOLUME": str(volume)}),
        }
        return cls(folder, variables, port, own_network, volume)

    @property
    def service(self) -> str:
        return self.variables["FORMATION_SERVICE"]

    @property
    def writable(self) -> tuple[Path, ...]:
        """What a sandbox is to show."""
        return (self.folder,) if self.volume is None else (self.folder, self.volume)

    def again(self) -> None:
        """Its program is to be started anew."""
        (self.folder / SOCKET).unlink(missing_ok=True)
        self.ending = trio.Event()

    async def connect(self) -> socket.socket:
        """To the program; the socket does not block. Raises OSError where nothing listens."""
        end = connected_to(self.folder, SOCKET)
        if end is not None:
            return end
        nothing = f"it listens neither on FORMATION_SOCKET nor on port {self.port}"
        if self.own_network:
            reached = await self.ports.reached(self.port)
            if isinstance(reached, str):
                raise ConnectionRefusedError(nothing)
            return reached
        made = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            with trio.fail_after(_REACH_S):
                await made.connect(("127.0.0.1", self.port))
        except (OSError, trio.TooSlowError) as problem:
            made.close()
            raise ConnectionRefusedError(nothing) from problem
        return socket.socket(fileno=made.detach())

    async def close(self) -> None:
        """Its program is dead."""
        await remove_folder(self.folder)


def _free_port() -> int:
    """Of this machine. Another program may take it before ours does, which then ends."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as any_port:
        any_port.bind(("127.0.0.1", 0))
        return int(any_port.getsockname()[1])


# The sockets by which a replica reaches the services that it uses: `FORMATION_USES/<name>`.
#
# A program connects and speaks, as with the service itself; which replica is at the other end is
# for its node to choose. It needs no network for that.

log = logging.getLogger(__name__)

# Programs that wait in the kernel, and those that are served at once.
BACKLOG: Final = 64
MAX_STREAMS: Final = 256
# For a replica of the used service to be there: a program has time-outs of its own.
WITHIN_S: Final = 10.0


async def lead(folder: Path, signed: SignedSpec, router: Router) -> None:
    """Until cancelled. `folder` is that of the replica. It may call what its publisher may call."""
    on_behalf = b"" if signed.publisher == router.me else signed.grant
    (folder / USES).mkdir(mode=0o700, exist_ok=True)
    limiter = trio.CapacityLimiter(MAX_STREAMS)
    async with trio.open_nursery() as nursery:
        for name in signed.spec.uses:
            nursery.start_soon(_serve, folder / USES / name, router, on_behalf, limiter)


async def _serve(
    path: Path, router: Router, on_behalf: bytes, limiter: trio.CapacityLimiter
) -> None:
    listening = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listening:
        with reachable(path) as short:
            await listening.bind(short)
        listening.listen(BACKLOG)
        async with trio.open_nursery() as nursery:
            while True:
                end = await next_client(listening)
                its = socket.socket(fileno=end.detach())
                its.setblocking(False)
                await limiter.acquire_on_behalf_of(its)
                nursery.start_soon(_join, its, path, router, on_behalf, limiter)


async def _join(
    its: socket.socket,
    path: Path,
    router: Router,
    on_behalf: bytes,
    limiter: trio.CapacityLimiter,
) -> None:
    name, caller = path.name, path.parent.parent.name

    def broken(error: ServiceError) -> None:
        log.debug("a stream of a replica to %s has broken: %s", name, error)

    try:
        with its:
            stream = await router.open(name, within_s=WITHIN_S, caller=caller, on_behalf=on_behalf)
            await joined(router, stream, its, broken)
    except ServiceError as error:
        log.debug("a replica cannot use %s: %s", name, error)
    finally:
        limiter.release_on_behalf_of(its)
