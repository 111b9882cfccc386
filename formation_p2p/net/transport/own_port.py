"""The port that a node's connections are made from, where a router may lie between: the one that it
listens on, or, where it does not listen, one that it keeps for that.

So a router has one mapping for the node, which others see, and which is punched. A second process
still fails to bind the port: SO_REUSEPORT is set on the listener only after it was bound, and the
kernel asks for it on both sides.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from typing import Final

import trio

log = logging.getLogger(__name__)

# A connection between the two ports is there already, or was a moment ago.
TAKEN: Final = (errno.EADDRNOTAVAIL, errno.EADDRINUSE)
_ANY: Final = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


class OwnPort:
    """One for each family. `close` it when the node ends."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[str, int]] = {}
        self._kept: dict[int, socket.socket] = {}

    def share(self, listener: trio.socket.SocketType) -> None:
        """Connections may be made from the port of this socket, which listens."""
        host, port = listener.getsockname()[:2]
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if not ipaddress.ip_address(host).is_loopback:  # from which no other machine is reached
            self._places.setdefault(listener.family, (host, port))

    @property
    def ports(self) -> frozenset[int]:
        return frozenset(port for _, port in self._places.values())

    async def bind(self, connecting: trio.socket.SocketType) -> None:
        """Have a new socket connect from the port. Raises OSError."""
        place = self._places.get(connecting.family) or self._keep(connecting.family)
        _reusing(connecting)
        await connecting.bind(place)

    def close(self) -> None:
        for kept in self._kept.values():
            kept.close()

    async def listeners(self) -> list[trio.socket.SocketType]:
        """Sockets that listen on the ports that are only kept, for as long as holes are punched:
        the other end may come through first. Close them. Raises OSError."""
        found: list[trio.socket.SocketType] = []
        for family in tuple(self._kept):
            listening = trio.socket.socket(family, socket.SOCK_STREAM)
            found.append(listening)
            _reusing(listening)
            await listening.bind(self._places[family])
            listening.listen()
        return found

    def _keep(self, family: int) -> tuple[str, int]:
        kept = socket.socket(family, socket.SOCK_STREAM)
        try:
            _reusing(kept)
            kept.bind((_ANY[socket.AddressFamily(family)], 0))
        except OSError:
            kept.close()
            raise
        self._kept[family] = kept
        host, port = kept.getsockname()[:2]
        self._places[family] = (host, port)
        return self._places[family]


def _reusing(sharing: socket.socket | trio.socket.SocketType) -> None:
    # SO_REUSEADDR too, so that a node which starts again can listen while connections of its last
    # run are still closing.
    for option in (socket.SO_REUSEPORT, socket.SO_REUSEADDR):
        sharing.setsockopt(socket.SOL_SOCKET, option, 1)
    if sharing.family == socket.AF_INET6:
        sharing.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
