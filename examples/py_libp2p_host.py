"""Applications of py-libp2p on nodes: one port of each carries their protocol and the jobs.

python -m examples.py_libp2p_host

It needs `pip install 'formation_p2p[libp2p]'`.
"""

import asyncio
import tempfile
import threading
import time
from pathlib import Path

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.peerinfo import info_from_p2p_addr
from multiaddr import Multiaddr

from formation_p2p import Home, Limits, Node, Rights

LISTEN = ("/ip4/127.0.0.1/tcp/0",)
GREETING = TProtocol("/example/greeting/1.0.0")
ONE_CORE = Limits(cpu_milli=1000, memory_bytes=1 << 28)


async def greet(host: IHost, is_ready: threading.Event) -> None:
    """An application of py-libp2p that serves a protocol, on the loop of anna's node."""

    async def answer(stream: INetStream) -> None:
        name = await stream.read(100)
        await stream.write(b"hello " + name)
        await stream.close()

    host.set_stream_handler(GREETING, answer)
    is_ready.set()
    await trio.sleep_forever()


async def ask(host: IHost, address: str) -> str:
    """An application that asks it, on the loop of bob's node."""
    there = info_from_p2p_addr(Multiaddr(address))
    await host.connect(there)
    stream = await host.new_stream(there.peer_id, [GREETING])
    await stream.write(b"bob")
    return (await stream.read(100)).decode()


async def main(folder: Path) -> None:
    home, is_ready = Home(folder / "anna"), threading.Event()
    home.create_network()
    async with Node.join(home=home.path, listen=LISTEN) as anna:
        home.add_gate(anna.addresses[0])
        serving = asyncio.create_task(anna.libp2p_host(greet, is_ready))
        await anna.worker(limits=ONE_CORE)
        await asyncio.to_thread(is_ready.wait)
        invite = home.invite(Rights(int(time.time()) + 3600))
        async with Node.join(invite, home=folder / "bob", listen=LISTEN) as bob:
            print(await bob.libp2p_host(ask, anna.addresses[0]))
            print(await bob.map(abs, [-1, -2, -3], needs="cpu=1,memory=64MiB"))
        serving.cancel()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as given:
        asyncio.run(main(Path(given)))
