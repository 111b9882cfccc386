"""What a program of asyncio, or of threads, sees of an application of py-libp2p on its node."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
import trio
from libp2p.abc import IHost

from formation_p2p import Home, Node, NodeClosed, SyncNode
from tests.support.loopback import LISTEN


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Home(tmp_path).create_network()
    return tmp_path


async def shows(host: IHost, what: str) -> str:
    return f"{what} {host.get_id()} {host.get_addrs()[0]}"


async def fails(host: IHost) -> None:
    raise ValueError("a fault of the application")


class Lasting:
    """An application that goes on, and says how it ended."""

    def __init__(self) -> None:
        self.began, self.was_cancelled = asyncio.Event(), threading.Event()

    async def __call__(self, host: IHost, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(self.began.set)
        try:
            await trio.sleep_forever()
        finally:
            self.was_cancelled.set()


async def test_an_application_has_the_node_s_identity_and_what_it_raises_is_raised(
    home: Path,
) -> None:
    async with Node.join(home=home, listen=LISTEN) as node:
        address = node.addresses[0]
        assert await node.libp2p_host(shows, "I am") == f"I am {node.peer_id} {address}"
        with pytest.raises(ValueError, match="a fault of the application"):
            await node.libp2p_host(fails)
        assert await node.libp2p_host(shows, "still") == f"still {node.peer_id} {address}"


async def test_an_application_ends_with_its_caller_and_with_its_node(home: Path) -> None:
    loop = asyncio.get_running_loop()
    node = await Node.join(home=home, listen=LISTEN)
    cancelled, left = Lasting(), Lasting()
    first = asyncio.create_task(node.libp2p_host(cancelled, loop))
    await cancelled.began.wait()
    first.cancel()
    assert await asyncio.to_thread(cancelled.was_cancelled.wait)
    second = asyncio.create_task(node.libp2p_host(left, loop))
    await left.began.wait()
    await node.close()
    with pytest.raises(NodeClosed):
        await second
    assert left.was_cancelled.is_set()
    with pytest.raises(NodeClosed):
        await node.libp2p_host(shows, "late")


def test_a_program_without_await_has_the_same(home: Path) -> None:
    with SyncNode.join(home=home, listen=LISTEN) as node:
        assert node.libp2p_host(shows, "I am").startswith(f"I am {node.peer_id}")
