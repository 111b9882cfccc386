"""Our network stack and py-libp2p's own, side by side in one run, on loopback.

    python -m benchmarks.network [--json]

Both ends of either are in this one process, so that the figures are what both sides cost
together. TCP + Noise + yamux throughout.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import trio
from libp2p import new_host
from libp2p.custom_types import TProtocol
from libp2p.network.config import ConnectionConfig
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import KIB, MIB
from formation_p2p.net.handlers import NetworkEvent
from formation_p2p.reach.stack import Stack

LISTEN: Final = "/ip4/127.0.0.1/tcp/0"
ECHO: Final = TProtocol("/benchmark/echo/1.0.0")
ROUNDS: Final = 300
DIALS: Final = 5
BULK_BYTES: Final = 64 * MIB
FRAME_BYTES: Final = 1 * MIB
# Nothing here takes longer, on two cores.
DEADLINE_S: Final = 120.0


class Echo:
    """Answers every request with itself, and counts what it is sent."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self.more = trio.Event()

    def asked(self, sender: Contact, frame: bytes, answer: Callable[[bytes | None], None]) -> None:
        answer(frame)

    def received(self, sender: Contact, frame: bytes) -> None:
        self.received_bytes += len(frame)
        self.more.set()
        self.more = trio.Event()

    async def has(self, received_bytes: int) -> None:
        while self.received_bytes < received_bytes:
            await self.more.wait()

    def feed(self, event: NetworkEvent) -> None:
        pass  # at the end both sides close; a loss before that shows as a missed deadline


@asynccontextmanager
async def ours() -> AsyncIterator[tuple[Stack, Contact, Echo]]:
    identity, other, echo = (*(Identity.from_seed(os.urandom(32)) for _ in range(2)), Echo())
    server, client = Stack(identity, [LISTEN]), Stack(other, [])
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run, echo)
        await nursery.start(client.run, Echo())
        server.note_lease(other.peer_id)  # as a lease holder, who alone may send large frames
        yield client, Contact(identity.peer_id, server.addresses), echo
        await client.close()
        await server.close()


async def measure_ours() -> dict[str, float]:
    dials = []
    for _ in range(DIALS):
        async with ours() as (client, server, _):
            began = time.perf_counter()
            await client.ask(server, b"x", timeout_s=10)
            dials.append(time.perf_counter() - began)
    async with ours() as (client, server, echo):
        frame, rounds = os.urandom(KIB), []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            await client.ask(server, frame, timeout_s=10)
            rounds.append(time.perf_counter() - began)
        bulk = os.urandom(FRAME_BYTES)
        began = time.perf_counter()
        for sent in range(0, BULK_BYTES, FRAME_BYTES):
            client.send(server, bulk)
            # `send` queues 64 MiB at most, and does not wait; keep well below.
            await echo.has(sent - 16 * MIB)
        await echo.has(BULK_BYTES)
        bulk_s = time.perf_counter() - began
    return _figures(dials, rounds, bulk_s)


@asynccontextmanager
async def theirs() -> AsyncIterator[tuple[Any, Any]]:
    config = ConnectionConfig(min_connections=0, low_watermark=0)
    server, client = new_host(connection_config=config), new_host(connection_config=config)

    async def echo(stream: Any) -> None:
        while data := await stream.read(64 * KIB):
            await stream.write(data[:1] if len(data) > KIB else data)

    server.set_stream_handler(ECHO, echo)
    async with server.run([Multiaddr(LISTEN)]), client.run([]):
        yield client, PeerInfo(server.get_id(), server.get_addrs())
        await client.close()
        await server.close()


async def measure_theirs() -> dict[str, float]:
    dials = []
    for _ in range(DIALS):
        async with theirs() as (client, server):
            began = time.perf_counter()
            await client.connect(server)
            stream = await client.new_stream(server.peer_id, [ECHO])
            await stream.write(b"x")
            await stream.read(1)
            dials.append(time.perf_counter() - began)
    async with theirs() as (client, server):
        await client.connect(server)
        stream = await client.new_stream(server.peer_id, [ECHO])
        frame, rounds = os.urandom(KIB), []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            await stream.write(frame)
            await _read(stream, KIB)
            rounds.append(time.perf_counter() - began)
        bulk = os.urandom(FRAME_BYTES)
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_drain, stream, nursery.cancel_scope)
            for _ in range(0, BULK_BYTES, FRAME_BYTES):
                await stream.write(bulk)
            bulk_s = time.perf_counter() - began
            nursery.cancel_scope.cancel()
    return _figures(dials, rounds, bulk_s)


async def _read(stream: Any, count: int) -> None:
    while count > 0:
        count -= len(await stream.read(count))


async def _drain(stream: Any, scope: trio.CancelScope) -> None:
    while await stream.read(64 * KIB):
        pass
    scope.cancel()


def _figures(dials: list[float], rounds: list[float], bulk_s: float) -> dict[str, float]:
    return {
        "dial_and_first_answer_ms": round(statistics.median(dials) * 1000, 2),
        "request_1k_p50_ms": round(statistics.median(rounds) * 1000, 3),
        "bulk_mb_s": round(BULK_BYTES / 1e6 / bulk_s, 1),
    }


async def main(as_json: bool) -> None:
    with trio.fail_after(DEADLINE_S):
        figures = {"formation": await measure_ours(), "py_libp2p": await measure_theirs()}
    if as_json:
        print(json.dumps(figures))
        return
    for what in figures["formation"]:
        mine, other = figures["formation"][what], figures["py_libp2p"][what]
        print(f"{what:26} formation {mine:10} py-libp2p {other:10}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    trio.run(main, parser.parse_args().json)
