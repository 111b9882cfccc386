"""Small worlds of services: stacks with a server and a router each, and programs that listen."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from benchmarks.services.stand_in import StandIn
from formation_p2p.features.services.core.balancer import Replica
from formation_p2p.features.services.host.router import Listing, Router
from formation_p2p.features.services.host.server import PROTOCOL, ServiceServer
from formation_p2p.features.services.host.stream import ServiceStream
from formation_p2p.net.transport.parameters import DEFAULTS, NetParameters
from formation_p2p.workload.core.scope import Scope
from tests.support.stacks import Node, running

GRANT = b"a member's"
DIGEST = b"d" * 32
# What a program does with one connection.
Program = Callable[[trio.SocketStream], Awaitable[None]]


@dataclass
class Running(StandIn):
    """A replica as a test has it."""

    digest: bytes = DIGEST
    max_requests: int = 16


class Replicas:
    """Those of a node."""

    def __init__(self) -> None:
        self.running: dict[str, Running] = {}

    def here(self, service: str) -> Running | None:
        return self.running.get(service)


@dataclass
class Notice:
    """What all callers read of services: written by hand. None: nothing can be read."""

    listings: dict[str, Listing] | None = field(default_factory=dict)
    reads: int = 0

    async def read(self, service: str) -> Listing | None:
        self.reads += 1
        await trio.lowlevel.checkpoint()
        if self.listings is None:
            return None
        return self.listings.get(service, Listing(is_known=False))

    def put(self, service: str, nodes: Sequence[ServiceNode], capacity: int = 1024) -> None:
        assert self.listings is not None
        self.listings[service] = Listing(
            tuple(Replica(each.peer_id, capacity) for each in nodes),
            {each.peer_id: each.contact for each in nodes},
        )


class ServiceNode(Node):
    """A stack with what serves and what routes. `nursery` is there once it runs."""

    nursery: trio.Nursery

    def __init__(
        self, notice: Notice, parameters: NetParameters = DEFAULTS, grant: bytes = GRANT
    ) -> None:
        super().__init__(seed=os.urandom(32), parameters=parameters)
        self.replicas = Replicas()
        self.server = ServiceServer(
            lambda peer, shown: None if shown == GRANT else "that is no grant of this network",
            lambda shown, peer: Scope.COMMONS,
        )
        self.server.replicas = self.replicas
        self.stack.served.by_protocol[PROTOCOL] = self.server.accept
        self.router = Router(
            self.stack,
            self.peer_id,
            self.server,
            lambda on_behalf: on_behalf or grant,
            notice.read,
            lambda task: self.nursery.start_soon(task),
            random.Random(1),
        )


@asynccontextmanager
async def network_of(*nodes: ServiceNode) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery, running(*nodes):
        for node in nodes:
            node.nursery = nursery
            nursery.start_soon(node.router.hang_ups.run)
        yield nursery
        nursery.cancel_scope.cancel()


async def listen(nursery: trio.Nursery, path: Path, program: Program) -> None:
    """A program that listens there until the nursery ends."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1024)
    accepting = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
    nursery.start_soon(trio.serve_listeners, program, [accepting])


async def start(
    nursery: trio.Nursery, node: ServiceNode, folder: Path, service: str, program: Program
) -> Running:
    """A replica of it on that node."""
    path = folder / f"{service}-{node.peer_id[-8:]}"
    await listen(nursery, path, program)
    replica = node.replicas.running[service] = Running(str(path))
    return replica


async def echo(stream: trio.SocketStream) -> None:
    async for data in stream:
        await stream.send_all(data)
    await stream.send_eof()


def saying(text: bytes) -> Program:
    """A program that says that to each who connects."""

    async def say(stream: trio.SocketStream) -> None:
        await stream.send_all(text)
        await stream.aclose()

    return say


async def read_all(stream: ServiceStream) -> bytes:
    heard = bytearray()
    while data := await stream.read():
        heard += data
    return bytes(heard)
