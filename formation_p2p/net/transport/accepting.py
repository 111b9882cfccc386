"""Accepting connections on the sockets beside the peer. A failed one does not stop the listener,
and the node waits for none of its clients."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import trio

log = logging.getLogger(__name__)

# File descriptors or memory are used up: wait for some to come back.
FULL: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
FULL_PAUSE_S: Final = 0.2


async def next_client(listener: trio.socket.SocketType) -> trio.socket.SocketType:
    """The next connection, once there is room for one. Raises OSError where the listener broke."""
    while True:
        try:
            client, _ = await listener.accept()
        except ConnectionAbortedError:
            continue  # it left before it was taken
        except OSError as error:
            if error.errno not in FULL:
                raise
            log.warning("cannot accept a connection: %s", error)
            await trio.sleep(FULL_PAUSE_S)
        else:
            return client


async def serve_clients(
    listener: socket.socket,
    answer: Callable[[trio.SocketStream], Awaitable[None]],
    max_clients: int,
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
