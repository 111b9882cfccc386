"""Accepting connections on the sockets beside the peer. A failed one does not stop the listener."""

from __future__ import annotations

import errno
import logging
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
