"""Serving the programs that look at a node: few at a time, and the node waits for none of them."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from formation_p2p.net.transport.accepting import next_client

# Prometheus fetches over one connection, every few seconds; some have two of them.
MAX_CLIENTS: Final = 8
# For a request to arrive, and for an answer, or a line of it, to be taken.
EXCHANGE_S: Final = 10.0


async def serve_clients(
    listener: socket.socket,
    answer: Callable[[trio.SocketStream], Awaitable[None]],
    max_clients: int = MAX_CLIENTS,
) -> None:
    """Until cancelled. A client past `max_clients` is closed at once, every other one after its
    answer. The listener stays open: its maker closes it."""

    async def answered(client: trio.SocketStream) -> None:
        async with client:
            await answer(client)

    with trio.socket.fromfd(listener.fileno(), listener.family, listener.type) as accepting:
        async with trio.open_nursery() as nursery:
            while True:
                client = await next_client(accepting)
                if len(nursery.child_tasks) < max_clients:
                    nursery.start_soon(answered, trio.SocketStream(client))
                else:
                    client.close()


async def receive_head(client: trio.SocketStream, end: bytes, max_bytes: int) -> bytes:
    """What comes until `end`; nothing where that does not come within `max_bytes`."""
    head = b""
    while end not in head:
        received = await client.receive_some(max_bytes)
        head += received
        if not received or len(head) > max_bytes:
            return b""
    return head
