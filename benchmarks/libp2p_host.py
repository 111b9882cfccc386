"""Echoes and 16 MiB between our host for py-libp2p's applications and py-libp2p's own, in one run.

    python -m benchmarks.libp2p_host [--rounds 5]

Both ends are in this process, on loopback: the figures are what both sides cost together.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from contextlib import suppress
from typing import Final

import trio
from libp2p import new_host
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.network.config import ConnectionConfig
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr

from benchmarks.network import LISTEN, Echo
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import KIB, MIB
from formation_p2p.features.libp2p.host import hosted
from formation_p2p.reach.stack import Stack

ECHO, COUNT = TProtocol("/benchmark/echo/1.0.0"), TProtocol("/benchmark/count/1.0.0")
ECHOES: Final = 300
BULK_MIB: Final = 16
# Nothing here takes longer, on two cores.
DEADLINE_S: Final = 300.0


async def echo(stream: INetStream) -> None:
    with suppress(StreamEOF):
        while True:
            await stream.write(await stream.read(64 * KIB))
    await stream.close()


async def count(stream: INetStream) -> None:
    size = 0
    with suppress(StreamEOF):
        while True:
            size += len(await stream.read(64 * KIB))
    await stream.write(size.to_bytes(8))
    await stream.close()


async def measure(client: IHost, server: IHost) -> tuple[float, float]:
    """The median of an echo of 1 KiB in ms, and MB/s of the bulk."""
    await client.connect(PeerInfo(server.get_id(), server.get_addrs()))
    stream, sent, took = await client.new_stream(server.get_id(), [ECHO]), os.urandom(KIB), []
    for _ in range(ECHOES):
        began = time.perf_counter()
        await stream.write(sent)
        left = KIB
        while left:
            left -= len(await stream.read(left))
        took.append(time.perf_counter() - began)
    await stream.close()
    stream, sent = await client.new_stream(server.get_id(), [COUNT]), os.urandom(MIB)
    began = time.perf_counter()
    for _ in range(BULK_MIB):
        await stream.write(sent)
    await stream.close()
    assert int.from_bytes(await stream.read(8)) == BULK_MIB * MIB
    bulk_s = time.perf_counter() - began
    return statistics.median(took) * 1000, BULK_MIB * MIB / 1e6 / bulk_s


async def compare(rounds: int, hosts: dict[str, list[IHost]]) -> None:
    for host in (each for both in hosts.values() for each in both):
        host.set_stream_handler(ECHO, echo)
        host.set_stream_handler(COUNT, count)
    print(f"{'client':10} {'server':10} {'echo of 1 KiB, ms':>18} {'16 MiB, MB/s':>13}")
    for of_client, (client, _) in hosts.items():
        for of_server, (_, server) in hosts.items():
            figures = [await measure(client, server) for _ in range(rounds)]
            echo_ms, mb_s = (statistics.median(each) for each in zip(*figures, strict=True))
            print(f"{of_client:10} {of_server:10} {echo_ms:18.3f} {mb_s:13.1f}")


async def main(rounds: int) -> None:
    quiet = ConnectionConfig(min_connections=0, low_watermark=0)
    stock: list[IHost] = [new_host(connection_config=quiet) for _ in range(2)]
    identities = [Identity.from_seed(os.urandom(32)) for _ in range(2)]
    stacks = [Stack(identity, [LISTEN]) for identity in identities]

    async def with_one(first: IHost) -> None:
        async def with_both(second: IHost) -> None:
            await compare(rounds, {"formation": [first, second], "py-libp2p": stock})

        (await hosted(stacks[1], identities[1], with_both))()

    listen = [Multiaddr(LISTEN)]
    async with stock[0].run(listen), stock[1].run(listen), trio.open_nursery() as nursery:
        for stack in stacks:
            await nursery.start(stack.run, Echo())
        with trio.fail_after(DEADLINE_S):
            (await hosted(stacks[0], identities[0], with_one))()
        for stack in stacks:
            await stack.close()
        for host in stock:
            await host.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="medians of so many")
    trio.run(main, parser.parse_args().rounds)
